"""The register tile of a GRU in integers: the rows of three gates for 16 units, times codes of sequences.

One vector of weights is four codes of 16 units; it is multiplied with the same four codes
of each sequence, so a tile of eight sequences loads 3 vectors and 8 words for 24 dot products. Sums stay in
registers along all of K and go to memory as int32.

Activations are the first operand of the dot product (``machine/simd.py``), stored as unsigned bytes where it
wants those; weights stay as they are. So the shift of stored codes is taken off with the zero point, times
the sum of the row of weights, which never changes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from ...cpu.machine.intrinsics import intrinsic_of
from ...cpu.machine.register_tile import RegisterTile
from ...cpu.machine.simd import BYTES, I32, I64, Simd
from ...cpu.machine.target import Target

GATES = 3
FOURS = 4  # in one round of the inner loop
CHAINS = 10  # dot products under way: one takes five cycles, two begin in each


@cache
def tile(rows: int, target: Target) -> Any:
    """An intrinsic ``(panel, x, x_pitch, fours, out, out_pitch)`` on addresses; out: int32 [3 · rows, 16]."""
    if target.dot == "avx2":
        target = replace(target, dot="avx2 full")  # codes of -128 have no negative

    def emit(builder: Any, *words: Any) -> None:
        Tile(Simd(builder, target), rows).emit_sums(*words)

    return intrinsic_of(emit, 6)


class Tile(RegisterTile):
    """Emits the code of a tile; a cell is the sums of one gate and one sequence."""

    def __init__(self, simd: Simd, rows: int) -> None:
        super().__init__(simd, rows, GATES, {})
        self.cells = [(gate, r) for gate in range(GATES) for r in range(rows)]
        self.chains = min(-(-CHAINS // len(self.cells)), FOURS) if simd.target.registers > 8 else 1

    def emit_sums(self, panel: Any, x: Any, pitch: Any, fours: Any, out: Any, line: Any) -> None:
        """The sums of all cells along K, a row of ``out`` for each."""
        b, simd = self.b, self.simd
        gate_bytes = b.mul(fours, I64(64))
        gates = [b.add(panel, b.mul(gate_bytes, I64(gate))) for gate in range(GATES)]
        places = [b.add(x, b.mul(pitch, I64(r))) for r in self.rows]

        def add(first: Any, count: int, sums: list[Any]) -> None:
            for j in range(count):
                at = b.add(first, I64(j))
                weights = [simd.load(b.add(gate, b.mul(at, I64(64))), BYTES) for gate in gates]
                words = [simd.load(b.add(place, b.mul(at, I64(4))), I32) for place in places]
                codes = [b.bitcast(simd.splat(word), BYTES) for word in words]
                for (gate, r), total in zip(self.cells, sums[j % self.chains], strict=True):
                    b.store(simd.dot_vector(b.load(total), codes[r], weights[gate]), total)

        for i, total in enumerate(self.dots(fours, FOURS, self.chains, add)):
            simd.store(total, b.add(out, b.mul(line, I64(i))))
