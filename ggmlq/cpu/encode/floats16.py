"""The encoders of numbers of 16 bits, f16 and bf16, in vectors; and results of products as float16."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import types

from ...formats.format import Bytes, Floats
from ..lanes import convert, load, narrow, recast, store
from ..machine.jit import jit
from ..machine.memory import bytes_at, floats_at, reader
from .halves import Narrowing

U8 = types.uint8


@jit
def _f16(values: Any, blocks: Any) -> None:
    """Floats to halves, 32 at a time."""
    whole = len(values) - len(values) % 32
    for i in range(0, whole, 32):
        store(blocks, i * 2, recast(narrow(load(values, i, 32)), U8))
    for i in range(whole, len(values)):
        store(blocks, i * 2, recast(narrow(values[i]), U8))


def encode_f16(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    _f16(values.reshape(-1), blocks.reshape(-1))


# --- The encoder of bf16: floats to their upper 16 bits, to nearest, ties to even, 32 at a time ---

U16, U32 = types.uint16, types.uint32


@jit
def _bf16(values: Any, blocks: Any) -> None:
    """Floats to their upper 16 bits, to nearest, ties to even, 32 at a time."""
    whole = len(values) - len(values) % 32
    for i in range(0, whole, 32):
        bits = recast(load(values, i, 32), U32)
        upper = convert(bits + 0x7FFF + (bits >> 16 & 1) >> 16, U16)
        store(blocks, i * 2, recast(upper, U8))
    for i in range(whole, len(values)):
        last = recast(values[i], U32)
        store(blocks, i * 2, recast(U16(last + 0x7FFF + (last >> 16 & 1) >> 16), U8))


def encode_bf16(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    _bf16(values.reshape(-1), blocks.reshape(-1))


# --- Results as halves: float32 to float16 in vectors, by code that may have come with the package ---
#
# NumPy's own conversion takes 6 ns a number, ten times as long as reading it.

narrowing = reader(Narrowing)


@cache
def narrower() -> Any:
    """Compiled: numbers ``first`` … ``stop`` of ``Narrowing`` to halves."""

    def work(arguments: int, first: int, stop: int) -> None:
        fields = narrowing(arguments)
        values = floats_at(fields.values, 1, stop)[0]
        halves = bytes_at(fields.halves, 1, 2 * stop)[0]
        _f16(values[first:stop], halves[2 * first : 2 * stop])

    return jit(work)
