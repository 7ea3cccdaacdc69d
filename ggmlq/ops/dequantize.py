"""Blocks to floats: check, choose who decodes, run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..array import QuantArray
from ..checks import float_dtype
from ..devices import cuda_module, on_device_of
from ..errors import DTypeError
from ..matrix import operation
from .decoding import decode_into


@operation
def dequantize(q: QuantArray, dtype: DTypeLike | None = np.float32) -> Any:
    """Decode blocks to floats on the device of q, with the bits of ggml's float32.

    float16 and float64 are that float32 converted (an f64 or integer tensor converts directly).
    """
    if not isinstance(q, QuantArray):
        raise DTypeError(
            f"dequantize(q): got {type(q).__name__}; it takes a QuantArray; "
            "wrap bytes with QuantArray.from_bytes(raw, format, shape)"
        )
    kind = float_dtype(f"dequantize of {q!r}", dtype)
    if q.device != "cpu":
        with on_device_of(f"dequantize of {q!r}", q.memory, q):
            return cuda_module("dequantize").dequantize(q, kind)
    values = np.empty(q.shape, kind)
    if values.size:
        decode_into(q, values)
    return values
