"""Blocks as gguf-py hands them around: uint8 [..., bytes per row] beside a type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ggmlq as gq

from .constants import GGML_QUANT_SIZES, GGMLQuantizationType


class QuantError(gq.GGMLQError, ValueError):
    """Rows that are no whole blocks of their type."""


def quant_shape_to_byte_shape(shape: Sequence[int], quant_type: Any) -> tuple[int, ...]:
    """The shape of the bytes of an array of this shape, counted in elements."""
    size, nbytes = _sizes(quant_type)
    if shape[-1] % size:
        raise QuantError(
            f"quant_shape_to_byte_shape({tuple(shape)}, {_name(quant_type)}): rows have {shape[-1]} "
            f"elements, blocks hold {size}; rows are whole blocks"
        )
    return (*shape[:-1], shape[-1] // size * nbytes)


def quant_shape_from_byte_shape(shape: Sequence[int], quant_type: Any) -> tuple[int, ...]:
    """The shape in elements of an array whose bytes have this shape."""
    size, nbytes = _sizes(quant_type)
    if shape[-1] % nbytes:
        raise QuantError(
            f"quant_shape_from_byte_shape({tuple(shape)}, {_name(quant_type)}): rows have {shape[-1]} bytes, "
            f"blocks {nbytes}; rows are whole blocks"
        )
    return (*shape[:-1], shape[-1] // nbytes * size)


def dequantize(data: NDArray[Any], qtype: Any) -> NDArray[np.float32]:
    """Decode blocks, uint8 [..., bytes per row], or an array of the type's own floats, to float32.

    >>> import numpy as np
    >>> dequantize(quantize(np.ones((2, 32), np.float32), GGMLQuantizationType.Q8_0), 8).shape
    (2, 32)
    """
    fmt = gq.formats[int(qtype)]
    data = np.asarray(data)
    if fmt.name == "f32":
        return data.view(np.float32)
    raw = np.ascontiguousarray(data).view(np.uint8)
    shape = quant_shape_from_byte_shape(raw.shape, qtype)
    return gq.QuantArray.from_bytes(raw, fmt, shape).dequantize()


def quantize(data: NDArray[Any], qtype: Any) -> NDArray[Any]:
    """Encode floats to blocks, uint8 [..., bytes per row], with ggml's bytes; float32 and float16 stay so."""
    fmt = gq.formats[int(qtype)]
    data = np.asarray(data)
    if fmt.name in ("f32", "f16"):
        return data.astype(np.float32 if fmt.name == "f32" else np.float16, copy=False)
    raw: NDArray[np.uint8] = gq.quantize(data.astype(np.float32, copy=False), fmt).raw
    return raw


def _sizes(quant_type: Any) -> tuple[int, int]:
    return GGML_QUANT_SIZES[GGMLQuantizationType(int(quant_type))]


def _name(quant_type: Any) -> str:
    return str(GGMLQuantizationType(int(quant_type)).name)
