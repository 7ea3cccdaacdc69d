"""The operations: check, choose a kernel, run."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import ladder
from .array import QuantArray, _frozen, check_row, cuda_device, is_host
from .errors import DeviceError, DTypeError, NonFiniteError, ShapeError, UnsupportedError
from .formats import FORMATS, Format

SLAB = 1 << 18  # elements encoded or decoded at a time: their temporaries stay in the cache


def to_host(x: Any) -> Any:
    """A CuPy array as a NumPy array; anything else as it is."""
    return x if is_host(x) else x.get()


# --- quantize -------------------------------------------------------------------------------


def quantize(x: Any, format: str | int | Format, *, imatrix: Any = None) -> QuantArray:
    """Encode floats into blocks, with the bytes that ggml writes.

    Parameters
    ----------
    x : array of floats
        float16, bfloat16, float32 or float64; the last axis is cut into blocks. A CuPy array
        gives a QuantArray on its device (encoded on the host in this version).
    format : str, int or Format
        Name in any case, ggml id, or Format.
    imatrix : array, optional
        Importance of each column, 1-D of length K. Formats whose encoder in ggml takes no
        notice of it ignore it here too.

    Raises
    ------
    NonFiniteError
        On the first NaN or infinity, with its place. ggml would store garbage.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.linspace(-1, 1, 32, dtype=np.float32), "q4_0")
    >>> q.blocks["d"][0], np.asarray(q)[[0, 31]]
    (np.float16(0.125), array([-1.   ,  0.875], dtype=float32))
    """
    fmt = FORMATS[format]
    asked = f"quantize(x, {fmt.name!r})"
    if not is_host(x):
        device = f"cuda:{x.device.id}"
        return quantize(x.get(), fmt, imatrix=to_host(imatrix)).to(device)
    _check_can_quantize(asked, fmt, imatrix)
    x = as_floats(asked, x)
    if x.ndim == 0:
        raise ShapeError(f"{asked}: x is a scalar; blocks need an axis, pass at least 1-D")
    check_row(asked, fmt, x.shape[-1])
    weights = None if imatrix is None else _check_imatrix(asked, imatrix, x.shape[-1])
    raw = np.empty((*x.shape[:-1], fmt.row_bytes(x.shape[-1])), np.uint8)
    if x.size:
        rows, blocks = x.reshape(-1, x.shape[-1]), raw.reshape(-1, raw.shape[-1]).view(fmt.dtype)
        for part in _slabs(*rows.shape):
            values = _finite_float32(asked, rows[part], x.shape, part.start)
            blocks[part] = fmt.encode(values, weights)
        _warn_of_invalid(asked, fmt, blocks)
    return QuantArray(fmt, x.shape, _frozen(raw))


def _check_can_quantize(asked: str, fmt: Format, imatrix: Any) -> None:
    if not fmt.can_quantize:
        able = ", ".join(f.name for f in FORMATS.values() if f.can_quantize)
        raise UnsupportedError(
            f"{asked}: this version decodes {fmt.name} but cannot encode it; it encodes {able}; "
            "blocks made elsewhere come in through QuantArray.from_bytes"
        )
    if imatrix is not None and getattr(fmt, "imatrix", "ignored") == "optional":
        raise UnsupportedError(
            f"{asked} with an imatrix: this version encodes {fmt.name} without weighting only; "
            "pass imatrix=None for ggml's unweighted encoding"
        )


def _check_imatrix(asked: str, imatrix: Any, columns: int) -> NDArray[np.float32]:
    weights = as_floats(asked, imatrix)
    if weights.shape != (columns,):
        raise ShapeError(
            f"{asked}: imatrix has shape {weights.shape}, rows have {columns} elements; "
            "an imatrix is 1-D with one weight a column"
        )
    rows = _finite_float32(f"{asked}: imatrix", weights[None], weights.shape, 0)
    return rows.reshape(columns)


def _slabs(rows: int, columns: int) -> list[slice]:
    step = max(1, SLAB // max(columns, 1))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _finite_float32(
    asked: str, rows: NDArray[Any], shape: tuple[int, ...], first: int
) -> NDArray[np.float32]:
    """Rows as contiguous float32; the first value that is not finite is an error with its index."""
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(rows, np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        place = tuple(int(i) for i in np.unravel_index(first + row, shape[:-1] or (1,)))
        index = (*place[: len(shape) - 1], column)
        raise NonFiniteError(
            f"{asked}: x{list(index)} is {rows[row, column]}; blocks hold finite float32 values "
            "only; replace it, for example with np.nan_to_num(x)"
        )
    return values


def _warn_of_invalid(asked: str, fmt: Format, blocks: NDArray[Any]) -> None:
    """Values that are finite as float32 may still be too large for a half scale."""
    bad = fmt.invalid(blocks)
    if bad.any():
        row, block = np.argwhere(bad)[0].tolist()
        start = block * fmt.block_size
        warnings.warn(
            f"{asked}: {int(bad.sum())} blocks have a scale or value that {fmt.name} cannot hold "
            f"(the first in row {row}, columns {start} to {start + fmt.block_size - 1}) and will "
            "not decode to what went in; rescale x first",
            RuntimeWarning,
            stacklevel=3,
        )


# --- dequantize -----------------------------------------------------------------------------


def dequantize(q: QuantArray, dtype: DTypeLike = np.float32) -> Any:
    """Decode blocks to floats on the device of q, with the bits of ggml's float32.

    float16 and float64 are that float32 converted (an f64 or integer tensor converts directly).
    On a GPU this version decodes on the host and copies.
    """
    if not isinstance(q, QuantArray):
        raise DTypeError(
            f"dequantize(q): got {type(q).__name__}; it takes a QuantArray; "
            "wrap bytes with QuantArray.from_bytes(raw, format, shape)"
        )
    kind = np.dtype(dtype)
    if kind.kind != "f":
        raise DTypeError(
            f"dequantize(q, {kind}): values are floats; ask for float16, float32 or float64, "
            "or look at q.blocks for the stored integers"
        )
    if q.device != "cpu":
        return cuda_device().upload(dequantize(q.to("cpu"), kind), q.device)
    values = np.empty(q.shape, kind)
    if values.size:
        rows = values.reshape(-1, q.shape[-1] if q.shape else 1)
        blocks = q.blocks.reshape(len(rows), -1)
        for part in _slabs(*rows.shape):
            rows[part] = q.format.decode(blocks[part], kind)
    return values


# --- linear ---------------------------------------------------------------------------------


def linear(
    x: Any,
    q: QuantArray,
    *,
    kernel: str = "auto",
    arithmetic: str | None = None,
    out: Any = None,
    bias: Any = None,
    dtype: DTypeLike = np.float32,
) -> Any:
    """Multiply activations with quantized weights: ``x [..., K] @ q [N, K].T``.

    Parameters
    ----------
    x : array of floats
        Activations [..., K], on the device of q.
    q : QuantArray
        Weights [N, K].
    kernel : str
        ``"auto"``, or a kernel's name such as ``"cpu:dequant"``; see :func:`ggmlq.kernels`.
    arithmetic : str, optional
        Choose only kernels that multiply in this arithmetic.
    out : array, optional
        Receives the result, in its own dtype, and is returned.
    bias : array, optional
        Added to each row, [N].
    dtype : dtype
        Of the result, float16, float32 or float64; the sums are float32 or better.

    Returns
    -------
    array
        [..., N] on the device of q.

    >>> import numpy as np, ggmlq as gq
    >>> w = gq.quantize(np.eye(3, 32, dtype=np.float32), "q8_0")
    >>> gq.linear(np.ones(32, np.float32), w) > 0.99
    array([ True,  True,  True])
    """
    x = check_linear("linear(x, q)", x, q)
    n, k = q.shape
    shape = (*x.shape[:-1], n)
    rows = x.reshape(math.prod(x.shape[:-1]), k)
    kind = _check_out("linear(x, q)", x, q, out, shape, dtype)
    problem = ladder.Problem("linear", q.format, len(rows), n, k, q.device.partition(":")[0])
    rung = ladder.choose(problem, kernel, arithmetic)
    direct = out is not None and kind == np.float32 and out.flags.c_contiguous
    if direct and not np.may_share_memory(out, x):
        y = out.reshape(len(rows), n)
    else:
        y = np.empty((len(rows), n), np.float32)
    rung.launch(rows, q, y)
    if bias is not None:
        y += _check_bias("linear(x, q)", bias, q)
    if out is None:
        with np.errstate(over="ignore"):
            return y.astype(kind, copy=False).reshape(shape)
    if y.base is not out and y is not out:
        out[...] = y.reshape(shape)
    return out


def check_linear(asked: str, x: Any, q: QuantArray) -> Any:
    """The operands of ``x @ q.T`` checked; x comes back as an array of floats."""
    if not isinstance(q, QuantArray):
        raise DTypeError(
            f"{asked}: the weights are a {type(q).__name__}; they must be a QuantArray; "
            "make one with gq.quantize(w, 'q8_0') or QuantArray.from_bytes"
        )
    if q.ndim != 2:
        way = f"q[e] for one of its {q.shape[0]} matrices" if q.ndim > 2 else "q[i:i+1] for one row"
        raise ShapeError(f"{asked}: {q!r} is {q.ndim}-D; weights are [N, K]; pass {way}")
    if is_host(x) != (q.device == "cpu"):
        here = "the host" if is_host(x) else f"cuda:{x.device.id}"
        raise DeviceError(
            f"{asked}: x is on {here}, q on {q.device}; both must be on one device; "
            'move q with q.to("cpu") or q.to("cuda"), or x with cupy.asarray(x) or x.get()'
        )
    x = as_floats(asked, x)
    if x.ndim == 0 or x.shape[-1] != q.shape[1]:
        raise ShapeError(
            f"{asked}: x has shape {x.shape}, q {q.shape}; the last axis of both is K; "
            f"pass x as [..., {q.shape[1]}]"
        )
    return x


def as_floats(asked: str, x: Any) -> Any:
    """X as an array of float16, float32 or float64 (bfloat16 as float32)."""
    if isinstance(x, QuantArray):
        raise DTypeError(f"{asked}: x is {x!r}; floats are expected; pass x.dequantize()")
    if is_host(x):
        x = np.asarray(x)
    if x.dtype.name == "bfloat16":
        return x.astype(np.float32)
    if x.dtype.kind != "f" or x.dtype.itemsize > 8:
        raise DTypeError(
            f"{asked}: x is {x.dtype}; float16, bfloat16, float32 and float64 are taken; "
            "convert with x.astype(np.float32)"
        )
    return x


def _check_out(
    asked: str, x: Any, q: QuantArray, out: Any, shape: tuple[int, ...], dtype: DTypeLike
) -> np.dtype[Any]:
    kind = np.dtype(dtype if out is None else getattr(out, "dtype", None))
    if kind.kind != "f":
        raise DTypeError(f"{asked}: a result of {kind} was asked for; it is a float array")
    if out is not None and is_host(out) != is_host(x):
        raise DeviceError(f"{asked}: out is not on {q.device}, where x and q are; allocate it there")
    if out is not None and out.shape != shape:
        raise ShapeError(f"{asked}: out has shape {out.shape}, the result {shape}; they must agree")
    return kind


def _check_bias(asked: str, bias: Any, q: QuantArray) -> Any:
    if is_host(bias) != (q.device == "cpu"):
        raise DeviceError(f"{asked}: bias is not on {q.device}, where x and q are; move it there")
    bias = as_floats(f"{asked}: bias", bias)
    if bias.shape != (q.shape[0],):
        raise ShapeError(f"{asked}: bias has shape {bias.shape}; it is one value a row of q, [{q.shape[0]}]")
    return bias
