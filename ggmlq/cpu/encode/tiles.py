"""The loop that runs a format's encoder program on sixteen blocks at a time, with tiles as operands.

A tile has a block a column, memory a block a row, so both ways small squares of numbers are transposed
in registers: four values of each block, or up to sixteen bytes. The last sixteen blocks may overlap those
before them; fewer than sixteen blocks are repeated up to that number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from ...formats import _program as _in_numpy
from ...formats.atoms import recompiler
from ...formats.format import BlockFormat, Bytes, Floats
from ..lanes import Lanes, address, emitted, order, vector
from ..machine.jit import inner, jit
from . import program
from .program import LANES

WORDS = {
    name: getattr(program, name) for name in vars(_in_numpy) if hasattr(program, name) and name.islower()
}

# The atoms read bytes with u8; on a tile that is get.
compiled = recompiler(inner, WORDS | {"u8": program.get})

LONG = ir.IntType(64)
FLOATS, FOUR, BYTES = Lanes(types.float32, LANES), Lanes(types.float32, 4), Lanes(types.uint8, LANES)


def encoder(fmt: BlockFormat, pack: _in_numpy.Packer) -> Callable[[Floats, Floats | None, Bytes], None]:
    """The compiled ``encode(values, imatrix, blocks)`` of a format whose ``pack`` is a program."""
    size, bytes_of_block = fmt.block_size, fmt.dtype.itemsize
    run = runner(fmt)

    def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
        missing = LANES - values.size // size
        if missing > 0:
            rows, more = len(values), -(-LANES * size // values.shape[1])
            padded = np.empty((more, blocks.shape[1]), np.uint8)
            encode(np.resize(values, (more, values.shape[1])), imatrix, padded)
            blocks[:] = padded[:rows]
            return
        importance = squares = mean_square = None
        imatrix = None if fmt.imatrix == "ignored" else imatrix
        if imatrix is not None:
            importance = tile(size)
            if pack.needs_mean_square:
                squares, mean_square = _in_numpy.mean_squares(values), tile(1)
        x, raw, out = values.reshape(-1), blocks.reshape(-1), np.empty((bytes_of_block, LANES), np.uint8)
        run(x, imatrix, squares, raw, tile(size), importance, mean_square, out)

    return encode


def tile(places: int) -> NDArray[np.float32]:
    """An empty tile of ``places`` vectors of float32."""
    return np.empty((places, LANES), np.float32)


@cache
def runner(fmt: BlockFormat) -> Any:
    """The loop over sixteen blocks or more; their last few bytes come after as many sixteens as fit."""
    pack, size, bytes_of_block = fmt.pack, fmt.block_size, fmt.dtype.itemsize
    program: Any = compiled(pack.encode)  # type: ignore[union-attr]
    last = next(count for count in (2, 4, 8, 16) if (bytes_of_block - 1) % 16 < count)

    @jit
    def run(values, weights, squares, blocks, x, importance, mean_square, out):  # type: ignore[no-untyped-def]
        count = len(values) // size
        for group in range(0, count, LANES):
            first = min(group, count - LANES)
            at = first * bytes_of_block
            for i in range(0, size, 4):
                load_four(values, first * size + i, size, x, i)
                prefetch(values, (first + LANES) * size + i * LANES, 4, 0)
                prefetch(blocks, at + i * LANES, 1, 1)
            if weights is not None:
                for lane in range(LANES):
                    row, column = divmod((first + lane) * size, len(weights))
                    for i in range(size):
                        importance[i, lane] = weights[column + i]
                    if squares is not None:
                        mean_square[0, lane] = squares[row]
            program(x, importance, mean_square, out)
            for i in range(0, bytes_of_block - last, LANES):
                store_bytes(out, i, LANES, blocks, at + i, bytes_of_block)
            i = bytes_of_block - last
            store_bytes(out, i, last, blocks, at + i, bytes_of_block)

    return run


@emitted
def prefetch(typingctx: Any, array: Any, at: Any, lines: Any, write: Any) -> Any:
    """Ask for lines of 64 bytes, from an element of an array on; they may lie behind its end."""
    count, word, step = lines.literal_value, ir.IntType(32), 512 // array.dtype.bitwidth

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")  # type: ignore[no-untyped-call]
        for line in range(count):
            place = builder.add(args[1], LONG(line * step))
            pointer = address(context, builder, array, args[0], place, ir.IntType(8))
            builder.call(function, [pointer, word(write.literal_value), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp, lines, write), codegen


@emitted
def load_four(typingctx: Any, values: Any, at: Any, step: Any, to: Any, i: Any) -> Any:
    """Vectors i to i + 3 of a tile: four values of a lane from place ``at`` on, lanes ``step`` apart."""
    size = step.literal_value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        places = [builder.add(args[1], LONG(lane * size)) for lane in range(LANES)]
        pointers = [address(context, builder, values, args[0], place, vector(FOUR)) for place in places]
        fours = [builder.load(pointer, align=1) for pointer in pointers]
        joined = [_joined(builder, fours[k::4]) for k in range(4)]  # of each piece of four: one lane
        for k, row in enumerate(_transposed(builder, joined)):
            place = builder.mul(builder.add(args[4], LONG(k)), LONG(LANES))
            builder.store(row, address(context, builder, to, args[3], place, vector(FLOATS)), align=1)
        return context.get_dummy_value()

    return types.void(values, types.intp, step, to, types.intp), codegen


@emitted
def store_bytes(typingctx: Any, out: Any, i: Any, count: Any, blocks: Any, at: Any, step: Any) -> Any:
    """Vectors of bytes, ``count`` from i on, to place ``at`` of an array, lanes ``step`` apart."""
    n, size = count.literal_value, step.literal_value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        rows = []
        for k in range(n):
            place = builder.mul(builder.add(args[1], LONG(k)), LONG(LANES))
            rows.append(builder.load(address(context, builder, out, args[0], place, vector(BYTES)), align=1))
        rows, kind = _transposed(builder, rows), vector(Lanes(types.uint8, n))
        for lane in range(LANES):
            square, row = lane // n * n, rows[lane % n]
            piece = builder.shuffle_vector(
                row, ir.Constant(row.type, ir.Undefined), order(range(square, square + n))
            )
            place = builder.add(args[4], LONG(lane * size))
            builder.store(piece, address(context, builder, blocks, args[3], place, kind), align=1)
        return context.get_dummy_value()

    return types.void(out, types.intp, count, blocks, types.intp, step), codegen


def _joined(builder: Any, vectors: list[Any]) -> Any:
    """A power of two of vectors as one."""
    while len(vectors) > 1:
        both = order(range(2 * vectors[0].type.count))
        vectors = [
            builder.shuffle_vector(a, b, both) for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Rows transposed, as squares side by side where they are longer than their number.

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
