"""Floats to halves, 32 at a time."""

from __future__ import annotations

from typing import Any

from numba import types

from ..lanes import load, narrow, recast, store
from ..machine.jit import jit
from ._simple import encoder, put_half

U8 = types.uint8


@jit
def kernel(values: Any, blocks: Any) -> None:
    whole = len(values) - len(values) % 32
    for i in range(0, whole, 32):
        store(blocks, i * 2, recast(narrow(load(values, i, 32)), U8))
    for i in range(whole, len(values)):
        put_half(blocks, i * 2, values[i])


encode = encoder(kernel)
