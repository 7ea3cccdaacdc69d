"""The encoder of nvfp4: four groups of 16, each a scale of eight bits and nearest levels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ...formats.nvfp4 import DTYPE, QS, UE4M3, D
from ..lanes import load, part, recast, store
from ..machine.jit import inner, jit
from ._fp4 import nearest_fp4
from ._simple import encoder, largest

SIZE = DTYPE.itemsize
I32 = types.int32


@inner
def ue4m3(v: Any) -> Any:
    """The byte of a float that is not negative, as ``encode_ue4m3`` of the format's file."""
    bits = np.int64(recast(v, I32))
    if bits >> 23 <= 120:
        return min(np.int64(v * np.float32(512) + np.float32(0.5)), 7)
    byte = (bits + (1 << 19) >> 20) - (120 << 3)
    return 0x7E if byte >= 15 << 3 else byte


@jit
def kernel(values: Any, blocks: Any) -> None:
    for b in range(len(values) // 64):
        at = b * SIZE
        for g in range(4):
            x = load(values, b * 64 + g * 16, 16)
            d = ue4m3(largest(x) / np.float32(6))
            blocks[at + D + g] = d
            q = nearest_fp4(x, UE4M3[d])
            store(blocks, at + QS + g * 8, part(q, 0, 8) | part(q, 8, 8) << 4)


encode = encoder(kernel)
