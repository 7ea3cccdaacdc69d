"""The scalars: F32 F16 BF16 F64 and the integers, as formats with one element a block.

Their dtype is a plain NumPy dtype (bfloat16 as its 16 bits). They have no codes and no scale;
they decode and encode by conversion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import UnsupportedError
from .format import Blocks, Floats, Format


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ScalarFormat(Format):
    """A plain element type. ggml encodes the floats up to 32 bits; the rest is only stored."""

    block_size: int = 1
    bfloat: bool = False

    @property
    def can_quantize(self) -> bool:
        return self.bfloat or self.dtype in (np.float32, np.float16)

    def decode(self, blocks: Blocks, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        values = (blocks.astype(np.uint32) << 16).view(np.float32) if self.bfloat else blocks
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(dtype, copy=False)

    def encode(self, x: Floats, imatrix: Floats | None = None) -> Blocks:
        if not self.can_quantize:
            raise UnsupportedError(f"{self.name}.encode(x): {self.name} is stored as it is, not encoded")
        if self.bfloat:
            return bfloat16_bits(x)
        with np.errstate(over="ignore", under="ignore"):
            return x.astype(self.dtype)

    def invalid(self, blocks: Blocks) -> NDArray[np.bool_]:
        if self.dtype.kind == "i":
            return np.zeros(blocks.shape, np.bool_)
        if self.dtype.itemsize > 2:
            return ~np.isfinite(blocks)
        exponent = np.uint16(0x7F80 if self.bfloat else 0x7C00)  # all ones: NaN or infinite
        bits = blocks.view(blocks.dtype.str.replace("f", "u"))
        return np.asarray(bits & exponent == exponent)


def bfloat16_bits(x: Floats) -> NDArray[np.uint16]:
    """The upper 16 bits of finite float32, to nearest, ties to even."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return (bits + (np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)


SCALARS = [
    ScalarFormat(name="f32", id=0, dtype=np.dtype("<f4")),
    ScalarFormat(name="f16", id=1, dtype=np.dtype("<f2")),
    ScalarFormat(name="i8", id=24, dtype=np.dtype("i1")),
    ScalarFormat(name="i16", id=25, dtype=np.dtype("<i2")),
    ScalarFormat(name="i32", id=26, dtype=np.dtype("<i4")),
    ScalarFormat(name="i64", id=27, dtype=np.dtype("<i8")),
    ScalarFormat(name="f64", id=28, dtype=np.dtype("<f8")),
    ScalarFormat(name="bf16", id=30, dtype=np.dtype("<u2"), bfloat=True),
]
