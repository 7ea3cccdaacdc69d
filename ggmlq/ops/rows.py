"""Rows of arrays: ``gq.empty`` makes a writable array, ``put`` encodes rows, ``take`` decodes them.

Ids number the first axis from 0. One that no row has, a negative one too, writes nothing and decodes to NaN;
on the host such an id is an error unless the caller says ``check=False``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.buffers import checked_shape
from ..arrays.companion import by_row, multiply
from ..arrays.tensors import untraced
from ..arrays.weights import is_step, operation, written
from ..base import text
from ..base.devices import cuda_device, cuda_module, is_host, namespace, on_device_of
from ..base.text import Request
from ..dispatch.checks import FLOAT32, check_device, check_imatrix
from ..errors import BlockIndexError, DTypeError, HostMemoryError, ShapeError, UnsupportedError
from ..formats import FORMATS, Format
from .dequantize import decode_picked
from .door import integers, operand
from .epilogue import Wishes, ended, result_of
from .operands import look_at, numbered
from .quantize import check_can_quantize, encoded_rows


def empty(shape: int | Sequence[int], format: str | int | Format, device: str = "cpu") -> QuantArray:
    """A writable array for :func:`ggmlq.put`; all its bytes are 0, which decode to zeros.

    Parameters
    ----------
    shape : int or sequence of int
        The logical shape in NumPy order, counted in elements; the last axis is whole blocks.
    format : str, int or Format
        Name in any case, ggml id, or Format.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    >>> import ggmlq as gq
    >>> q = gq.empty((4, 64), "q8_0")
    >>> q, q.writable
    (<QuantArray q8_0 (4, 64), ne [64, 4], 272 bytes, cpu>, True)
    """
    fmt = FORMATS[format]
    request = f"empty({text.short(shape)}, {fmt.name!r})"
    dims = checked_shape(request, fmt, shape)
    size = (*dims[:-1], fmt.row_bytes(dims[-1] if dims else 1))
    if (nbytes := math.prod(size)) >= 2**63:
        raise ShapeError(
            f"{request}: it has {nbytes} bytes; an array has fewer than 2**63; pass a smaller shape"
        )
    if isinstance(device, str) and device == "cpu":  # an array is equal to no word
        try:
            return QuantArray(fmt, dims, np.zeros(size, np.uint8))
        except MemoryError:
            raise HostMemoryError(
                f"{request}: it has {text.size(nbytes)}, more than the machine or the limit of this process "
                "leaves; pass a smaller shape"
            ) from None
    with cuda_device().named(device):
        return QuantArray(fmt, dims, cuda_device().cupy().zeros(size, np.uint8)).as_writable()


@untraced
def put(q: QuantArray, ids: Any, x: Any, *, check: bool | None = None) -> None:
    """Encode rows of x into rows ``ids`` of q, with the bytes of :func:`ggmlq.quantize`.

    ``q[ids] = x`` is the same. Products after it see the new rows: prepared copies of q are made again. The
    same holds for views of q.

    Parameters
    ----------
    q : QuantArray
        A writable array [N, …, K]: of :func:`ggmlq.empty`, or a ``copy()``.
    ids : array of int
        Rows to write, of any shape and integer type, on the device of q. If an id comes twice its last row
        is written. An id that no row has writes nothing.
    x : array of floats
        float16, bfloat16, float32 or float64 of shape ``ids.shape + q.shape[1:]``.
    check : bool, optional
        Raise an error for an id that no row has. By default ids are looked at on the host, and not on a
        GPU, where that waits for the device. There a value that is not finite is an error with
        ``check=True`` alone, after which rows of x may be written; without, its block is garbage.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.empty((4, 32), "f16")
    >>> gq.put(q, [2, 0], np.stack([np.full(32, 1.0), np.full(32, 3.0)]))
    >>> q.dequantize()[:, 0]
    array([3., 0., 1., 0.], dtype=float32)
    """
    request: Any = Request("put(q, ids, x) with", q)
    _check_rows(request, q)
    _put(request, q, ids, x, check)


def _put(request: str, q: QuantArray, ids: Any, x: Any, check: bool | None) -> None:
    if not q.writable:
        raise DTypeError(
            f"{request}: q is read-only, as arrays of files and of gq.quantize are; rows are put into "
            "arrays of gq.empty and into copies; pass q.copy()"
        )
    if q.scale is not None:
        raise UnsupportedError(
            f"{request}: q has a companion scale, and rows of x have none; put x divided by q.scale into a "
            "copy without it, QuantArray.from_bytes(q.raw.copy(), q.format, q.shape)"
        )
    check_can_quantize(request, q.format)
    check_imatrix(request, q.format, None, q.shape[-1])
    put_rows(request, q, *row_operands(request, q, ids, x), check, unique=False)


@operation
def put_at(q: QuantArray, index: Any, x: Any) -> None:
    """``q[index] = x``: :func:`put` into the rows that an index along the first axis picks, as in NumPy."""
    request: Any = Request(lambda: f"{written(index)} = x of", q)
    _check_rows(request, q)
    if is_host(index):
        if not is_step(index):
            raise BlockIndexError(
                f"{request}: rows are put by an integer, a slice, or integers or bools along the first axis; "
                "write gq.put(q, ids, x), or q.blocks[...] = … for blocks"
            )
        try:
            index = np.arange(len(q))[index]
        except IndexError as error:
            raise BlockIndexError(f"{request}: {error}; q has {len(q)} rows; stay within them") from None
        with on_device_of(request, q.memory, q):
            index = namespace(q.memory).asarray(index)
    request = Request("put(q, ids, x) with", q)
    _put(request, q, index, x, None)


def row_operands(request: str, q: QuantArray, ids: Any, x: Any, name: str = "x") -> tuple[Any, Any]:
    """Ids and floats, checked: x has a row of q for each id. Compiled encoders write as much as x has."""
    rows = _ids(request, ids, q)
    floats = operand(request, x, name, bfloat16=True)
    check_device(request, floats.device, q, name)
    if floats.shape != (shape := (*rows.shape, *q.shape[1:])):
        raise ShapeError(
            f"{request}: {name} has shape {floats.shape}, ids {rows.shape}; {name} has a row of q for each "
            f"id, of shape {shape}; reshape {name}, or pass as many ids"
        )
    return rows, floats.array


def put_rows(
    request: str, q: QuantArray, ids: Any, x: Any, check: bool | None = False, unique: bool = True
) -> None:  # fmt: skip
    """:func:`put` of operands that :func:`row_operands` gave; ``unique``: no two ids are equal."""
    if is_host(q.memory):
        _look(request, q, ids, check is None or check)
        if x.size:
            _encode(request, q, ids, x)
            q.written()
        return
    with on_device_of(request, q.memory, q):
        _look(request, q, ids, check)
        if x.size:
            cuda_module("kernels.quantize.rows").put(request, q, ids, x, bool(check), unique)
            q.written()


def _encode(request: str, q: QuantArray, rows: NDArray[np.int64], x: NDArray[Any]) -> None:
    """Encode all of x, then write: an error leaves q as it was, and x may lie in the memory of q."""
    at, parts = rows.reshape(-1), encoded_rows(request, q.format, x).reshape(-1, *q.raw.shape[1:])
    there = (at >= 0) & (at < len(q))
    if not there.all():
        at, parts = at[there], parts[there]
    q.raw[at] = parts  # of equal ids NumPy keeps the last


@untraced
def take(
    q: QuantArray, ids: Any, dtype: Any = np.float32, out: Any = None, *, check: bool | None = None
) -> Any:
    """Decode rows ``ids`` of q to floats: the values of ``q[ids].dequantize()``, without the copy of blocks.

    Parameters
    ----------
    q : QuantArray
        An array [N, …, K] of any format.
    ids : array of int
        Rows, of any shape and integer type, on the device of q. The result has the shape
        ``ids.shape + q.shape[1:]``.
    dtype : dtype
        float16, bfloat16 (of ml_dtypes), float32 or float64.
    out : array, optional
        Receives the values, in its own dtype, and is returned.
    check : bool, optional
        Raise an error for an id that no row has, which otherwise gives a row of NaN. By default ids are
        looked at on the host, and not on a GPU, where that waits for the device.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.arange(4.0)[:, None] * np.ones(32), "f16")
    >>> gq.take(q, [3, 1, 3])[:, 0], gq.take(q, [[7]], np.float16, check=False)[0, 0, 0]
    (array([3., 1., 3.], dtype=float32), np.float16(nan))
    """
    request: Any = Request("take(q, ids) of", q)
    _check_rows(request, q)
    rows = _ids(request, ids, q)
    result = result_of(request, Wishes(out, dtype=dtype), (*rows.shape, *q.shape[1:]), q.device)
    if is_host(q.memory):
        _look(request, q, rows, check is None or check)
        return ended(_decoded(q, rows, result.dtype, out), result)
    with on_device_of(request, q.memory, q):
        _look(request, q, rows, check)
        return ended(_decoded(q, rows, result.dtype), result)


def _decoded(q: QuantArray, rows: Any, kind: np.dtype[Any], out: Any = None) -> Any:
    """The values of checked rows; on the host in ``out`` where it holds them as they are decoded."""
    if q.scale is not None:
        return _scaled(q, rows, kind)
    if not is_host(q.memory):
        return cuda_module("kernels.quantize.decode").take(q, rows, kind)
    apart = out is not None and not any(np.may_share_memory(out, one) for one in (q.raw, rows))
    direct = apart and out.flags.c_contiguous and out.flags.aligned
    values = out if direct else np.empty((*rows.shape, *q.shape[1:]), kind)
    decode_picked(q, rows.reshape(-1), values)
    return values


def _scaled(q: QuantArray, rows: Any, kind: np.dtype[Any]) -> Any:
    """Decoded rows times the companion scale, in float32, converted once."""
    values = _decoded(q.unscaled(), rows, FLOAT32)
    scale, xp = q.scale, namespace(rows)
    if np.ndim(scale) and len(q):
        scale = xp.asarray(by_row(scale, q.shape[:-1]))[xp.clip(rows, 0, len(q) - 1)][..., None]
    if len(q):  # else all rows are NaN
        multiply(values, scale)
    return values.astype(kind, copy=False)


def _check_rows(request: str, q: Any) -> None:
    if not isinstance(q, QuantArray):
        raise DTypeError(
            f"{request}: q is a {type(q).__name__}; rows are those of a QuantArray; make one with "
            'gq.empty((N, K), "q8_0") or gq.quantize(w, "q8_0")'
        )
    if q.ndim < 2:
        raise ShapeError(
            f"{request}: q is {q.ndim}-D; it needs rows, [N, K]; reshape it with q.reshape(1, -1)"
        )


def _ids(request: str, ids: Any, q: QuantArray) -> Any:
    """Ids as int64 on the device of q, of their shape."""
    way = "ids.astype(np.int64), a mask with np.flatnonzero(mask)"
    return numbered(request, integers(request, ids), q, "rows", way)


def _look(request: str, q: QuantArray, ids: Any, check: bool | None) -> None:
    """Refuse ids that no row has, if the caller wants to know."""
    if check:
        look_at(request, ids, q, "rows", "to pass over such ids")
