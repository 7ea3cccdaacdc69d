"""The kinds of floats that kernels write as results, and the stores of 16 bytes of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import bf16x2, ptx
from .atoms import inlined
from .language import cuda, uint32

# Kinds of values with the bytes of one. There is no NumPy dtype for bfloat16: its bits are uint16.
KINDS = {"float32": 4, "float16": 2, "bfloat16": 2}
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
LEAST = {"float32": (7, 5), "float16": (7, 5), "bfloat16": (8, 0)}


def storing(kind: str) -> Any:
    """The device function that stores 16 bytes of values of a kind, from v[i] on."""
    return store_floats if kind == "float32" else _storing_halves(kind == "bfloat16")


@inlined
def store_floats(at: Any, v: Any, i: Any) -> None:
    """Four floats as they are."""
    bits_of = ptx.bits_of
    ptx.store16(at, bits_of(v[i]), bits_of(v[i + 1]), bits_of(v[i + 2]), bits_of(v[i + 3]))


def _storing_halves(bfloat: bool) -> Any:
    half_bits, narrowed, store16 = ptx.half_bits, bf16x2.narrowed, ptx.store16

    @inlined
    def store_halves(at: Any, v: Any, i: Any) -> None:
        words = cuda.local.array(4, uint32)
        for w in range(4):
            low, high = v[i + 2 * w], v[i + 2 * w + 1]
            if bfloat:
                words[w] = narrowed(low, high)
            else:
                words[w] = half_bits(low) | half_bits(high) << 16
        store16(at, words[0], words[1], words[2], words[3])

    return store_halves
