"""The encoder of f16: floats to halves, 32 at a time."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.format import Bytes, Floats
from ..lanes import load, narrow, recast, store
from ..machine.jit import jit

U8 = types.uint8


@jit
def kernel(values: Any, blocks: Any) -> None:
    whole = len(values) - len(values) % 32
    for i in range(0, whole, 32):
        store(blocks, i * 2, recast(narrow(load(values, i, 32)), U8))
    for i in range(whole, len(values)):
        store(blocks, i * 2, recast(narrow(values[i]), U8))


def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    kernel(values.reshape(-1), blocks.reshape(-1))
