"""Weights 16 rows at a time, so that one vector of 64 bytes serves 16 dot products at once."""
