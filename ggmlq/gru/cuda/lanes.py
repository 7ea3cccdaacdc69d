"""What a lane does in a step beside the products: its units and rows, from sums to states to results.

A lane has ``own`` pairs of a unit and a row. ``place`` says which: (lane, split, near, group, row0, unit0);
row0 and unit0 are the block's first. What it keeps from step to step, an array each:

    before     [own]       deviations of h
    brought    [3, own]    what x brings to the next step
    constants  [halves, 16]
"""

from __future__ import annotations

from typing import Any

from ...cuda.intrinsics import codes8, integers, ptx
from ...cuda.intrinsics.atoms import inlined
from ...cuda.intrinsics.language import cuda, float32, int32, uint32, uint64
from .atoms import STORED, VALID, ZERO, ZEROS, verbs
from .tile import BYTES, ROWS, UNITS, Shape


def stander(shape: Shape) -> Any:
    """The device function that tells a thread its place."""
    splits, beside, blocks = shape.splits, shape.beside, shape.blocks
    rows, units = shape.rows, shape.groups * UNITS

    @inlined
    def stand(warp: Any, row_from: Any) -> Any:
        lane, block = uint32(cuda.threadIdx.x) & uint32(31), uint32(cuda.blockIdx.x)
        near = uint32(uint32(warp // uint32(splits)) % uint32(beside))
        row0 = uint32(row_from + uint32(uint32(block // uint32(blocks)) * uint32(rows)))
        unit0 = uint32(uint32(block % uint32(blocks)) * uint32(units))
        return lane, uint32(warp % uint32(splits)), near, uint32(warp // uint32(splits * beside)), row0, unit0

    return stand


def pairing(shape: Shape) -> Any:
    """The device function that gives row and unit, in the block, of a lane's pair i."""
    own, rows = shape.own, ROWS * shape.tiles

    @inlined
    def pair(i: Any, place: Any) -> Any:
        lane, split, near, group, _, _ = place
        e = uint32(uint32(split * uint32(own)) + uint32(i))
        row = uint32(uint32(near * uint32(rows)) + uint32(uint32(e >> uint32(2)) * uint32(ROWS)))
        row = uint32(uint32(row + uint32(uint32(lane & uint32(3)) << uint32(1))) + uint32(e & uint32(1)))
        half = uint32(uint32(uint32(e >> uint32(1)) & uint32(1)) << uint32(3))
        return row, uint32(uint32(uint32(group * uint32(UNITS)) + half) + uint32(lane >> uint32(2)))

    return pair


def crossing(shape: Shape) -> Any:
    """The device function that gives the first column of h, or of R, that a lane multiplies."""
    of_split = BYTES * shape.pairs

    @inlined
    def across(place: Any) -> Any:
        lane, split, _, _, _, _ = place
        return uint32(uint32(split * uint32(of_split)) + uint32(uint32(lane & uint32(3)) << uint32(4)))

    return across


def fetching(shape: Shape) -> Any:
    """The device function that loads what x brings to a lane's pairs in a step."""
    own, columns, pair, load4 = shape.own, shape.columns, pairing(shape), codes8.load4

    @inlined
    def fetch(brought: Any, p: Any, place: Any, n: Any) -> None:
        _, _, _, _, row0, unit0 = place
        for j in range(own):
            row, unit = pair(j, place)
            row, unit = min(uint32(row0 + row), uint32(n - uint32(1))), uint32(unit0 + unit)
            at = p + (uint64(row) * uint64(3 * columns) + uint64(unit)) * uint64(4)
            for gate in range(3):
                brought[gate * own + j] = load4(at + uint64(4 * columns * gate))

    return fetch


def first_states(shape: Shape) -> Any:
    """The device function that loads the states of a lane's pairs before the first step."""
    own, columns, pair, load1 = shape.own, shape.columns, pairing(shape), integers.load1

    @inlined
    def load(before: Any, h: Any, place: Any, n: Any, k: Any) -> None:
        _, _, _, _, row0, unit0 = place
        for j in range(own):
            row, unit = pair(j, place)
            row, unit = min(uint32(row0 + row), uint32(n - uint32(1))), uint32(unit0 + unit)
            before[j] = int32(load1(h + uint64(row) * uint64(columns) + uint64(unit)) - k[STORED])

    return load


def last_states(shape: Shape) -> Any:
    """The device function that stores them after the last step."""
    own, columns, pair, store1 = shape.own, shape.columns, pairing(shape), ptx.store1

    @inlined
    def store(before: Any, h: Any, place: Any, n: Any, units: Any, k: Any) -> None:
        _, _, _, _, row0, unit0 = place
        for j in range(own):
            row, unit = pair(j, place)
            row, unit = uint32(row0 + row), uint32(unit0 + unit)
            if row < n and unit < units:
                store1(h + (uint64(row) * uint64(columns) + uint64(unit)), uint32(before[j] + k[STORED]))

    return store


def advancing(shape: Shape) -> Any:
    """The device function that makes new states of sums [3, own], and stages them to be handed on.

    ``v``: where the intermediates of this step go, or 0; ``tables``: addresses in shared memory. All pairs go
    through the gates before anything is stored: their chains run side by side as long as no store might
    change a table.
    """
    own, own_4, halves, rows, pair = shape.own, 4 * shape.own, shape.halves, shape.rows, pairing(shape)
    atoms, put1, keep = verbs(True, shared=True), integers.put1, _keeper()
    hidden, gates, next_state = atoms.hidden, atoms.gates, atoms.state

    @inlined
    def of_gate(whole: Any, at: Any, c: Any, o: Any, k: Any, counts: Any) -> Any:
        return hidden(whole[at], c[o], c[o + 1], c[o + 2], c[o + 3], c[o + 4], k, counts)

    @inlined
    def advance(
        before: Any, brought: Any, whole: Any, constants: Any, tables: Any, stage: Any, v: Any, place: Any,
        n: Any, units: Any, k: Any, counts: Any,
    ) -> None:  # fmt: skip
        _, _, _, _, row0, unit0 = place
        of_z, of_r, of_g = tables
        made = cuda.local.array(own_4, int32)
        for j in range(own):
            row, unit = pair(j, place)
            c = 16 * ((j >> 1) & 1) if halves == 2 else 0
            counts[VALID] = int32(uint32(row0 + row) < n and uint32(unit0 + unit) < units)
            dz = of_gate(whole, j, constants, c, k, counts)
            dr = of_gate(whole, own + j, constants, c + 5, k, counts)
            dg = of_gate(whole, 2 * own + j, constants, c + 10, k, counts)
            z, r, g, a = gates(
                dz, dr, dg, brought[j], brought[own + j], brought[2 * own + j], constants[c + 15],
                of_z, of_r, of_g, k, counts,
            )  # fmt: skip
            before[j] = next_state(z, g, before[j], k, counts)
            made[4 * j], made[4 * j + 1], made[4 * j + 2], made[4 * j + 3] = z, r, g, a
        for j in range(own):
            row, unit = pair(j, place)
            slot = uint32(uint32(uint32(unit >> uint32(4)) * uint32(rows)) + row)
            at = uint32(uint32(stage + uint32(slot << uint32(4))) + uint32(unit & uint32(15)))
            put1(at, int32(before[j] + k[STORED]))
        if v != uint64(0):
            for j in range(own):
                row, unit = pair(j, place)
                row, unit = uint32(row0 + row), uint32(unit0 + unit)
                if row < n and unit < units:
                    keep(v, row, unit, units, made, 4 * j, k)

    return advance


def _keeper() -> Any:
    store4 = ptx.store4

    @inlined
    def keep(v: Any, row: Any, unit: Any, units: Any, made: Any, o: Any, k: Any) -> None:
        every = uint64(units) * uint64(4)
        at = v + (uint64(row) * every + uint64(unit)) * uint64(4)
        store4(at, uint32(made[o] + k[ZEROS]))
        store4(at + every, uint32(made[o + 1] + k[ZEROS + 1]))
        store4(at + every * uint64(2), uint32(made[o + 2] + k[ZEROS + 2]))
        store4(at + every * uint64(3), uint32(made[o + 3] + k[ZEROS + 3]))

    return keep


def giving(shape: Shape) -> Any:
    """The device function that writes a lane's states to y, and to codes if there are any."""
    own, pair = shape.own, pairing(shape)
    store_float, store1, mul, float_of = ptx.store_float, ptx.store1, ptx.mul, ptx.float_of

    @inlined
    def give(before: Any, y: Any, codes: Any, scale: Any, place: Any, n: Any, units: Any, k: Any) -> None:
        _, _, _, _, row0, unit0 = place
        for j in range(own):
            row, unit = pair(j, place)
            row, unit = uint32(row0 + row), uint32(unit0 + unit)
            if row < n and unit < units:
                at = uint64(row) * uint64(units) + uint64(unit)
                store_float(y + at * uint64(4), mul(float32(before[j]), float_of(scale)))
                if codes != uint64(0):
                    store1(codes + at, uint32(before[j] + k[ZERO]))

    return give
