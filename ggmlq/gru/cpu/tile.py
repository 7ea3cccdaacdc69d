"""A register tile: the rows of three gates for 16 units, times the codes of a few sequences.

One vector of weights is four codes of 16 units; it meets the same four codes of each sequence, so a tile of
eight sequences loads 3 vectors and 8 words for 24 dot products. Sums stay in registers along all of K and go
to memory as int32: what is done with them needs no more than they.

Activations are the first operand of the dot product (``machine/simd.py``), stored as unsigned bytes where it
wants those; weights stay as they are. So what the storing adds to a code is taken off with the zero
point, times the sum of the row of weights, which never changes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from ...cpu.machine.simd import BYTES, I32, I64, INTS, Simd
from ...cpu.machine.target import Target
from ...cpu.machine.numba_names import cgutils, intrinsic

GATES = 3
FOURS = 4  # in one round of the inner loop
CHAINS = 10  # dot products under way: one takes five cycles, two begin in each


@cache
def tile(rows: int, target: Target) -> Any:
    """An intrinsic ``(slab, x, x_pitch, fours, out, out_pitch)`` on addresses; out: int32 [3 · rows, 16]."""
    dot = "avx2 full" if target.dot == "avx2" else target.dot  # codes of -128 have no negative

    @intrinsic
    def multiply(
        typing: Any, slab: Any, x: Any, x_pitch: Any, fours: Any, out: Any, out_pitch: Any
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _Tile(builder, rows, replace(target, dot=dot)).emit(*args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), emit

    return multiply


class _Tile:
    def __init__(self, builder: ir.IRBuilder, rows: int, target: Target) -> None:
        self.b, self.simd, self.rows = builder, Simd(builder, target), rows
        wanted = -(-CHAINS // (GATES * rows))
        self.chains = min(wanted, FOURS) if target.registers > 8 else 1

    def emit(self, slab: Any, x: Any, pitch: Any, fours: Any, out: Any, line: Any) -> None:
        b = self.b
        gate_bytes = b.mul(fours, I64(64))
        slabs = [b.add(slab, b.mul(gate_bytes, I64(gate))) for gate in range(GATES)]
        places = [b.add(x, b.mul(pitch, I64(r))) for r in range(self.rows)]
        sums = [[cgutils.alloca_once(b, INTS) for _ in range(GATES * self.rows)] for _ in range(self.chains)]
        for variable in [one for chain in sums for one in chain]:
            b.store(ir.Constant(INTS, None), variable)
        rounds = b.udiv(fours, I64(FOURS))
        with cgutils.for_range(b, rounds, intp=I64) as loop:
            self._some(slabs, places, b.mul(loop.index, I64(FOURS)), FOURS, sums)
        done = b.mul(rounds, I64(FOURS))
        with cgutils.for_range(b, b.sub(fours, done), intp=I64) as loop:
            self._some(slabs, places, b.add(done, loop.index), 1, sums)
        for i in range(GATES * self.rows):
            total = b.load(sums[0][i])
            for chain in sums[1:]:
                total = b.add(total, b.load(chain[i]))
            self.simd.store(total, b.add(out, b.mul(line, I64(i))))

    def _some(
        self, slabs: list[Any], places: list[Any], first: Any, count: int, sums: list[list[Any]]
    ) -> None:
        """A few neighbouring fours of all rows."""
        b, simd = self.b, self.simd
        for j in range(count):
            chain = sums[j % self.chains]
            at = b.add(first, I64(j))
            weights = [simd.load(b.add(slab, b.mul(at, I64(64))), BYTES) for slab in slabs]
            for r, place in enumerate(places):
                four = simd.load(b.add(place, b.mul(at, I64(4))), I32)
                same = b.bitcast(simd.splat(four), BYTES)
                for gate, w in enumerate(weights):
                    variable = chain[gate * self.rows + r]
                    b.store(simd.dot_vector(b.load(variable), same, w), variable)
