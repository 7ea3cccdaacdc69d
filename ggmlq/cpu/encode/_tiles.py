"""Sixteen blocks at a time through a program: values into tiles, tiles of bytes into blocks.

A tile has a block a column, memory a block a row, so both ways small squares of numbers are transposed
in registers: four values of each block, or up to sixteen bytes. Where fewer than sixteen blocks are left, the
last one stands in every lane left over and is written several times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from ...formats import _program as _in_numpy
from ...formats.atoms import recompiler
from ...formats.format import BlockFormat, Bytes, Floats
from ..lanes import Lanes
from ..lanes.kind import address, emitted, order, vector
from ..machine.jit import inner, jit
from . import _program
from ._program import LANES

WORDS = {
    name: getattr(_program, name) for name in vars(_in_numpy) if hasattr(_program, name) and name.islower()
}

# The atoms read bytes with u8; on a tile that is get.
compiled = recompiler(inner, WORDS | {"u8": _program.get})

LONG = ir.IntType(64)
FLOATS, FOUR, BYTES = Lanes(types.float32, LANES), Lanes(types.float32, 4), Lanes(types.uint8, LANES)


def encoder(fmt: BlockFormat, program: _in_numpy.Program) -> Callable[[Floats, Floats | None, Bytes], None]:
    """The compiled ``encode(values, imatrix, blocks)`` of a format with a program."""
    size, bytes_of_block = fmt.block_size, fmt.dtype.itemsize
    last = next(count for count in (2, 4, 8, 16) if (bytes_of_block - 1) % 16 < count)
    run = _runner(compiled(program.encode), last)  # type: ignore[arg-type]

    def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
        importance = squares = mean_square = None
        imatrix = None if fmt.imatrix == "ignored" else imatrix
        if imatrix is not None:
            importance = tile(size)
            if program.needs_mean_square:
                squares, mean_square = _in_numpy.mean_squares(values), tile(1)
        x, raw, out = values.reshape(-1), blocks.reshape(-1), np.empty((bytes_of_block, LANES), np.uint8)
        run(x, imatrix, squares, raw, tile(size), importance, mean_square, out)

    return encode


def tile(places: int) -> NDArray[np.float32]:
    """Room for so many vectors."""
    return np.empty((places, LANES), np.float32)


def _runner(program: Any, last: int) -> Any:
    """The loop over blocks; of the bytes of a block ``last`` are written after as many sixteens as fit."""

    @jit
    def run(values, weights, squares, blocks, x, importance, mean_square, out):  # type: ignore[no-untyped-def]
        size, count = len(x), len(values) // len(x)
        block, start = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
        for first in range(0, count, LANES):
            for lane in range(LANES):
                block[lane] = min(first + lane, count - 1)
                start[lane] = block[lane] * size
            for i in range(0, size, 4):
                load_four(values, start, i, x)
            if weights is not None:
                for lane in range(LANES):
                    start[lane] = start[lane] % len(weights)
                for i in range(0, size, 4):
                    load_four(weights, start, i, importance)
            if squares is not None:
                for lane in range(LANES):
                    mean_square[0, lane] = squares[block[lane] * size // len(weights)]
            program(x, importance, mean_square, out)
            for lane in range(LANES):
                start[lane] = block[lane] * len(out)
            for i in range(0, len(out) - last, LANES):
                store_bytes(out, i, LANES, start, blocks)
            store_bytes(out, len(out) - last, last, start, blocks)

    return run


@emitted
def load_four(typingctx: Any, values: Any, start: Any, at: Any, to: Any) -> Any:
    """Four vectors of a tile, from place ``at`` on, for blocks that start at sixteen places of an array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        fours = [
            builder.load(
                address(context, builder, values, args[0], builder.add(first, args[2]), vector(FOUR)), align=1
            )
            for first in _starts(context, builder, start, args[1])
        ]
        joined = [_joined(builder, fours[i::4]) for i in range(4)]  # of each piece of four: one block
        for i, row in enumerate(_transposed(builder, joined)):
            place = builder.mul(builder.add(args[2], LONG(i)), LONG(LANES))
            builder.store(row, address(context, builder, to, args[3], place, vector(FLOATS)), align=1)
        return context.get_dummy_value()

    return types.void(values, start, types.intp, to), codegen


@emitted
def store_bytes(typingctx: Any, out: Any, at: Any, count: Any, start: Any, blocks: Any) -> Any:
    """Bytes of a tile, so many from place ``at`` on, into the blocks that start at sixteen places."""
    n = count.literal_value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        rows = []
        for i in range(n):
            place = builder.mul(builder.add(args[1], LONG(i)), LONG(LANES))
            rows.append(builder.load(address(context, builder, out, args[0], place, vector(BYTES)), align=1))
        rows, kind = _transposed(builder, rows), vector(Lanes(types.uint8, n))
        for lane, first in enumerate(_starts(context, builder, start, args[3])):
            square, row = lane // n * n, rows[lane % n]
            piece = builder.shuffle_vector(
                row, ir.Constant(row.type, ir.Undefined), order(range(square, square + n))
            )
            builder.store(
                piece, address(context, builder, blocks, args[4], builder.add(first, args[1]), kind), align=1
            )
        return context.get_dummy_value()

    return types.void(out, types.intp, count, start, blocks), codegen


def _starts(context: Any, builder: Any, kind: Any, array: Any) -> list[Any]:
    """The sixteen numbers of an array."""
    data = context.make_array(kind)(context, builder, array).data
    return [builder.load(builder.gep(data, [LONG(lane)])) for lane in range(LANES)]


def _joined(builder: Any, vectors: list[Any]) -> Any:
    """A power of two of vectors as one."""
    while len(vectors) > 1:
        both = order(range(2 * vectors[0].type.count))
        vectors = [
            builder.shuffle_vector(a, b, both) for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Rows transposed, as squares side by side where they are longer than many.

    A round of perfect shuffles moves the highest bit of a row's number behind the bits of the column's.
    """
    n, size, half = rows[0].type.count, len(rows), len(rows) // 2
    low, high = (
        order(square + first + i // 2 + i % 2 * n for square in range(0, n, size) for i in range(size))
        for first in (0, half)
    )
    for _ in range(size.bit_length() - 1):
        pairs = zip(rows[:half], rows[half:], strict=True)
        rows = [builder.shuffle_vector(a, b, picked) for a, b in pairs for picked in (low, high)]
    return rows
