"""Parts of the encoders of all K types: importance of weights, sub-scales, the second pass, packing.

In the words of ``_program.py``. Each K type fits its runs one by one (``_search.py``), stores the
scales of the runs as small integers times one half, and then chooses the codes again for the scales
as they are stored.
"""

from __future__ import annotations

import numpy as np

from ._bits import k_min, k_scale
from ._program import (
    Tile,
    Vector,
    at_once,
    clamp,
    floats,
    from_half,
    get,
    nearest,
    part,
    put,
    real,
    small,
    to_half,
    where,
    zeros,
)
from ._search import fit_offset, fit_positive
from ._weigh import power, weigh, weigh_by_size


def highest(values: Tile, n: int) -> Vector:
    """The largest value, or 0."""
    largest = zeros(values)
    for i in range(n):
        largest = where(get(values, i) > largest, get(values, i), largest)
    return largest


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
    mean_square = np.float32(2) * power(x, 256) / np.float32(256)
    for g in at_once(8):
        run, run_codes = part(x, g, 32), part(codes, g, 32)
        w, aux = floats(run, 32), floats(run, 32)
        if importance is None:
            weigh_by_size(w, run, 32)
        else:
            put(sums, g, weigh(w, run, part(importance, g, 32), 32, mean_square))
        scale, low = fit_offset(run, w, run_codes, aux, 32, top, first, step, steps, False)
        put(scales, g, scale)
        put(lows, g, low)


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


def recode_runs(x: Tile, codes: Tile, out: Tile, at: int, d: Vector, dmin: Vector, top: int) -> None:
    """The second pass of q4_K and q5_K, with the scales and minima as they stand in the bytes."""
    sc, m = small(x, 8), small(x, 8)
    for j in range(8):
        put(sc, j, k_scale(out, at, j))
        put(m, j, k_min(out, at, j))
    for g in at_once(8):
        scale, low = from_half(d) * real(get(sc, g)), from_half(dmin) * real(get(m, g))
        recode(part(x, g, 32), part(codes, g, 32), 32, scale, low, 0, top)
