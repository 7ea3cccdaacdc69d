"""The bound on the error of a right kernel, element by element.

A kernel that multiplies as its arithmetic says still sums n terms in float32, in an order of its
own. Its roundings are random and grow like sqrt(n), measured by the sum of magnitudes; only where
the terms are all alike do they add up to n, and there the result itself is that sum. Besides, a
code that lies within 4 ulp of a tie may go either way, and so may a scale that is kept as half and
lies as near to the middle between two. Tensor cores cut the products of a step at the exponents that
their operands are stored with, so a half below 2**-14 loses bits as if it were that large. Nothing else
is granted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from .linear import by_slabs
from .multiply import block_sums, multiply, times
from .operands import Activations, Weights, Wide, by_run, decoded
from .rules import Rule

UNIT = 2.0**-24  # half an ulp of 1: what one float32 operation may be off, relatively
SMALLEST = 2.0**-126  # below it a GPU may flush to zero
EXTRA = 8  # operations on one term before it is summed, and on the sum
HALF_UNIT, HALF_STEPS = 2.0**-11, 2  # half an ulp of 1 of a half; roundings of a run's sum of halves
LOST = 2.0**-27  # of a row's largest activation: what a half of a row times a power of two may lose
NORMAL_HALF = 2.0**-14  # the least half whose leading bit is not stored: smaller ones have its exponent
CUT = 8  # units of the largest product that a step of 16 products may lose, half a unit each
SPREAD = 4  # times sqrt(n): random roundings need 1, structured data up to 3


def bound(x: Any, q: QuantArray, arithmetic: str | Rule) -> NDArray[np.float64]:
    """The largest distance of a right kernel's ``y [..., N]`` from ``linear(x, q, arithmetic)``, by element.

    It holds for kernels that multiply in this arithmetic and sum in float32 (or better) in any
    order, where all that they compute on the way is finite in float32: the weights, the products of
    codes and scales, and the sums. Beyond that a kernel may give infinity or NaN where this bound is
    small; it happens with activations from 1e34 on, and with weights near float32's limit. Where
    llama.cpp sums in halves or chooses among kernels by shape (f16, bf16 and, above 8 rows, iq1_m on
    CUDA) nothing is promised: the bound is infinite.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32), "q4_0")
    >>> x = np.linspace(0, 1, 32, dtype=np.float32)
    >>> error = gq.linear(x, q, arithmetic="f32") - gq.reference.linear(x, q, "f32")
    >>> bool((np.abs(error) <= gq.reference.bound(x, q, "f32")).all())
    True
    """
    return by_slabs("reference.bound(x, q)", x, q, arithmetic, limits)


def limits(w: Weights, a: Activations, how: Rule) -> Wide:
    """The bound of a product of prepared operands, [M, N]."""
    if not how.bounded:
        return np.full((len(a), len(w)), np.inf)
    if not decoded(a).shape[1]:
        return np.zeros((len(a), len(w)))  # a sum of nothing
    with np.errstate(invalid="ignore", over="ignore"):
        if how.half_lanes:  # the order of sums is known, so what overflows is too; the last step rounds
            limit = 2 * UNIT * np.abs(multiply(w, a, how)) + SMALLEST
            return np.where(np.isfinite(limit), limit, 0.0)
        if w.values is not None:
            x_sizes, w_sizes = np.abs(decoded(a)), np.abs(w.values)
            n, magnitude = w.values.shape[1], times(x_sizes, w_sizes)
        else:
            n, magnitude = _magnitude(w, a, how)
        y = np.abs(multiply(w, a, how))
        limit = UNIT * ((EXTRA + SPREAD * np.sqrt(n)) * magnitude + n * y) + n * SMALLEST
        if w.values is not None and how.floats == how.weights == "f16":
            limit += CUT * UNIT * (times(_as_stored(x_sizes), _as_stored(w_sizes)) - magnitude)
        if how.half_runs:
            limit += _half_sums(w, a)
        if a.ties is not None and a.ties.any():
            limit += _moved_codes(w, a, how)
        if a.steps is not None:
            limit += _moved_scales(w, a, how)
    return np.where(np.isfinite(limit), limit, np.inf)


def _as_stored(sizes: Wide) -> Wide:
    """Magnitudes of halves, those below the least normal one as large as it: the exponent that is stored."""
    return np.where(sizes > 0, np.maximum(sizes, NORMAL_HALF), 0.0)


def _magnitude(w: Weights, a: Activations, how: Rule) -> tuple[int, Wide]:
    """The number of terms that a kernel sums, and the sum of their magnitudes however it cuts the blocks.

    An integer dot of some codes is at most the product of their norms; so are its parts. A kernel
    may take the zero off each code or off the sum; the latter has the larger terms.
    """
    assert w.codes is not None
    assert w.scale is not None
    piece = min(w.group, 32)
    zero = 0 if how.zero_in_code else w.zero
    codes = by_run(w.codes, piece) + float(zero)
    scale = np.abs(w.scale).repeat(w.group // piece, axis=1)
    values = decoded(a)
    norms = np.sqrt((by_run(values, piece) ** 2).sum(axis=-1))
    magnitude: Wide = times(norms, np.sqrt((codes**2).sum(axis=-1)) * scale)
    offset = w.offset if zero == 0 else zero * w.scale
    if offset is not None:
        sums = np.abs(by_run(values, 16).sum(axis=-1))  # sums of 16 are the shortest that are kept
        if how.sums == "kept":
            sums = np.abs(block_sums(a, w.group, how))
        magnitude += sums @ np.abs(offset).repeat(sums.shape[1] // offset.shape[1], axis=1).T
    return scale.shape[1], magnitude


def _half_sums(w: Weights, a: Activations) -> Wide:
    """The error of sums of runs that are halves, and of activations below the least normal half.

    Each sum is at most that of its terms' magnitudes.
    """
    assert w.codes is not None
    assert w.scale is not None
    values, sizes = np.abs(decoded(a)), np.abs(by_run(w.codes, w.group) * w.scale[..., None])
    sizes = sizes.reshape(w.codes.shape)
    lost = LOST * values.max(axis=1)[:, None] * sizes.sum(axis=1)
    error: Wide = HALF_STEPS * HALF_UNIT * times(values, sizes) + lost
    return error


def _moved_codes(w: Weights, a: Activations, how: Rule) -> Wide:
    """The error that codes near a tie may add: each moves by one, and its results with it."""
    assert w.codes is not None
    assert w.scale is not None
    assert a.scale is not None
    assert a.ties is not None
    steps = a.ties.astype(np.float64) * np.abs(a.scale).repeat(a.run, axis=1)
    if how.half_products:
        steps *= 1 + 2.0**-10
    by_group: Wide = by_run(steps, w.group)
    weight = by_run(w.codes, w.group) * w.scale[..., None]
    moved = np.zeros((len(a), len(w)))
    if w.offset is not None:
        code_offsets, rounds = _offsets_that_move(w.offset, a, how)
        weight = weight - code_offsets[..., None]
        if rounds:  # the codes' sum moves by one and is rounded again
            assert a.sums is not None
            touched: Wide = by_group.sum(axis=-1)
            half_ulp = np.spacing(np.abs(a.sums).astype(np.float16)).astype(np.float64)
            moved += (touched + (touched > 0) * half_ulp) @ np.abs(w.offset).T
    moved += times(steps, np.abs(weight.reshape(w.codes.shape)))
    if w.unit is not None:  # an integer sum may be cut off one lower or higher
        moved += by_group.max(axis=-1) @ np.abs(w.unit).T
    return moved


def _moved_scales(w: Weights, a: Activations, how: Rule) -> Wide:
    """The error that a scale may add where it rounds to the other half: its step times all that it scales."""
    assert w.codes is not None
    assert w.scale is not None
    assert a.codes is not None
    assert a.scale is not None
    assert a.steps is not None
    weight = by_run(w.codes, w.group) * w.scale[..., None]
    if w.offset is not None:
        weight = weight - _offsets_that_move(w.offset, a, how)[0][..., None]
    weight = weight.reshape(w.codes.shape)
    moved = np.zeros((len(a), len(w)))
    for run in np.flatnonzero(a.steps.any(axis=0)):
        rows, at = np.flatnonzero(a.steps[:, run]), slice(run * a.run, (run + 1) * a.run)
        step = a.steps[rows, run, None]
        if how.half_products:  # scale times scale is rounded anew, either way
            step = step + 2.0**-10 * np.abs(a.scale[rows, run, None])
        moved[rows] += step * np.abs(a.codes[rows, at].astype(np.float64) @ weight[:, at].T)
        if w.unit is not None:  # an integer sum is cut off, by less than one of the block's units
            units = np.abs(w.unit[:, at.start // w.group : at.stop // w.group])
            moved[rows] += step * units.max(axis=1)
    return moved


def _offsets_that_move(offset: Wide, a: Activations, how: Rule) -> tuple[Wide, bool]:
    """The offsets (else 0) that the codes' own sums serve, and whether kept sums are of the codes."""
    if how.sums == "codes" or a.sums is None or how.quantizer is None:
        return offset, False
    without = np.arange(offset.shape[1]) % 8 >= how.quantizer.sums_of
    return np.where(without, offset, 0), how.quantizer.sums == "codes"
