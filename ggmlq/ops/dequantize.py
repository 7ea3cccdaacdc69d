"""``gq.dequantize`` and ``gq.fake_quantize``: blocks decoded to floats, on the host or on a GPU."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.buffers import frozen
from ..arrays.companion import by_row, multiply
from ..arrays.tensors import untraced
from ..arrays.weights import Float, Out, operation
from ..base.devices import cuda_module, is_host, on_device_of
from ..base.text import Request
from ..base.threads import share
from ..base.unwinding import until_imported
from ..errors import DTypeError
from ..formats import Format
from .epilogue import Wishes, ended, result_of
from .quantize import quantize

# Every format has a ``decode`` in NumPy. Where ``ggmlq/cpu/unpack`` has a file of the format's name,
# compiled code gives the same bits faster. Loading Numba and compiling one format takes half a second, in
# which NumPy decodes some 10**8 weights, so small arrays stay with NumPy: compiled code serves a format
# as soon as more than ``PATIENCE`` of its weights were decoded, the present array included.
SLAB = 1 << 18  # elements that NumPy decodes at a time: temporaries stay in the cache
SHARED = 1 << 19  # elements of a part for a thread: fewer are decoded sooner than it wakes
PATIENCE = 1 << 25  # weights decoded in NumPy, by format, before one is compiled: about 0.1 s

NATIVE = tuple(np.dtype(kind) for kind in (np.float16, np.float32, np.float64))  # what is decoded to at once
PIECE = 1 << 22  # elements that go through float32 to other floats and other strides at a time

Decoder = Callable[[Any, Any], None]

_calls: Counter[str] = Counter()


def decode_into(q: QuantArray, values: NDArray[Any]) -> None:
    """Decode an array on the host into contiguous float16, float32 or float64 of its shape."""
    decode = _compiled_for(q.format, values.size)
    if decode is None:
        _in_numpy(q, values)
    else:
        _compiled(decode, q, values)


def decode_through(q: QuantArray, values: NDArray[Any]) -> None:
    """Decode an array into floats of any kind and any strides, a few rows at a time."""
    stored = q.format.dtype
    wide = np.float64 in (values.dtype, stored) or stored.kind == "i"  # rounded once, not twice
    through = np.float64 if wide else np.float32
    if q.ndim > 2:
        for i in range(len(q)):
            decode_through(q[i], values[i])
        return
    step = max(1, PIECE // q.shape[-1]) if q.ndim == 2 else 1
    for start in range(0, len(q) if q.ndim == 2 else 1, step):
        rows = slice(start, start + step) if q.ndim == 2 else ...
        part = np.empty(q[rows].shape, through)
        decode_into(q[rows], part)
        with np.errstate(over="ignore", invalid="ignore"):
            values[rows] = part


def decode_picked(q: QuantArray, ids: NDArray[np.int64], values: NDArray[Any]) -> None:
    """Decode rows ``ids`` of an array on the host, [N, …, K], into contiguous floats; NaN for no row."""
    if not values.size:
        return
    count, *lengths = q.shape
    if not count:
        values[...] = np.nan
        return
    length, out = values.size // len(ids), values.reshape(len(ids), *lengths)
    there = (ids >= 0) & (ids < count)
    missing = None if there.all() else ~there
    few = max(1, SLAB // length)
    native = values.dtype in NATIVE and q.format.dtype.kind != "i"
    decode = _compiled_for(q.format, values.size) if native else None
    if decode is not None:  # compiled here, as in _compiled
        decode(frozen(np.empty(0, np.uint8)), _halves(values.reshape(-1)[:0]))

    def work(start: int, stop: int) -> None:
        for first in range(start, stop, few):
            rows = slice(first, min(first + few, stop))
            picked = ids[rows] if missing is None else np.where(there[rows], ids[rows], 0)
            part, to = np.ascontiguousarray(q.raw[picked]), out[rows]
            if decode is not None:
                decode(frozen(part.reshape(-1)), _halves(to.reshape(-1)))
            else:
                (_in_numpy if native else decode_through)(QuantArray(q.format, to.shape, part), to)
            if missing is not None:
                to[missing[rows]] = np.nan

    share(work, len(ids), max(1, -(-SHARED // length)))


def _halves(flat: NDArray[Any]) -> NDArray[Any]:
    """Halves as the numbers of 16 bits that compiled code writes; other floats as they are."""
    return flat.view(np.uint16) if flat.dtype == np.float16 else flat


@cache
def decoder(fmt: Format) -> Decoder | None:
    """The compiled decoder of a format, or None where it has none."""
    with until_imported("numba"):
        decode: Decoder | None = importlib.import_module("ggmlq.cpu.unpack.decode").decoder(fmt)
    return decode


def _compiled_for(fmt: Format, weights: int) -> Decoder | None:
    """The compiled decoder, once so many weights of the format were decoded, these included."""
    _calls[fmt.name] += weights
    return decoder(fmt) if _calls[fmt.name] > PATIENCE else None


def _in_numpy(q: QuantArray, values: NDArray[Any]) -> None:
    rows = values.reshape(-1, q.shape[-1] if q.shape else 1)
    blocks = q.blocks.reshape(len(rows), -1)
    step = max(1, SLAB // max(rows.shape[1], 1))
    for start in range(0, len(rows), step):
        rows[start : start + step] = q.format.decode(blocks[start : start + step], values.dtype)


def _compiled(decode: Decoder, q: QuantArray, values: NDArray[Any]) -> None:
    raw = np.ascontiguousarray(q.raw).reshape(-1)
    raw.flags.writeable = False  # one kind of array: it is compiled once
    flat = _halves(values.reshape(-1))
    size, nbytes = q.format.block_size, q.format.dtype.itemsize

    decode(raw[:0], flat[:0])  # compiled here: a thread of the pool would wait for one that compiles

    def work(start: int, stop: int) -> None:
        decode(raw[start * nbytes : stop * nbytes], flat[start * size : stop * size])

    share(work, flat.size // size, max(1, SHARED // size))


@overload
def dequantize(
    q: QuantArray, dtype: type[np.float32] | None = ..., out: None = ...
) -> NDArray[np.float32]: ...
@overload
def dequantize(q: QuantArray, dtype: type[Float], out: None = ...) -> NDArray[Float]: ...
@overload
def dequantize(q: QuantArray, dtype: Any = ..., *, out: Out) -> Out: ...
@overload
def dequantize(q: QuantArray, dtype: Any = ..., out: Any = ...) -> Any: ...


@operation
def dequantize(q: QuantArray, dtype: Any = np.float32, out: Any = None) -> Any:
    """Decode blocks to floats on the device of q, with the bits of ggml's float32.

    Parameters
    ----------
    q : QuantArray
        What to decode.
    dtype : dtype
        float16, bfloat16 (of ml_dtypes), float32 or float64. They are that float32 converted; an f64 or
        integer tensor converts to float64 directly.
    out : array, optional
        Receives the values, in its own dtype, and is returned. It may be of any strides.

    >>> import numpy as np, ggmlq as gq
    >>> q, room = gq.quantize(np.eye(2, 32, dtype=np.float32), "q8_0"), np.empty((4, 32), np.float16)
    >>> gq.dequantize(q, out=room[::2]).shape, float(room[2, 1])
    ((2, 32), 1.0)
    """
    if not isinstance(q, QuantArray):
        raise DTypeError(
            f"dequantize(q): got {type(q).__name__}; it takes a QuantArray; "
            "wrap bytes with QuantArray.from_bytes(raw, format, shape)"
        )
    request: Any = Request("dequantize of", q)
    result = result_of(request, Wishes(out, dtype=dtype), q.shape, q.device)
    if is_host(q.memory):
        return ended(_decoded(q, result.dtype, out), result)
    with on_device_of(request, q.memory, q):
        return ended(_decoded(q, result.dtype, out), result)


def _decoded(q: QuantArray, kind: np.dtype[Any], out: Any = None) -> Any:
    """The values of a checked array, in ``out`` where they are decoded there."""
    if q.scale is not None:
        return _scaled(q, kind, out)
    if not is_host(q.memory):
        return cuda_module("kernels.quantize.decode").dequantize(q, kind)
    if out is not None and np.may_share_memory(out, q.raw):
        out = None
    values = np.empty(q.shape, kind) if out is None else out
    if values.size and kind in NATIVE and values.flags.c_contiguous and values.flags.aligned:
        decode_into(q, values)
    elif values.size:
        decode_through(q, values)
    return values


def _scaled(q: QuantArray, kind: np.dtype[Any], out: Any) -> Any:
    """Blocks times their companion scale, in float32, converted once."""
    wide = np.dtype(np.float64 if q.format.dtype.kind == "i" or q.format.dtype == np.float64 else np.float32)
    values = _decoded(q.unscaled(), wide, out if out is not None and out.dtype == wide else None)
    scale = q.scale
    multiply(values, scale if not np.ndim(scale) else by_row(scale, q.shape[:-1])[..., None])
    return values if out is not None else values.astype(kind, copy=False)


@untraced
def fake_quantize(x: Any, format: str | int | Format, imatrix: Any = None) -> Any:
    """The floats that blocks of x would have: ``gq.quantize(x, format, imatrix).dequantize()``, in float32.

    For training and for search: what a type does to weights, without the blocks. Of a CuPy array it is one,
    too. In torch ``ggmlq.torch.fake_quantize`` has a gradient.

    >>> import numpy as np, ggmlq as gq
    >>> gq.fake_quantize(np.linspace(-1, 1, 32, dtype=np.float32), "q4_0")[[0, 31]]
    array([-1.   ,  0.875], dtype=float32)
    """
    return quantize(x, format, imatrix).dequantize()
