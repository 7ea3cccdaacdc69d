"""Weights as strips of 16 rows, in the order in which tensor cores take them, with the file's bits."""
