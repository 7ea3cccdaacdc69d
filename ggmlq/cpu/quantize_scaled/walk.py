"""The walk of a quantizer: rows as kernels read them, units, threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...codes import scaling
from ...codes.scaling import Found, Rule, empty, values
from ...threads import share
from ...tiling import Tiling
from ..machine.target import target
from .kernels import Kind, Lines, encoded, fused, measured
from .pieces import Cut, far, flat, near
from .vectors import LANES, WIDTH

COPIED = 1 << 16  # elements that a thread converts at a time
NOTHING = np.zeros((1, 1), np.int32)


def quantize(x: NDArray[Any], over: Tiling, rule: Rule) -> Found:
    """Floats [rows, columns] to codes, scales and zero points."""
    if _odd(over):
        return scaling.quantize(x, over, rule)
    x = _readable(x)
    cut = near(over, x.itemsize)
    if cut is None:
        low, high = _extremes(x, over, rule)
        scales, zeros = _scales(low, high, rule)
        return Found(encode(x, over, rule, scales, zeros), *_ordered(scales, zeros, rule))
    codes = np.empty((over.rows, over.columns), rule.code.dtype)
    scales = np.empty(over.shape, np.uint8 if rule.scale == "e8m0" else np.float32)
    zeros = np.empty(over.shape, np.int32) if rule.zeros else None
    work, lines, units = fused(_kind(x, rule)), _lines(x, codes), cut.units
    share(lambda first, stop: work(lines, cut, rule.eps, scales, zeros, first, stop), units)
    return Found(codes, *_ordered(scales, zeros, rule))


def encode(
    x: NDArray[Any], over: Tiling, rule: Rule, scales: NDArray[Any], zeros: NDArray[Any] | None
) -> NDArray[Any]:
    """Codes of floats under scales."""
    if _odd(over):
        return scaling.encode(x, over, rule, scales, zeros)
    x = _readable(x)
    codes = np.empty((over.rows, over.columns), rule.code.dtype)
    steps = np.ascontiguousarray(values(scales))
    points = np.broadcast_to(NOTHING, steps.shape) if zeros is None else zeros
    points = np.ascontiguousarray(points, np.int32)
    kind = _kind(x, rule)._replace(zeros=zeros is not None, scale="float32")
    work, lines, cut = encoded(kind), _lines(x, codes), flat(over, x.itemsize)
    share(lambda first, stop: work(lines, cut, steps, points, first, stop), cut.units)
    return codes


def zeros_of(x: NDArray[Any], over: Tiling, rule: Rule, scales: NDArray[Any]) -> NDArray[np.int32]:
    """The zero points that go with given scales."""
    if _odd(over):
        return scaling.zeros_of(x, over, rule, scales)
    low, _ = _extremes(_readable(x), over, rule._replace(zeros=True))
    with np.errstate(all="ignore"):
        return scaling.zero_points(low, values(scales), rule)


def _odd(over: Tiling) -> bool:
    """Whether tiles are too narrow for vectors, or there are none."""
    return not (over.rows and over.columns) or over.c < LANES


def _readable(x: NDArray[Any]) -> NDArray[Any]:
    """Rows that kernels read where they are, or a copy: neighbours side by side, at most float32."""
    wide = x.dtype.name not in WIDTH or not x.dtype.isnative
    if not wide and (x.strides[1] == x.itemsize or x.shape[1] == 1):
        return x
    made = np.empty(x.shape, np.float32 if wide else x.dtype)

    def copy(first: int, stop: int) -> None:
        with np.errstate(all="ignore"):
            made[first:stop] = x[first:stop]

    share(copy, len(x), max(1, COPIED // x.shape[1]))
    return made


def _kind(x: NDArray[Any], rule: Rule) -> Kind:
    return Kind(x.dtype.name, rule.code, rule.rounding, rule.zeros, rule.scale, target())


def _lines(x: NDArray[Any], codes: NDArray[Any]) -> Lines:
    return Lines(x.ctypes.data, x.strides[0], codes.ctypes.data, codes.strides[0])


def _extremes(x: NDArray[Any], over: Tiling, rule: Rule) -> tuple[NDArray[Any], NDArray[Any]]:
    """The least and the largest of each tile and of 0: of its parts first, then of these."""
    cut = far(over, x.itemsize)
    low, high = np.zeros((2, cut.units), np.float32)
    work, lines = measured(_kind(x, rule)), _lines(x, x)
    share(lambda first, stop: work(lines, cut, low, high, first, stop), cut.units)
    return _together(np.fmin, low, cut, over), _together(np.fmax, high, cut, over)


def _together(extreme: np.ufunc, parts: NDArray[Any], cut: Cut, over: Tiling) -> NDArray[Any]:
    """Of tiles, from the units that each is cut into."""
    of_rows = extreme.reduce(parts.reshape(cut.bands, cut.parts, cut.across), axis=1)
    found: NDArray[Any] = extreme.reduce(of_rows.reshape(*over.shape, -1), axis=2)
    return found


def _scales(low: NDArray[Any], high: NDArray[Any], rule: Rule) -> tuple[NDArray[Any], Any]:
    """The rule itself, on the extremes of tiles."""
    with np.errstate(all="ignore"):
        return scaling.scales_of(low, high, rule)


def _ordered(scales: NDArray[Any], zeros: Any, rule: Rule) -> tuple[NDArray[Any], Any]:
    """Both in the order that is asked for."""
    if rule.order == "rows":
        return scales, zeros

    def moved(part: NDArray[Any]) -> NDArray[Any]:
        made: NDArray[Any] = empty(np, part.shape, part.dtype, rule.order)
        made[...] = part
        return made

    return moved(scales), None if zeros is None else moved(zeros)
