"""Floats, tiles and rules for quantizers of scaled arrays on a GPU, and when two results are the same."""

import ml_dtypes
import numpy as np

from ggmlq.codes import CODES
from ggmlq.codes.scaling import Rule
from ggmlq.codes.tiling import tiling


def values(rng, shape, dtype):
    """Rows of all magnitudes, with zeros, ties, subnormal numbers and a few that are not finite."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-20, 8, (shape[0], 1)))
    kind = rng.integers(0, 6, shape[0])
    x[kind == 1] = 0.0
    x[kind == 2] = rng.integers(-896, 897, shape)[kind == 2] / 2
    x[kind == 3] *= 1e-42
    x[kind == 4] = -np.abs(x[kind == 4])
    if rng.integers(3) == 0:
        special = rng.choice([np.nan, np.inf, -np.inf, -0.0, 65504.0], shape)
        x = np.where(rng.random(shape) < 0.01, special, x)
    if rng.integers(3) == 0:
        x[rng.integers(shape[0]), rng.integers(shape[1])] = rng.choice([np.nan, -np.nan])
    with np.errstate(all="ignore"):
        return x.astype(dtype)


TILES = [
    (1, 128), (128, 128), (1, None), (None, None), (1, 32), (1, 16), (3, 5), (None, 1), (2, 128), (1, 512),
    (1, 7), (4, 40), (64, 64), (1, 64), (1, 256), (7, None),
]  # fmt: skip
DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def case(rng, at):
    """A rule, a tile and rows of floats."""
    names = [name for name, code in CODES.items() if code.kind != "scale"]
    code = CODES[names[at % len(names)]]
    tile = TILES[at % len(TILES)] if at < len(TILES) else TILES[rng.integers(len(TILES))]
    zeros = code.kind == "integer" and code.min != -code.max and bool(rng.integers(2))
    rounding = code.roundings[rng.integers(len(code.roundings))]
    eps = np.float32(rng.choice([1e-10, 0, 1e-3]))
    order = ("rows", "columns")[rng.integers(2)]
    rule = Rule(code, ("float32", "e8m0")[rng.integers(2)], eps, rounding, zeros, order)
    rows, columns = int(rng.choice([1, 3, 9])), int(rng.choice([128, 136, 24, 17, 256]))
    c = tile[1]
    if c in (128, 512, 16) and rng.integers(3):
        columns = max(c, columns // c * c)
    dtype = DTYPES[rng.integers(4)]
    x = values(rng, (rows, columns), dtype)
    if c == 1:
        x = x[:, : min(columns, 40)]
    how = rng.integers(4)
    if how == 1:
        x = np.repeat(x, 2, axis=1)[:, ::2]
    elif how == 2:
        wider = np.zeros((x.shape[0], x.shape[1] + 8), x.dtype)
        wider[:, 3:-5] = x
        x = wider[:, 3:-5]
    return x, tiling(tile, *x.shape), rule


def same(got, want, code=None):
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if code is not None and code.kind == "float":
        a, b = code.decode(got), code.decode(want)
        return bool(np.all((got == want) | (np.isnan(a) & np.isnan(b))))
    return np.array_equal(got, want, equal_nan=got.dtype.kind == "f")
