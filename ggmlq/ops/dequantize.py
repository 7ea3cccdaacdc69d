"""``gq.dequantize``: blocks decoded to floats, on the host or on a GPU."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.companion import by_row, multiply
from ..arrays.weights import Float, Out, operation
from ..base.devices import cuda_module, on_device_of
from ..dispatch.checks import check_out, float_dtype
from ..errors import DTypeError
from .decoding import NATIVE, decode_into, decode_through


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
    request = f"dequantize of {q!r}"
    kind = float_dtype(request, dtype)
    if out is not None:
        check_out(request, out, q.shape, q.device)
        kind = out.dtype
    if q.scale is not None:
        return _scaled(q, kind, out)
    if q.device != "cpu":
        with on_device_of(request, q.memory, q):
            values = cuda_module("quantize.decode").dequantize(q, kind)
            if out is None:
                return values
            out[...] = values
            return out
    values = np.empty(q.shape, kind) if out is None else out
    if values.size and out is not None and np.may_share_memory(out, q.raw):
        out[...] = dequantize(q, kind)
    elif values.size and kind in NATIVE and values.flags.c_contiguous and values.flags.aligned:
        decode_into(q, values)
    elif values.size:
        decode_through(q, values)
    return values


def _scaled(q: QuantArray, kind: np.dtype[Any], out: Any) -> Any:
    """Blocks times their companion scale, in float32, converted once."""
    wide = np.dtype(np.float64 if q.format.dtype.kind == "i" or q.format.dtype == np.float64 else np.float32)
    direct = out is not None and out.dtype == wide
    values = dequantize(q.unscaled(), wide, out if direct else None)
    scale = q.scale
    multiply(values, scale if not np.ndim(scale) else by_row(scale, q.shape[:-1])[..., None])
    if out is None:
        return values.astype(kind, copy=False)
    if not direct:
        out[...] = values
    return out
