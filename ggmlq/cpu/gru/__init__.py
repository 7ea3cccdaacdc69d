"""Rungs of a GRU in integers on the CPU, and what the fast one is made of."""
