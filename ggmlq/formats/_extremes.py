"""Extremes of n values, in the words of ``_program.py``."""

from __future__ import annotations

from ._program import Tile, Vector, absolute, at_once, floats, get, larger, part, put, where, zeros


def extreme(x: Tile, n: int) -> Vector:
    """The element of largest magnitude with its sign; the first one wins."""
    peak = zeros(x)
    for i in range(n):
        v = get(x, i)
        peak = where(absolute(v) > absolute(peak), v, peak)
    return peak


def extreme_of_256(x: Tile) -> Vector:
    """The extreme of 256 values, by way of those of 16 runs."""
    extremes = floats(x, 16)
    for g in at_once(16):
        put(extremes, g, extreme(part(x, g, 16), 16))
    return extreme(extremes, 16)


def largest(x: Tile, n: int) -> Vector:
    """The largest of n magnitudes."""
    size = zeros(x)
    for i in range(n):
        size = larger(absolute(get(x, i)), size)
    return size


def bounds(x: Tile, n: int) -> tuple[Vector, Vector]:
    """The smallest element, of zeros with different signs the first, and the largest one."""
    low = get(x, 0)
    high = low
    for i in range(1, n):
        v = get(x, i)
        low = where(v < low, v, low)
        high = larger(v, high)
    return low, high


def largest_of_256(x: Tile) -> Vector:
    """The largest magnitude of 256 values, by way of those of 16 runs."""
    sizes = floats(x, 16)
    for g in at_once(16):
        put(sizes, g, largest(part(x, g, 16), 16))
    return largest(sizes, 16)
