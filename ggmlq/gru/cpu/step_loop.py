"""The loops of r1 over the steps of a GRU, blocks of 32 units and sequences, all in one compiled function.

A thread has some sequences, and never waits for another one. For each step and each block of units, it takes
a few sequences at a time: the tile computes the sums of three gates, the atoms make the next states of them,
and these are written to the other of two buffers. The input terms are computed in the same loop where there
are enough sequences for a tile; with fewer, ``project`` computes them beforehand for many steps at once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numba import types

from ...cpu.lanes import convert, load, store
from ...cpu.machine.intrinsics import intrinsic_of
from ...cpu.machine.jit import inline, jit
from ...cpu.machine.register_tile import RegisterTile
from ...cpu.machine.simd import BYTES, I32, I64, Simd
from ...cpu.machine.target import Target
from ..step import COUNTED
from .vectors import HALF, LANES, gates, terms

GATES = 3
FOURS = 4  # in one round of the inner loop
CHAINS = 10  # dot products under way: one takes five cycles, two begin in each
MOST = {32: 8, 8: 2, 4: 1}  # sequences at a time, by the vector registers that the CPU has
HALVES = LANES // HALF
KINDS = 2  # counts of whole blocks; apart from them those of a last block that has lanes without a unit
GROUP = 32  # sequences whose x meets W before their states meet R: both in turns would not fit L1
ROOM = GATES * LANES * MOST[32]  # sums of a tile
COUNTS = len(COUNTED) * LANES


@inline
def room(count: int, kind: Any) -> Any:
    """An array that begins a cache line."""
    memory = np.empty(count + 16, kind)
    return memory[(-memory.ctypes.data & 63) // memory.itemsize :][:count]


@inline
def put(y: Any, t: int, row: int, unit: int, states: Any, floats: Any) -> None:
    """Write states of 32 units to the result; ``floats``: memory for a block with lanes without a unit."""
    n, units = y.shape[1], y.shape[2]
    if unit + LANES <= units:
        store(y, (t * n + row) * units + unit, states)
    else:
        store(floats, 0, states)
        for j in range(units - unit):
            y[t, row, unit + j] = floats[j]


@inline
def put_gates(v: Any, at: int, padded: int, z: Any, r: Any, g: Any, a: Any) -> None:
    """Write the intermediates of 32 units, as deviations."""
    store(v, at, convert(z, types.int32))
    store(v, at + padded, convert(r, types.int32))
    store(v, at + 2 * padded, convert(g, types.int32))
    store(v, at + 3 * padded, convert(a, types.int32))


@cache
def dots(narrow: bool, target: Target) -> Any:
    """Compiled: sums of three gates of 32 units for some rows; its result is the number of these rows."""
    most = MOST[target.registers]
    several, four, two, single = (tile(min(most, n), target) for n in (most, 4, 2, 1))

    def byte_sums(slabs: Any, block: int, x: Any, row: int, left: int, sums: Any) -> int:
        pitch, at = x.shape[1], x[row].ctypes.data
        done = most if left >= most else min(4, most) if left >= 4 else min(2, most) if left >= 2 else 1
        for part in range(HALVES):
            slab, out = slabs[block, part].ctypes.data, sums.ctypes.data + 4 * HALF * part
            if done == most:
                several(slab, at, pitch, pitch >> 2, out, 4 * LANES)
            elif done == 4:
                four(slab, at, pitch, pitch >> 2, out, 4 * LANES)
            elif done == 2:
                two(slab, at, pitch, pitch >> 2, out, 4 * LANES)
            else:
                single(slab, at, pitch, pitch >> 2, out, 4 * LANES)
        return done

    def word_sums(slabs: Any, block: int, x: Any, row: int, left: int, sums: Any) -> int:
        line = x[row]
        for gate in range(GATES):
            weights = slabs[block, gate]
            total = convert(load(weights, 0, LANES), types.int64) * np.int64(0)
            for k in range(x.shape[1]):
                w = convert(load(weights, k * LANES, LANES), types.int32)
                total = total + convert(w * line[k], types.int64)
            store(sums, gate * LANES, total)
        return 1

    return inline(byte_sums if narrow else word_sums)


@cache
def projector(narrow: bool, target: Target) -> Any:
    """Compiled: the input terms of the gates, for rows ``first`` … ``stop`` of x."""
    multiply, bring, sum_of = dots(narrow, target), terms(narrow), np.int32 if narrow else np.int64

    def project(
        x: Any,
        W: Any,
        rows: Any,
        biases: Any,
        k: Any,
        out: Any,
        units: int,
        all_counts: Any,
        first: int,
        stop: int,
    ) -> None:
        padded = len(biases) // 3
        sums = room(ROOM, sum_of)
        for block in range(len(W)):
            row, counts = first, all_counts[int((block + 1) * LANES > units)]
            while row < stop:
                done = multiply(W, block, x, row, stop - row, sums)
                for i in range(done):
                    bring(sums, i * LANES, done * LANES, rows, block * LANES, padded, biases, k, counts,
                          out, (row + i) * GATES * padded + block * LANES, padded)  # fmt: skip
                row += done

    return jit(project)


@cache
def step_loop(narrow: bool, ahead: bool, target: Target) -> Any:
    """Compiled: all steps of sequences ``first`` … ``stop``; ``ahead``: input terms are in ``x_terms``."""
    multiply, bring, one = dots(narrow, target), terms(narrow), gates(narrow)
    kind, sum_of = (types.int32, np.int32) if narrow else (types.int64, np.int64)

    def run_steps(
        x: Any, W: Any, R: Any, wx: Any, rh: Any, biases: Any, bias_added: Any, tables: Any, k: Any, h: Any,
        zero: int, scale: Any, x_terms: Any, y: Any, v: Any, all_counts: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        n, padded, units, steps = h.shape[1], h.shape[2], y.shape[2], y.shape[0]
        sums, local = room(ROOM, sum_of), room(GROUP * GATES * LANES, sum_of)
        floats, has_v = np.empty(LANES, np.float32), v.size > 0
        for t in range(steps):
            now, after = h[t & 1], h[1 - (t & 1)]
            for block in range(len(R)):
                unit = block * LANES
                counts = all_counts[int(unit + LANES > units)]
                for group in range(first, stop, GROUP):
                    end = min(group + GROUP, stop)
                    row = group
                    while row < end and not ahead:
                        done = multiply(W, block, x, t * n + row, end - row, sums)
                        for i in range(done):
                            bring(sums, i * LANES, done * LANES, wx, unit, padded, biases, k, counts,
                                  local, (row - group + i) * GATES * LANES, LANES)  # fmt: skip
                        row += done
                    row = group
                    while row < end:
                        done = multiply(R, block, now, row, end - row, sums)
                        for i in range(done):
                            if ahead:
                                t_at, t_step = (t * n + row + i) * GATES * padded + unit, padded
                            else:
                                t_at, t_step = (row - group + i) * GATES * LANES, LANES
                            before = convert(load(now, (row + i) * padded + unit, LANES), kind) - zero
                            p = x_terms if ahead else local
                            state, z, r, g, a = one(
                                sums, i * LANES, done * LANES, p, t_at, t_step, rh, unit,
                                padded, bias_added, tables, k, before, counts,
                            )  # fmt: skip
                            store(after, (row + i) * padded + unit, convert(state + zero, after.dtype))
                            put(y, t, row + i, unit, convert(state, types.float32) * scale, floats)
                            if has_v:
                                put_gates(v, (t * n + row + i) * 4 * padded + unit, padded, z, r, g, a)
                        row += done

    return jit(run_steps)


# --- The register tile of a GRU in integers: the rows of three gates for 16 units, times codes of
# sequences
#
# One vector of weights is four codes of 16 units; it is multiplied with the same four codes of each
# sequence, so a tile of eight sequences loads 3 vectors and 8 words for 24 dot products. Sums stay in
# registers along all of K and go to memory as int32.
#
# Activations are the first operand of the dot product (``machine/simd.py``), stored as unsigned bytes where
# it wants those; weights stay as they are. So the shift of stored codes is taken off with the zero point,
# times the sum of the row of weights, which never changes.


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
