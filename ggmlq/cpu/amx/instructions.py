"""The steps of kernels on the matrix unit: four tiles hold sums of 32 × 32, two weights, two activations.

Sums in memory are [32, 32] of four bytes, wherever they lie.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from ..machine.intrinsics import intrinsic_of
from ..machine.jit import jit
from ..machine.memory import reader
from ..machine.peaks import Region
from ..machine.simd import F16, FLOATS, I64, INTS, Simd, vec
from ..machine.target import AVX512
from .multiply import Rows
from .unit import PITCH, TILE, Unit, bfloats

SUMS = 4 * TILE  # bytes of 32 x 32 sums
LINE = 2 * PITCH  # of one row of these


@cache
def instructions(unit: Any, dot: str) -> tuple[Any, ...]:
    """The intrinsics begin, end, zeros, load, store, step and half_step of a ``Unit``.

    Steps use its method ``dot``.
    """

    def instruction(emit: Any, words: int) -> Any:
        return intrinsic_of(lambda builder, here, *args: emit(unit(builder, here), *args), 1 + words)

    return (
        instruction(lambda u: u.begin(), 0),
        instruction(lambda u: u.end(), 0),
        instruction(_zero, 0),
        instruction(_load, 1),
        instruction(_store, 3),
        instruction(_step(dot, 2), 3),
        instruction(_step(dot, 1), 3),
    )


def _zero(u: Unit) -> None:
    for t in range(4):
        u.zero(t)


def _load(u: Unit, sums: Any) -> None:
    for t in range(4):
        u.load(t, u.b.add(sums, I64(2 * TILE * (t // 2) + PITCH * (t % 2))), I64(LINE))


def _store(u: Unit, to: Any, pitch: Any, below: Any) -> None:
    """Store sums as rows at a pitch, the second 16 of them from ``below`` bytes on."""
    for t in range(4):
        at = u.b.add(to, below) if t // 2 else to
        u.store(t, u.b.add(at, I64(PITCH * (t % 2))), pitch)


def _step(dot: str, halves: int) -> Any:
    """16 or 32 rows of activations at an address times the left and the right 16 rows of weights."""

    def multiply(u: Unit, x: Any, left: Any, right: Any) -> None:
        add = getattr(u, dot)
        u.load(6, x, passing=True)
        u.load(4, left)
        add(0, 6, 4)
        u.load(5, right)
        add(1, 6, 5)
        if halves == 1:
            return
        u.load(7, u.b.add(x, I64(TILE)), passing=True)
        add(2, 7, 4)
        add(3, 7, 5)

    return multiply


# --- The kernel that packs activations into tiles of the matrix unit: 32 floats as bfloat16, or 64 codes,
# a row
#
# Floats are float32 or float16: neither needs a pass of its own.
#
# Tiles lie as the products read them: chunk after chunk of K, in a chunk the blocks of 32 rows, in a block
# step after step, the two tiles of the same columns side by side. Rows that fill the last block up are
# zeros.
#
# Blocks with all of K together would lie a power of two of bytes apart: a chunk of all of them would share
# few places of the second cache.

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


# --- The kernel that measures the matrix unit's own rate: a product's steps, with operands that stay near


@cache
def multiplier() -> Any:
    """Compiled: ``rounds`` steps an index, each of 32 × 32 sums of 32 products."""
    region = reader(Region)
    begin, end, no_sums, _, _, step, _ = instructions(Unit, "dot")

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = region(arguments)
        memory = np.empty(4096, np.uint8)
        unit_at, at = memory.ctypes.data + 63 & -64, fields.memory
        begin(unit_at)
        no_sums(unit_at)
        for _ in range(first, stop):
            for _ in range(fields.rounds):
                step(unit_at, at, at + 2 * TILE, at + 3 * TILE)
        end(unit_at)
        memory[0] = 0  # an array lives until its last mention

    return jit(multiply)
