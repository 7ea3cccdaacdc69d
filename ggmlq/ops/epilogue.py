"""The epilogue of products beside their kernels: bias, residual and rounding, in one pass over the sums.

Sums are float32. A bias is added to them, then a residual, in float32, and the result is rounded once to the
dtype that the caller wants. On the host the pass goes by pieces of rows, which stay in the cache. On a GPU it
serves where no kernel does all of this itself (call.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ..arrays.scaled import ScaledArray
from ..arrays.weights import Divided
from ..base.devices import device_of, is_host, namespace, on_device_of, place_of
from ..dispatch.checks import FLOAT32, as_floats, check_out, float_dtype, is_bfloat16, takes_sums
from ..errors import DeviceError, ShapeError

PIECE = 1 << 16  # sums that are finished at a time
SHARED = 1 << 18  # sums that pay for waking another thread


class Ending(NamedTuple):
    """The checked wishes for the end of a product: its residual, and the result's place and dtype."""

    shape: tuple[int, ...]
    residual: Any
    out: Any
    dtype: np.dtype[Any]


def ending(
    request: str, shape: tuple[int, ...], device: str, residual: Any, out: Any, dtype: Any
) -> Ending:  # fmt: skip
    """The arguments ``residual``, ``out`` and ``dtype`` of a product with a result of this shape, checked.

    A residual that lies in the memory of ``out`` in another way is copied, so that no write changes it early.
    """
    if residual is not None:
        residual = checked_residual(request, residual, shape, device)
    kind = float_dtype(request, dtype)
    if out is not None:
        check_out(request, out, shape, device)
        kind = out.dtype
        if residual is not None and place_of(out).share(out, residual) and not _is_same(out, residual):
            residual = residual.copy()
    return Ending(shape, residual, out, kind)


def checked_residual(request: str, residual: Any, shape: tuple[int, ...], device: str) -> Any:
    """The residual, checked: floats on this device, of a shape that broadcasts to that of the result."""
    residual = as_floats(request, residual, "residual", bfloat16=is_host(residual))
    if device_of(residual) != device:
        raise DeviceError(
            f"{request}: residual is on {device_of(residual)}, the result on {device}; move it there"
        )
    if not fits(residual.shape, shape):
        raise ShapeError(unfit(request, residual.shape, shape))
    return residual


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


def place_for_sums(end: Ending, *operands: Any) -> Any:
    """The array ``out`` if a kernel may leave float32 sums in it before they are finished; else None."""
    out = end.out
    if out is None or not takes_sums(place_of(out).share, out, end.residual, *operands, dtype=FLOAT32):
        return None
    return out


def finished(end: Ending, sums: Any, part_of: Callable[[slice], Any]) -> Any:
    """The result: float32 rows that ``part_of`` makes of some sums, plus the residual, rounded.

    ``part_of`` gets a slice of the result's rows [M, N]; it may overwrite the sums of these rows. On the host
    it is called in several threads, once for each row.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are results, as on a GPU
        if not is_host(sums):
            return _on_device(end, part_of)
        out = np.empty(end.shape, end.dtype) if end.out is None else end.out
        if not out.size:
            return out
        n = end.shape[-1] if end.shape else 1
        m = out.size // n
        to, more = _rows(out, m, n), None
        if end.residual is not None:
            whole = np.broadcast_to(end.residual, end.shape)
            more = _rows(whole, m, n)
            more = np.ascontiguousarray(whole).reshape(m, n) if more is None else more
        target = np.empty((m, n), end.dtype) if to is None else to
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
            out[...] = target.reshape(end.shape)
        return out


def plus(end: Ending, sums: Any, bias: Any = None) -> Any:
    """The result of float32 sums, which may be overwritten: plus bias [N], plus the residual, rounded."""
    if end.out is None and end.dtype == FLOAT32:
        end = end._replace(out=sums)
    if sums is end.out and bias is None and end.residual is None:
        return sums
    lines = sums.reshape(math.prod(sums.shape[:-1]), sums.shape[-1])

    def part_of(rows: slice) -> Any:
        part = lines[rows]
        if bias is not None:
            part += bias
        return part

    return finished(end, sums, part_of)


def added(
    request: str, product: Callable[..., Any], weights: Any, shape: tuple[int, ...], bias: Any, residual: Any,
    out: Any, dtype: Any,
) -> Any:  # fmt: skip
    """``product(out=…, bias=…, dtype=float32)``, of this shape, plus a residual.

    On the host the bias is added in the same pass; it is checked already. On a GPU a kernel may add it.
    """
    memory = memory_of(weights, residual)
    end = ending(request, shape, device_of(memory), residual, out, dtype)
    with on_device_of(request, memory, weights if hasattr(weights, "recorded") else None):
        here = is_host(memory)
        sums = product(out=place_for_sums(end), bias=None if here else bias, dtype=np.float32)
        return plus(end, sums, bias if here else None)


def memory_of(weights: Any, x: Any) -> Any:
    """An array on the device of the result: of weights, or x where these are on several devices."""
    if isinstance(weights, Divided):
        return x.codes if isinstance(x, ScaledArray) else x if hasattr(x, "dtype") else np.empty(0)
    return weights.codes if isinstance(weights, ScaledArray) else weights.memory


def ended(y: Any, out: Any) -> Any:
    """A result, in ``out`` where there is one."""
    if out is None or out is y:
        return y
    out[...] = y
    return out


def rows_of(x: Any) -> tuple[int, ...]:
    """The shape of activations without the last axis; () where x is no array, which is said later."""
    try:
        return tuple(x.shape if hasattr(x, "shape") else np.shape(x))[:-1]
    except ValueError:
        return ()


def _on_device(end: Ending, part_of: Callable[[slice], Any]) -> Any:
    """The result on a GPU: CuPy adds and rounds."""
    y = part_of(slice(None)).reshape(end.shape)
    if end.residual is not None:
        y += end.residual
    if end.out is None:
        return y.astype(end.dtype, copy=False)
    if end.out.data.ptr != y.data.ptr:  # else the sums lie there already
        end.out[...] = y
    return end.out


def _rows(array: Any, m: int, n: int) -> Any:
    """An array [..., N] as rows [M, N] of the same memory; None where they do not lie so."""
    if array.ndim == 2:
        return array
    lines = array.reshape(m, n)
    return lines if np.may_share_memory(lines, array) else None


def _is_same(a: Any, b: Any) -> bool:
    """True for two views of the same numbers in the same places."""

    def facts(array: Any) -> Any:
        address = array.ctypes.data if is_host(array) else array.data.ptr
        return address, array.shape, array.strides, array.dtype

    return bool(facts(a) == facts(b))


def empty_sums(like: Any, shape: tuple[int, ...]) -> Any:
    """An array for float32 sums on the device of another array."""
    return namespace(like).empty(shape, np.float32)
