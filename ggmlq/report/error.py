"""The error of a tensor for ``ggmlq report``: estimated without an original, and measured in other types.

With an original, ``ggmlq/diff`` compares the two, and rows of the original are quantized to other types. A
tensor of floats is its own original. Else the error is estimated: a value that was rounded to the next code
is off by a part of the step between codes, and the steps, which are the scales, are in the file. A trial of
the type on normal values tells how large that part is; it includes the effects of the type's search and code
book.
"""

from __future__ import annotations

import warnings
from functools import cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..formats import FORMATS, BlockFormat, Format
from ..gguf.tensors import piece
from ..ops import dequantize, quantize
from .blocks import Blocks, examine
from .values import FLOATS, Values

CANDIDATES = ("q8_0", "q6_K", "q5_K", "q4_K", "q3_K", "q2_K")  # from good to small
OTHERS = ("q8_0", "q5_1", "q5_0", "q4_0")  # for rows that are no multiple of 256, as llama.cpp does
WHOLE = 256
TRIED = 8  # rows of a tensor that are quantized
LONGEST = 1 << 12  # elements of such a row that are
TRIAL = (32, 1024)  # normal values that a type is tried on


def candidates(columns: int) -> list[Format]:
    """Types that rows of this length could have, from good to small."""
    names = CANDIDATES if columns % WHOLE == 0 else OTHERS
    return [FORMATS[name] for name in names if columns % FORMATS[name].block_size == 0]


def measured(original: QuantArray) -> dict[str, float]:
    """The NMSE of some rows of an original in each candidate type; empty if it cannot be quantized."""
    rows = _rows(original)
    if rows is None:
        return {}
    energy = float(np.square(rows, dtype=np.float64).sum())
    errors = {}
    for fmt in candidates(rows.shape[-1]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of values that a type cannot hold: they show
            decoded = np.asarray(dequantize(quantize(rows, fmt), np.float64))
        with np.errstate(invalid="ignore", over="ignore"):
            error = float(np.square(decoded - rows).sum())
        errors[fmt.name] = error / energy if energy else 0.0
    return errors


def _rows(original: QuantArray) -> NDArray[np.float32] | None:
    """Some rows, evenly spaced, of a matrix of finite floats; None where there are none."""
    if original.ndim < 2 or not prod(original.shape) or original.format.name not in FLOATS:
        return None
    columns = original.shape[-1]
    count = prod(original.shape[:-1])
    if columns % 32:
        return None
    length = min(columns, LONGEST) if columns % WHOLE == 0 else columns
    if length > LONGEST:
        return None
    picked = np.unique(np.linspace(0, count - 1, TRIED).astype(np.int64)).tolist()
    parts = [dequantize(piece(original, row * columns, (length,)), np.float64) for row in picked]
    with np.errstate(over="ignore"):
        rows = np.asarray(parts).astype(np.float32)
    return rows if np.isfinite(rows).all() else None


def estimated(fmt: Format, values: Values, blocks: Blocks) -> float | None:
    """The estimated NMSE of rounding to the codes of the file, from its scales; None where there is none."""
    if not isinstance(fmt, BlockFormat) or not values.rms or not np.isfinite(values.rms):
        return None
    part = trial(fmt)[1]
    return None if part is None else part * blocks.steps / values.rms**2


def next_better(fmt: Format, columns: int) -> Format | None:
    """The candidate with the fewest bits among those with more bits than a type; None if there is none."""
    better = [f for f in candidates(columns) if f.bits_per_weight > fmt.bits_per_weight]
    return better[-1] if better else None


@cache
def trial(fmt: Format) -> tuple[float, float | None]:
    """The error of normal values in a type: NMSE, and the mean squared error in squared steps."""
    x = np.random.default_rng(7).standard_normal(TRIAL, np.float32)
    importance = np.ones(TRIAL[1], np.float32) if fmt.needs_imatrix else None
    q = quantize(x, fmt, importance)
    error = float(np.square(np.asarray(dequantize(q, np.float64)) - x).mean())
    steps = examine(q).steps
    return error / float(np.square(x, dtype=np.float64).mean()), error / steps if steps else None
