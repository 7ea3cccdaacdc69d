"""The kernel that packs activations into tiles of the matrix unit: 32 floats as bfloat16, or 64 codes, a row.

Floats are float32 or float16: neither needs a pass of its own.

Tiles lie as the products read them: chunk after chunk of K, in a chunk the blocks of 32 rows, in a block step
after step, the two tiles of the same columns side by side. Rows that fill the last block up are zeros.

Blocks with all of K together would lie a power of two of bytes apart: a chunk of all of them would share few
places of the second cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir

from ..machine.arguments import reader
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import jit
from ..machine.simd import F16, FLOATS, I64, INTS, Simd, vec
from ..machine.target import AVX512
from .operands import Rows
from .unit import PITCH, TILE, bfloats

rows = reader(Rows)
HEIGHT = 16  # rows of a tile


@cache
def packer(kind: str) -> Any:
    """Compiled: write tiles ``first`` … ``stop`` of ``Rows``: ``kind`` is float32, float16 or bytes."""
    put, width = ROWS_OF[kind]
    put_row, clear_row = intrinsic_of(put, 2), intrinsic_of(_clear_row, 1)

    def pack(arguments: int, first: int, stop: int) -> None:
        fields = rows(arguments)
        for tile in range(first, stop):
            pair, half = tile // 2, tile % 2
            start = pair // (fields.blocks * fields.chunk) * fields.chunk
            steps, inside = min(fields.chunk, fields.steps - start), pair - start * fields.blocks
            top, at = (inside // steps * 2 + half) * HEIGHT, (start + inside % steps) * width
            for r in range(HEIGHT):
                to = fields.tiles + tile * TILE + r * PITCH
                if top + r < fields.m:
                    put_row(fields.values + (top + r) * fields.pitch + at, to)
                else:
                    clear_row(to)

    return jit(pack)


def _round_row(builder: Any, source: Any, to: Any) -> None:
    """32 float32 at an address to 32 bfloat16 at another."""
    simd = Simd(builder, AVX512)
    low, high = (simd.load(builder.add(source, I64(64 * i)), FLOATS) for i in range(2))
    simd.store(bfloats(simd, low, high), to)


def _round_halves(builder: Any, source: Any, to: Any) -> None:
    """32 float16 at an address to 32 bfloat16 at another."""
    simd = Simd(builder, AVX512)
    halves = (simd.load(builder.add(source, I64(32 * i)), vec(F16, HEIGHT)) for i in range(2))
    simd.store(bfloats(simd, *(builder.fpext(part, FLOATS) for part in halves)), to)


def _copy_row(builder: Any, source: Any, to: Any) -> None:
    """64 bytes from one address to another."""
    simd = Simd(builder, AVX512)
    simd.store(simd.load(source, INTS), to)


def _clear_row(builder: Any, to: Any) -> None:
    """64 bytes of zeros to an address."""
    Simd(builder, AVX512).store(ir.Constant(INTS, None), to)


# By the kind of numbers: what writes a row of a tile, and the bytes that it reads.
ROWS_OF = {"float32": (_round_row, 2 * PITCH), "float16": (_round_halves, PITCH), "bytes": (_copy_row, PITCH)}
