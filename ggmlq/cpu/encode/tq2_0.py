"""The encoder of tq2_0: four runs of 32 values two bits apart in the same bytes."""

from __future__ import annotations

from typing import Any

from ...formats.tq2_0 import DTYPE, QS, D
from ..lanes import load, store
from ..machine.jit import jit
from ._simple import encoder, inverse, put_half
from ._ternary import scale, trits

SIZE = DTYPE.itemsize


@jit
def kernel(values: Any, blocks: Any) -> None:
    for b in range(len(values) // 256):
        at = b * SIZE
        d = scale(values, b * 256)
        put_half(blocks, at + D, d)
        k = inverse(d)
        for h in range(2):
            x = b * 256 + h * 128
            packed = trits(load(values, x, 32), k) & 3
            packed = packed | (trits(load(values, x + 32, 32), k) & 3) << 2
            packed = packed | (trits(load(values, x + 64, 32), k) & 3) << 4
            packed = packed | trits(load(values, x + 96, 32), k) << 6
            store(blocks, at + QS + h * 32, packed)


encode = encoder(kernel)
