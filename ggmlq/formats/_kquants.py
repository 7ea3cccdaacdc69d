"""What the encoders of the K types share: importance of weights, sub-scales, the second pass, packing.

In the words of ``_lanes.py``. Each K type fits its runs one by one (``_search.py``), stores the
scales of the runs as small integers times one half, and then chooses the codes again for the scales
as they are stored.
"""

from __future__ import annotations

import numpy as np

from ._bits import k_min, k_scale
from ._lanes import (
    Tile,
    Vector,
    absolute,
    clamp,
    floats,
    from_half,
    get,
    nearest,
    put,
    real,
    root,
    to_half,
    where,
    zero,
)
from ._search import fit_offset, fit_positive


def power(x: Tile, n: int) -> Vector:
    """Sum of squares."""
    total = zero(x)
    for i in range(n):
        total = total + get(x, i) * get(x, i)
    return total


def weigh(w: Tile, x: Tile, importance: Tile, n: int, spread: Vector) -> Vector:
    """Fill w with ``importance * sqrt(spread + x * x)`` and return its sum."""
    total = zero(x)
    for i in range(n):
        v = get(x, i)
        weight = get(importance, i) * root(spread + v * v)
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


def highest(values: Tile, n: int) -> Vector:
    """The largest value, or 0."""
    found = zero(values)
    for i in range(n):
        found = where(get(values, i) > found, get(values, i), found)
    return found


def put_half(out: Tile, at: int, bits: Vector) -> None:
    """Two bytes of a half."""
    put(out, at, bits & 255)
    put(out, at + 1, bits >> 8)


def signed_byte(code: Vector) -> Vector:
    """An integer as C stores it in an int8."""
    return ((code & 255) ^ 128) - 128


def recode(x: Tile, codes: Tile, n: int, d: Vector, low: Vector, least: int, top: int) -> None:
    """Codes, less ``least``, of ``x ~ d * code - low``; where d is 0 they stay as they are."""
    for i in range(n):
        code = clamp(nearest((get(x, i) + low) / d), least, top) - least
        put(codes, i, where(d != 0, code, get(codes, i)))


def fit_runs(
    x: Tile, importance: Tile | None, codes: Tile, scales: Tile, lows: Tile, sums: Tile, top: int,
    first: np.float32, step: np.float32, steps: int,
) -> None:  # fmt: skip
    """Scale, minimum and codes of the eight runs of 32 of q4_K and q5_K."""
    w = floats(x, 32)
    aux = floats(x, 32)
    spread = np.float32(2) * power(x, 256) / np.float32(256)
    for j in range(8):
        run = x[32 * j : 32 * j + 32]
        if importance is None:
            weigh_by_size(w, run, 32)
        else:
            put(sums, j, weigh(w, run, importance[32 * j : 32 * j + 32], 32, spread))
        scale, low = fit_offset(run, w, codes[32 * j : 32 * j + 32], aux, 32, top, first, step, steps, False)
        put(scales, j, scale)
        put(lows, j, low)


def six_bits(values: Tile, sums: Tile, codes: Tile, weighted: bool) -> Vector:
    """Eight values as codes 0 … 63 times a half, whose bits are returned."""
    if weighted:
        return to_half(fit_positive(values, sums, codes, 8, 63))
    largest = highest(values, 8)
    k = where(largest > 0, np.float32(63) / largest, np.float32(0))
    for j in range(8):
        code = nearest(k * get(values, j)) & 255
        put(codes, j, where(code < 63, code, 63))
    return to_half(largest / np.float32(63))


def put_k_scales(out: Tile, at: int, sc: Tile, m: Tile) -> None:
    """The 12 bytes of eight 6-bit scales and minima (picture in q4_k.py)."""
    for k in range(4):
        put(out, at + k, get(sc, k) | get(sc, 4 + k) >> 4 << 6)
        put(out, at + 4 + k, get(m, k) | get(m, 4 + k) >> 4 << 6)
        put(out, at + 8 + k, get(sc, 4 + k) & 15 | (get(m, 4 + k) & 15) << 4)


def recode_runs(x: Tile, codes: Tile, out: Tile, at: int, d: Vector, dmin: Vector, top: int) -> None:
    """The second pass of q4_K and q5_K, with the scales and minima as they stand in the bytes."""
    for j in range(8):
        scale = from_half(d) * real(k_scale(out, at, j))
        low = from_half(dmin) * real(k_min(out, at, j))
        recode(x[32 * j : 32 * j + 32], codes[32 * j : 32 * j + 32], 32, scale, low, 0, top)


def put_pairs(out: Tile, at: int, codes: Tile) -> None:
    """The low two bits of 256 codes in 64 bytes; 32 bytes carry four runs of 32."""
    for i in range(64):
        j = i // 32 * 128 + i % 32
        low = get(codes, j) & 3 | (get(codes, j + 32) & 3) << 2
        put(out, at + i, low | (get(codes, j + 64) & 3) << 4 | (get(codes, j + 96) & 3) << 6)
