"""Importance of single weights in the searches of encoders; in the words of ``_program.py``."""

from __future__ import annotations

import numpy as np

from ._program import Tile, Vector, absolute, get, put, root, zeros


def power(x: Tile, n: int) -> Vector:
    """The sum of n squares."""
    total = zeros(x)
    for i in range(n):
        total = total + get(x, i) * get(x, i)
    return total


def weigh(w: Tile, x: Tile, importance: Tile, n: int, mean_square: Vector) -> Vector:
    """Fill w with ``importance * sqrt(mean_square + x * x)`` and return its sum."""
    total = zeros(x)
    for i in range(n):
        v = get(x, i)
        weight = get(importance, i) * root(mean_square + v * v)
        put(w, i, weight)
        total = total + weight
    return total


def square(w: Tile, x: Tile, n: int) -> None:
    """Fill w with squares: the weights of an encoder without an importance matrix."""
    for i in range(n):
        put(w, i, get(x, i) * get(x, i))


def weigh_by_size(w: Tile, x: Tile, n: int) -> None:
    """Fill w with ``|x|`` plus the root mean square of the run."""
    mean = root(power(x, n) / np.float32(n))
    for i in range(n):
        put(w, i, mean + absolute(get(x, i)))
