"""Rows of activations to tiles: 16 rows of 32 floats rounded to bfloat16, or of 64 codes as they are.

Tiles lie as the products read them: blocks of 32 rows, tile after tile along K, the two of the same columns
side by side. Rows that fill the last block up are zeros.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from ..machine.arguments import reader
from ..machine.jit import jit
from ..machine.simd import FLOATS, I64, INTS, Simd
from ..machine.target import AVX512
from ..machine.numba_names import intrinsic
from .operands import Rows
from .unit import PITCH, TILE, bfloats

rows = reader(Rows)
HEIGHT = 16  # rows of a tile


@cache
def packer(floats: bool) -> Any:
    """Compiled: tiles ``first`` … ``stop`` of ``Rows``."""
    put, width = (round_row, 2 * PITCH) if floats else (copy_row, PITCH)

    def pack(arguments: int, first: int, stop: int) -> None:
        fields = rows(arguments)
        for tile in range(first, stop):
            pair, half = tile // 2, tile % 2
            top, at = pair // fields.steps * 2 * HEIGHT + half * HEIGHT, pair % fields.steps * width
            for r in range(HEIGHT):
                to = fields.tiles + tile * TILE + r * PITCH
                if top + r < fields.m:
                    put(fields.values + (top + r) * fields.pitch + at, to)
                else:
                    no_row(to)

    return jit(pack)


@intrinsic
def round_row(typing: Any, source: Any, to: Any) -> Any:
    """32 float32 at an address to 32 bfloat16 at another."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        simd, (at, place) = Simd(builder, AVX512), args
        low, high = (simd.load(builder.add(at, I64(64 * i)), FLOATS) for i in range(2))
        simd.store(bfloats(simd, low, high), place)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def copy_row(typing: Any, source: Any, to: Any) -> Any:
    """64 bytes."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        simd = Simd(builder, AVX512)
        simd.store(simd.load(args[0], INTS), args[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def no_row(typing: Any, to: Any) -> Any:
    """64 bytes of zeros."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        Simd(builder, AVX512).store(ir.Constant(INTS, None), args[0])
        return context.get_dummy_value()

    return types.void(types.int64), emit
