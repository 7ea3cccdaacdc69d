"""The encoder of bf16: floats to their upper 16 bits, to nearest, ties to even, 32 at a time."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.format import Bytes, Floats
from ..lanes import convert, load, recast, store
from ..machine.jit import jit

U8, U16, U32 = types.uint8, types.uint16, types.uint32


@jit
def kernel(values: Any, blocks: Any) -> None:
    whole = len(values) - len(values) % 32
    for i in range(0, whole, 32):
        bits = recast(load(values, i, 32), U32)
        upper = convert(bits + 0x7FFF + (bits >> 16 & 1) >> 16, U16)
        store(blocks, i * 2, recast(upper, U8))
    for i in range(whole, len(values)):
        last = recast(values[i], U32)
        store(blocks, i * 2, recast(U16(last + 0x7FFF + (last >> 16 & 1) >> 16), U8))


def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    kernel(values.reshape(-1), blocks.reshape(-1))
