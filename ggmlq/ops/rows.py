"""Rows of arrays: ``gq.empty`` makes a writable array, ``put`` encodes rows, ``take`` decodes them.

Ids number the first axis from 0. One that no row has, a negative one too, writes nothing and decodes to NaN;
on the host such an id is an error unless the caller says ``check=False``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.buffers import checked_shape, refuse_mask
from ..arrays.companion import by_row, multiply
from ..arrays.tensors import array_of, bits_of, is_tensor, untraced
from ..base.devices import cuda_device, cuda_module, device_of, is_host, namespace, on_device_of
from ..base.text import Request
from ..dispatch.checks import as_floats, check_device, check_imatrix, check_out, float_dtype
from ..errors import BlockIndexError, DTypeError, ShapeError, UnsupportedError
from ..formats import FORMATS, Format
from .decoding import decode_picked
from .encoding import encode_rows
from .quantize import check_can_quantize, warn_of_invalid


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
    dims = checked_shape(f"empty({shape!r}, {fmt.name!r})", fmt, shape)
    size = (*dims[:-1], fmt.row_bytes(dims[-1] if dims else 1))
    if device == "cpu":
        return QuantArray(fmt, dims, np.zeros(size, np.uint8))
    with cuda_device().named(device):
        return QuantArray(fmt, dims, cuda_device().cupy().zeros(size, np.uint8)).as_writable()


@untraced
def put(q: QuantArray, ids: Any, x: Any, *, check: bool | None = None) -> None:
    """Encode rows of x into rows ``ids`` of q, with the bytes of :func:`ggmlq.quantize`.

    Products after it see the new rows: prepared copies of q are made again. The same holds for views of q.

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
    rows, x = _ids(request, ids, q), array_of(request, x, "x") if is_tensor(x) else x
    x = as_floats(request, x, bfloat16=True)
    check_device(request, device_of(x), q)
    if x.shape != (*rows.shape, *q.shape[1:]):
        raise ShapeError(
            f"{request}: x has shape {x.shape}, ids {rows.shape}; x has a row of q for each id, of shape "
            f"{(*rows.shape, *q.shape[1:])}; reshape x, or pass as many ids"
        )
    with on_device_of(request, q.memory, q):
        rows = _seen(request, rows, q, check)
        if not x.size:
            return
        if is_host(q.memory):
            _put(request, q, rows, x)
        else:
            cuda_module("quantize.rows").put(request, q, rows, x, bool(check))
        q.written()


def put_rows(request: str, q: QuantArray, ids: Any, x: Any) -> None:
    """:func:`put` of checked operands, of which no two ids are equal and none is looked at."""
    with on_device_of(request, q.memory, q):
        if not x.size:
            return
        if is_host(q.memory):
            _put(request, q, ids, x)
        else:
            cuda_module("quantize.rows").put(request, q, ids, x, False, True)
        q.written()


def _put(request: str, q: QuantArray, rows: NDArray[np.int64], x: NDArray[Any]) -> None:
    """Encode all of x, then write: an error leaves q as it was, and x may lie in the memory of q."""
    encoded = np.empty((*x.shape[:-1], q.raw.shape[-1]), np.uint8)
    flat = encoded.reshape(-1, encoded.shape[-1])
    if not encode_rows(request, q.format, x, None, flat):
        warn_of_invalid(request, q.format, flat.view(q.format.dtype), x.shape)
    at, parts = rows.reshape(-1), encoded.reshape(-1, *q.raw.shape[1:])
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
    rows, kind = _ids(request, ids, q), float_dtype(request, dtype)
    shape = (*rows.shape, *q.shape[1:])
    if out is not None:
        check_out(request, out, shape, q.device)
        kind = out.dtype
    with on_device_of(request, q.memory, q):
        rows = _seen(request, rows, q, check)
        if q.scale is not None:
            values = _scaled(q, rows, kind)
        elif not is_host(q.memory):
            values = cuda_module("quantize.decode_rows").take(q, rows, kind)
        else:
            apart = out is not None and not any(np.may_share_memory(out, one) for one in (q.raw, rows))
            direct = apart and out.flags.c_contiguous and out.flags.aligned
            values = out if direct else np.empty(shape, kind)
            decode_picked(q, rows.reshape(-1), values)
        if out is None or values is out:
            return values
        out[...] = values
        return out


def _scaled(q: QuantArray, rows: Any, kind: np.dtype[Any]) -> Any:
    """Decoded rows times the companion scale, in float32, converted once."""
    values = take(q.unscaled(), rows, np.float32, check=False)
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
    refuse_mask(request, ids)
    if is_tensor(ids):
        ids = bits_of(request, ids, "ids")
    if is_host(ids):
        try:
            ids = np.asarray(ids)
        except (ValueError, TypeError) as error:
            raise DTypeError(f"{request}: ids are no array ({error}); pass integers") from None
    if ids.dtype.kind not in "iu" and ids.size:
        raise DTypeError(
            f"{request}: ids are {ids.dtype}; they are numbers of rows, integers of any type; convert with "
            "ids.astype(np.int64), a mask with np.flatnonzero(mask)"
        )
    check_device(request, device_of(ids), q, "ids")
    return ids.astype(np.int64, order="C", copy=False)  # the largest of uint64 become negative: no row


def _seen(request: str, rows: Any, q: QuantArray, check: bool | None) -> Any:
    """The ids, looked at if the caller wants it or they are on the host."""
    if (is_host(rows) if check is None else check) and rows.size:
        wrong = (rows < 0) | (rows >= len(q))
        if bool(wrong.any()):
            at = tuple(int(i) for i in np.argwhere(wrong if is_host(wrong) else wrong.get())[0])
            raise BlockIndexError(
                f"{request}: ids[{', '.join(map(str, at))}] is {int(rows[at])}; q has {len(q)} rows, "
                "numbered from 0; correct the ids, or pass check=False to pass over such ids"
            )
    return rows
