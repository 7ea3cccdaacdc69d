"""Helpers for every room (text, threads, devices …), on the standard library, NumPy and errors.py."""
