"""The epilogue of products: bias, residual, gate, codes and dtype; one record of what a caller wants.

Sums are float32. A bias is added to them, then a residual, in float32, and the result is rounded once to the
dtype that the caller wants. What no kernel does of this is done here. On the host it goes by pieces of rows,
which stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ..arrays.scaled import ScaledArray
from ..arrays.weights import Divided
from ..base.devices import Place, device_of, place_at
from ..codes import Code
from ..codes.tiling import Tile
from ..dispatch.checks import (
    FLOAT32,
    as_floats,
    check_bias,
    check_out,
    float_dtype,
    is_bfloat16,
)
from ..errors import DeviceError, ShapeError

PIECE = 1 << 16  # sums that are finished at a time
SHARED = 1 << 18  # sums that pay for waking another thread


class Wishes(NamedTuple):
    """The result that a caller of a product wants, as the caller wrote it."""

    out: Any = None
    bias: Any = None
    residual: Any = None
    dtype: Any = np.float32
    kernel: Any = "auto"
    arithmetic: Any = None
    invariant: bool = False
    gate: str | None = None  # on a GPU the function of the residual that multiplies the result

    @property
    def how(self) -> Any:
        """The arithmetic as keys of plans name it."""
        return ("invariant", self.arithmetic) if self.invariant else self.arithmetic


class Coding(NamedTuple):
    """The code, tile and scales of a result that is requantized."""

    code: Code
    tile: Tile
    scales: Any


class Result(NamedTuple):
    """The result that a caller wants, checked: its place and dtype, and all that follows the sums."""

    request: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    place: Place
    out: Any = None
    bias: Any = None
    residual: Any = None  # of the result's shape, or one that NumPy broadcasts to it
    gate: str | None = None  # on a GPU the function of the residual that multiplies the result
    coding: Coding | None = None


def result_of(
    request: str, wishes: Wishes, shape: tuple[int, ...], device: str, weights: Any = None, name: str = "q",
    axis: int = 0,
) -> Result:  # fmt: skip
    """The checked wishes for a result of this shape on this device; ``name``: of the weights, for errors.

    ``axis``: of the weights, along which there is a number of the bias. A residual that lies in the memory of
    ``out`` in another way is copied, so that no write changes it early.
    """
    out, bias, residual = wishes.out, wishes.bias, wishes.residual
    if out is not None and residual is None:
        check_out(request, out, shape, device)
    if bias is not None and weights is not None:
        bias = check_bias(request, bias, weights, name, axis)
    place = place_at(device)
    if residual is not None:
        residual = as_floats(request, residual, "residual", bfloat16=place.on_host)
        if (there := device_of(residual)) != device:
            raise DeviceError(f"{request}: residual is on {there}, the result on {device}; move it there")
        if not fits(residual.shape, shape):
            raise ShapeError(unfit(request, residual.shape, shape))
    kind = float_dtype(request, wishes.dtype)
    if out is not None and residual is not None:
        check_out(request, out, shape, device)
        if place.share(out, residual) and not is_same(place, out, residual):
            residual = residual.copy()
    return Result(request, shape, kind if out is None else out.dtype, place, out, bias, residual, wishes.gate)


def unfit(request: str, part: Any, shape: tuple[int, ...]) -> str:
    """The words for a residual whose shape does not fit."""
    return (
        f"{request}: residual has shape {tuple(part)}, the result {shape}; it has the shape of the result, "
        f"or one that NumPy broadcasts to it; pass {shape}"
    )


def fits(part: Any, shape: tuple[int, ...]) -> bool:
    """True if arrays of the shape ``part`` broadcast to ``shape``."""
    try:
        return np.broadcast_shapes(tuple(part), shape) == shape
    except ValueError:
        return False


def lies_as_results(residual: Any, shape: tuple[int, ...]) -> bool:
    """True if kernels may add a residual on a GPU: of float32 or 16 bits, each number where its result lies.

    They read two neighbours of 16 bits at a time, of rows of even length.
    """
    n = shape[-1]
    if residual.shape[-1:] != (n,) or residual.size != math.prod(shape) or n % 2 or residual.data.ptr % 4:
        return False
    return residual.dtype.char in "feH" and bool(residual.flags.c_contiguous)


def takes_sums(share: Callable[[Any, Any], bool], out: Any, *operands: Any, dtype: Any = FLOAT32) -> bool:
    """True if a kernel may write into ``out`` itself: its dtype, contiguous, apart from all it reads.

    ``share(a, b)`` is True if two arrays may share memory.
    """
    if out is None or out.dtype != dtype or not out.flags.c_contiguous:
        return False
    return not any(operand is not None and share(out, operand) for operand in operands)


def place_for_sums(result: Result, *operands: Any) -> Any:
    """The array ``out`` if a kernel may leave float32 sums in it before they are finished; else None."""
    out = result.out
    if out is None or not takes_sums(result.place.share, out, result.residual, *operands, dtype=FLOAT32):
        return None
    return out


def finished(result: Result, sums: Any, part_of: Callable[[slice], Any]) -> Any:
    """The result: float32 rows that ``part_of`` makes of some sums, plus the residual, rounded.

    ``part_of`` gets a slice of the result's rows [M, N]; it may overwrite the sums of these rows. On the host
    it is called in several threads, once for each row.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are results, as on a GPU
        if not result.place.on_host:
            return _on_device(result, part_of)
        out = np.empty(result.shape, result.dtype) if result.out is None else result.out
        if not out.size:
            return out
        n = result.shape[-1] if result.shape else 1
        m = out.size // n
        to, more = _rows(out, m, n), None
        if result.residual is not None:
            whole = np.broadcast_to(result.residual, result.shape)
            more = _rows(whole, m, n)
            more = np.ascontiguousarray(whole).reshape(m, n) if more is None else more
        target = np.empty((m, n), result.dtype) if to is None else to
        step = max(1, PIECE // n)

        def work(start: int, stop: int) -> None:
            with np.errstate(over="ignore", invalid="ignore"):
                for first in range(start, stop, step):
                    rows = slice(first, min(first + step, stop))
                    part = part_of(rows)
                    if more is not None:
                        part += more[rows].astype(np.float32) if is_bfloat16(more) else more[rows]
                    if not np.may_share_memory(target[rows], part):  # else the sums lie there already
                        target[rows] = part

        import_module("ggmlq.base.threads").share(work, m, max(step, SHARED // n))
        if to is None:
            out[...] = target.reshape(result.shape)
        return out


def delivered(result: Result, sums: Any, bias: Any = None, residual: Any = None) -> Any:
    """The result of float32 sums, which may be overwritten: plus bias [N], plus the residual, rounded."""
    result = result._replace(residual=residual)
    if result.out is None and result.dtype == FLOAT32:
        result = result._replace(out=sums)
    if sums is result.out and bias is None and residual is None:
        return sums
    lines = sums.reshape(math.prod(sums.shape[:-1]), sums.shape[-1])

    def part_of(rows: slice) -> Any:
        part = lines[rows]
        if bias is not None:
            part += bias
        return part

    return finished(result, sums, part_of)


def memory_of(weights: Any, x: Any) -> Any:
    """An array on the device of the result: of weights, or x where these are on several devices."""
    if isinstance(weights, Divided):
        return x.codes if isinstance(x, ScaledArray) else x if hasattr(x, "dtype") else np.empty(0)
    return weights.codes if isinstance(weights, ScaledArray) else weights.memory


def sums_dtype(result: Result) -> np.dtype[Any]:
    """The dtype of a product that :func:`ended` takes: float32 where a residual is still to be added."""
    return result.dtype if result.residual is None else FLOAT32


def ended(y: Any, result: Result) -> Any:
    """A result of :func:`sums_dtype` with its residual, in ``out`` where there is one."""
    if result.residual is not None:
        return delivered(result, y, None, result.residual)
    if result.out is None or result.out is y:
        return y
    result.out[...] = y
    return result.out


def rows_of(x: Any) -> tuple[int, ...]:
    """The shape of activations without the last axis; () where x is no array, which is said later."""
    try:
        return tuple(x.shape if hasattr(x, "shape") else np.shape(x))[:-1]
    except ValueError:
        return ()


def _on_device(result: Result, part_of: Callable[[slice], Any]) -> Any:
    """The result on a GPU: CuPy adds and rounds."""
    y = part_of(slice(None)).reshape(result.shape)
    if result.residual is not None:
        y += result.residual
    if result.out is None:
        return y.astype(result.dtype, copy=False)
    if result.out.data.ptr != y.data.ptr:  # else the sums lie there already
        result.out[...] = y
    return result.out


def _rows(array: Any, m: int, n: int) -> Any:
    """An array [..., N] as rows [M, N] of the same memory; None where they do not lie so."""
    if array.ndim == 2:
        return array
    lines = array.reshape(m, n)
    return lines if np.may_share_memory(lines, array) else None


def is_same(place: Place, a: Any, b: Any) -> bool:
    """True for two views of the same numbers in the same places."""

    def facts(array: Any) -> Any:
        address = array.ctypes.data if place.on_host else array.data.ptr
        return address, array.shape, array.strides, array.dtype

    return bool(facts(a) == facts(b))
