"""Warm calls on a GPU: products with blocks that repeat recorded launches, or a rung that was chosen before.

A recording has the kinds of x, of y, of the bias and of the residual in its key. Rungs that round their sums
write y as it is wanted and add the bias; of others y is float32 first, and kernels behind do the rest. A warm
call with a residual repeats launches that add it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..base.devices import cuda_device, cuda_driver, cuda_module
from ..dispatch.checks import FLOAT32, takes_sums
from ..dispatch.epilogue import Epilogue
from ..dispatch.ladder import Rung

FLOAT16 = np.dtype(np.float16)


def on_device(
    x: Any, q: Any, kernel: Any, arithmetic: Any, out: Any, bias: Any, dtype: Any, residual: Any = None,
    gate: str | None = None,
) -> Any | None:  # fmt: skip
    """A warm product of CuPy's floats with blocks, on the current device; None where the call is not warm.

    ``gate``: the function of the residual that multiplies the product, of dispatch/epilogue.py.
    """
    if type(q) is not QuantArray or type(memory := q.memory) is not type(x):
        return None
    if dtype is not np.float32 and dtype is not np.float16:
        return None
    gpu, shape, size = cuda_driver(), x.shape, q.shape
    index = gpu.device()
    if not (x.data.device_id == memory.data.device_id == index and (kind := x.dtype.char) in "fe"):
        return None
    if not shape or len(size) != 2 or shape[-1] != size[1]:
        return None
    m, n, stream = math.prod(shape[:-1]), size[0], gpu.stream(index)
    result = (*shape[:-1], n)
    if bias is not None and not _fits(bias, (n,), x, index):
        return None
    wanted = np.dtype(dtype) if out is None else out.dtype
    added, after = bias, None  # by the launches
    if residual is not None:
        if not _fits(residual, result, x, index) or not residual.flags.c_contiguous:
            return None
        if out is not None and residual is not out and gpu.share(out, residual):
            return None
        added, after = (residual, None) if bias is None and m == 1 and gate is None else (bias, residual)
        if after is not None and after.data.ptr % 4:  # kernels read two of 16 bits at a time
            return None
    try:
        letters = letters_of(added, after, gate)
        launches, whole = recording(q, m, kernel, arithmetic, kind, wanted.char, letters)
    except TypeError:  # a key that cannot be hashed names no kernel
        return None
    if launches is None or (residual is not None and not whole) or (stream.ptr and stream.is_capturing()):
        return None  # CuPy's pool would give the memory of a captured product to others
    written = wanted if whole else FLOAT32
    if out is None:
        y = gpu.array(result, written)
    elif (
        _fits(out, result, x, index)
        and takes_sums(gpu.share, out, x, memory, bias, dtype=written)
        and not out.data.ptr % 4
    ):
        y = out
    else:
        return None
    if type(launches) is Rung:
        launches.launch(x.reshape(m, size[1]), q, y.reshape(m, n))
    elif not is_aligned(x):
        return None
    elif whole and letters:
        if bias is not None and not bias.flags.c_contiguous:
            return None
        launches(x.data.ptr, y.data.ptr, stream.ptr, 0, _address(added), _address(after))
    else:
        launches(x.data.ptr, y.data.ptr, stream.ptr)
    if whole:
        return y
    return _finished(gpu, q, m, y, bias, stream.ptr, out is None and dtype is np.float16)


def _address(array: Any) -> int:
    """The address of an array, 0 for None."""
    return 0 if array is None else int(array.data.ptr)


def letters_of(bias: Any, residual: Any, gate: str | None = None) -> str:
    """The letters of the kinds of what launches add, of which one or both may be None, or of a gate."""
    letters = "" if bias is None else bias.dtype.char
    return letters if residual is None else f"{letters}{gate or '+'}{residual.dtype.char}"


def recording(
    q: Any, m: int, kernel: Any, arithmetic: Any, x: str, y: str, addends: str | None
) -> tuple[Any, bool]:  # fmt: skip
    """The recording of a product, and whether it writes y as it is wanted, with all that is added to it; else
    y is float32.

    ``x``, ``y``, ``addends``: letters of their kinds.
    """
    kinds = x + y + (addends or "")
    launches = q.recording(key_of(m, kernel, arithmetic, kinds))
    if launches is not None or kinds == x + "f":
        return launches, type(launches) is not Rung or kinds == x + "f"
    return q.recording(key_of(m, kernel, arithmetic, x + "f")), False


def _fits(array: Any, shape: tuple[int, ...], x: Any, index: int) -> bool:
    """True for an array of floats like x, of this shape and on this device."""
    if type(array) is not type(x) or array.shape != shape:
        return False
    return array.data.device_id == index and array.dtype.char in "fed"


def _finished(gpu: Any, q: Any, m: int, y: Any, bias: Any, stream: int, halves: bool) -> Any:
    """Sums y with the bias added, in float16 if ``halves``; by recorded launches where possible."""
    if bias is not None:
        if bias.dtype.char != "d" and bias.flags.c_contiguous:
            adder(q, m, bias.dtype.char)(bias.data.ptr, y.data.ptr, stream)
        else:
            y += bias
    if not halves:
        return y
    if y.size % 8:
        return y.astype(np.float16)
    rounded = gpu.array(y.shape, FLOAT16)
    halving = _prepared_once(q, ("halves", y.size), lambda: cuda_module("activations.floats").halving(y.size))
    halving(y.data.ptr, rounded.data.ptr, stream)
    return rounded


def key_of(m: int, kernel: str, arithmetic: str | None, kinds: str) -> tuple[Any, ...]:
    """The key of a product of m rows on a GPU.

    ``kinds``: letters of the dtypes of x, y and what is added, if there is any ("H": the bits of bfloat16).
    """
    return (m, kernel, arithmetic) if kinds == "ff" else (m, kernel, arithmetic, kinds)


def adder(q: Any, m: int, kind: str) -> Any:
    """The launch that adds a bias to m rows of results, bit for bit as CuPy's addition does."""
    return _prepared_once(
        q, ("bias", m, kind), lambda: cuda_module("epilogue.results").plan(m, q.shape[0], kind)
    )


def _prepared_once(q: Any, key: Hashable, make: Callable[[], Any]) -> Any:
    """The launches under ``key``; made by ``make()`` the first time, since they need no product."""
    launches = q.recording(key)
    if launches is None:
        q.keep_recording(key, launches := make())
    return launches


def is_aligned(x: Any) -> bool:
    """True if recorded launches can read x: contiguous, and vectors of 16 bytes from its start."""
    return not x.data.ptr % 16 and bool(x.flags.c_contiguous)


def launched(
    rung: Rung, operands: tuple[Any, ...], y: Any, facts: tuple[int, str, str | None], end: Epilogue
) -> bool:  # fmt: skip
    """Launch a rung and record its launches; False, and not launched, where they cannot repeat.

    ``facts``: rows, kernel and arithmetic of the call.
    """
    x, q = operands
    if cuda_device().capturing(x.device.id):
        return False
    kinds = x.dtype.char + y.dtype.char + letters_of(end.bias, end.residual, end.gate)
    place = key_of(*facts, kinds)
    if not rung.repeats:
        q.keep_recording(place, rung)
        return False
    if not is_aligned(x):
        return False
    recorder = cuda_module("machine.recorded")
    if (launches := q.recording(place)) is not None:  # something else of the call is not ordinary
        stream, addresses = cuda_driver().stream(x.device.id).ptr, map(_address, (end.bias, end.residual))
        launches(x.data.ptr, y.data.ptr, stream, 0, *addresses)
    elif (launches := recorder.recorded_product(rung.launch, x, q, y, end)) is not None:
        q.keep_recording(place, launches)
    return True
