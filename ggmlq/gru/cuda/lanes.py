"""A lane's work after the products of a step, in r3 and r4: from its sums to gates, states and results.

A lane has ``lane_pairs`` pairs of a unit and a row. ``position`` says which: (lane, split, row_warp, group,
row0, unit0); row0 and unit0 are the block's first. From step to step a lane holds three arrays:

    before     [lane_pairs]       deviations of h
    inputs     [3, lane_pairs]    input terms of the next step
    constants  [halves, 16]       constants of its units, see ``tile.CONSTANTS``
"""

from __future__ import annotations

from typing import Any

from ...cuda.intrinsics import codes8, integers, ptx
from ...cuda.intrinsics.atoms import inlined
from ...cuda.intrinsics.language import cuda, float32, int32, uint32, uint64
from .atoms import STORED, VALID, ZERO, ZEROS, step_functions
from .tile import BYTES, ROWS, UNITS, StepTile


def lane_placer(shape: StepTile) -> Any:
    """The device function for the position of a lane."""
    splits, row_warps, blocks = shape.splits, shape.row_warps, shape.blocks
    rows, units = shape.rows, shape.groups * UNITS

    @inlined
    def place_lane(warp: Any, row_from: Any) -> Any:
        lane, block = uint32(cuda.threadIdx.x) & uint32(31), uint32(cuda.blockIdx.x)
        row_warp = uint32(uint32(warp // uint32(splits)) % uint32(row_warps))
        row0 = uint32(row_from + uint32(uint32(block // uint32(blocks)) * uint32(rows)))
        unit0 = uint32(uint32(block % uint32(blocks)) * uint32(units))
        return (
            lane, uint32(warp % uint32(splits)), row_warp, uint32(warp // uint32(splits * row_warps)),
            row0, unit0,
        )  # fmt: skip

    return place_lane


def pair_locator(shape: StepTile) -> Any:
    """The device function for the row and the unit, in the block, of a lane's pair i."""
    lane_pairs, rows = shape.lane_pairs, ROWS * shape.tiles

    @inlined
    def pair(i: Any, position: Any) -> Any:
        lane, split, row_warp, group, _, _ = position
        e = uint32(uint32(split * uint32(lane_pairs)) + uint32(i))
        row = uint32(uint32(row_warp * uint32(rows)) + uint32(uint32(e >> uint32(2)) * uint32(ROWS)))
        row = uint32(uint32(row + uint32(uint32(lane & uint32(3)) << uint32(1))) + uint32(e & uint32(1)))
        half = uint32(uint32(uint32(e >> uint32(1)) & uint32(1)) << uint32(3))
        return row, uint32(uint32(uint32(group * uint32(UNITS)) + half) + uint32(lane >> uint32(2)))

    return pair


def column_locator(shape: StepTile) -> Any:
    """The device function for the first column of h, or of R, that a lane multiplies."""
    split_bytes = BYTES * shape.pairs

    @inlined
    def across(position: Any) -> Any:
        lane, split, _, _, _, _ = position
        return uint32(uint32(split * uint32(split_bytes)) + uint32(uint32(lane & uint32(3)) << uint32(4)))

    return across


def input_loader(shape: StepTile) -> Any:
    """The device function that loads the input terms of a lane's pairs in a step."""
    lane_pairs, columns, pair, load4 = shape.lane_pairs, shape.columns, pair_locator(shape), codes8.load4

    @inlined
    def fetch(inputs: Any, p: Any, position: Any, n: Any) -> None:
        _, _, _, _, row0, unit0 = position
        for j in range(lane_pairs):
            row, unit = pair(j, position)
            row, unit = min(uint32(row0 + row), uint32(n - uint32(1))), uint32(unit0 + unit)
            at = p + (uint64(row) * uint64(3 * columns) + uint64(unit)) * uint64(4)
            for gate in range(3):
                inputs[gate * lane_pairs + j] = load4(at + uint64(4 * columns * gate))

    return fetch


def first_states(shape: StepTile) -> Any:
    """The device function that loads the states of a lane's pairs before the first step."""
    lane_pairs, columns, pair, load1 = shape.lane_pairs, shape.columns, pair_locator(shape), integers.load1

    @inlined
    def load(before: Any, h: Any, position: Any, n: Any, k: Any) -> None:
        _, _, _, _, row0, unit0 = position
        for j in range(lane_pairs):
            row, unit = pair(j, position)
            row, unit = min(uint32(row0 + row), uint32(n - uint32(1))), uint32(unit0 + unit)
            before[j] = int32(load1(h + uint64(row) * uint64(columns) + uint64(unit)) - k[STORED])

    return load


def last_states(shape: StepTile) -> Any:
    """The device function that stores the states of a lane's pairs after the last step."""
    lane_pairs, columns, pair, store1 = shape.lane_pairs, shape.columns, pair_locator(shape), ptx.store1

    @inlined
    def store(before: Any, h: Any, position: Any, n: Any, units: Any, k: Any) -> None:
        _, _, _, _, row0, unit0 = position
        for j in range(lane_pairs):
            row, unit = pair(j, position)
            row, unit = uint32(row0 + row), uint32(unit0 + unit)
            if row < n and unit < units:
                store1(h + (uint64(row) * uint64(columns) + uint64(unit)), uint32(before[j] + k[STORED]))

    return store


def state_maker(shape: StepTile) -> Any:
    """The device function that makes new states from sums [3, lane_pairs], and stages them for other blocks.

    ``v``: the destination of this step's intermediates, or 0; ``tables``: addresses in shared memory. All
    pairs go through the gates before anything is stored: their chains run side by side as long as no store
    might change a table.
    """
    lane_pairs, own_4, halves, rows, pair = (
        shape.lane_pairs, 4 * shape.lane_pairs, shape.halves, shape.rows, pair_locator(shape),
    )  # fmt: skip
    atoms, put1, store_intermediates = (
        step_functions(True, shared=True),
        integers.put1,
        _intermediate_writer(),
    )
    hidden_term, gates, next_state = atoms.hidden_term, atoms.gates, atoms.state

    @inlined
    def gate_term(whole: Any, at: Any, c: Any, o: Any, k: Any, counts: Any) -> Any:
        return hidden_term(whole[at], c[o], c[o + 1], c[o + 2], c[o + 3], c[o + 4], k, counts)

    @inlined
    def advance(
        before: Any, inputs: Any, whole: Any, constants: Any, tables: Any, stage: Any, v: Any, position: Any,
        n: Any, units: Any, k: Any, counts: Any,
    ) -> None:  # fmt: skip
        _, _, _, _, row0, unit0 = position
        z_table, r_table, g_table = tables
        intermediates = cuda.local.array(own_4, int32)
        for j in range(lane_pairs):
            row, unit = pair(j, position)
            c = 16 * ((j >> 1) & 1) if halves == 2 else 0
            counts[VALID] = int32(uint32(row0 + row) < n and uint32(unit0 + unit) < units)
            dz = gate_term(whole, j, constants, c, k, counts)
            dr = gate_term(whole, lane_pairs + j, constants, c + 5, k, counts)
            dg = gate_term(whole, 2 * lane_pairs + j, constants, c + 10, k, counts)
            z, r, g, a = gates(
                dz, dr, dg, inputs[j], inputs[lane_pairs + j], inputs[2 * lane_pairs + j], constants[c + 15],
                z_table, r_table, g_table, k, counts,
            )  # fmt: skip
            before[j] = next_state(z, g, before[j], k, counts)
            (
                intermediates[4 * j],
                intermediates[4 * j + 1],
                intermediates[4 * j + 2],
                intermediates[4 * j + 3],
            ) = z, r, g, a
        for j in range(lane_pairs):
            row, unit = pair(j, position)
            slot = uint32(uint32(uint32(unit >> uint32(4)) * uint32(rows)) + row)
            at = uint32(uint32(stage + uint32(slot << uint32(4))) + uint32(unit & uint32(15)))
            put1(at, int32(before[j] + k[STORED]))
        if v != uint64(0):
            for j in range(lane_pairs):
                row, unit = pair(j, position)
                row, unit = uint32(row0 + row), uint32(unit0 + unit)
                if row < n and unit < units:
                    store_intermediates(v, row, unit, units, intermediates, 4 * j, k)

    return advance


def _intermediate_writer() -> Any:
    store4 = ptx.store4

    @inlined
    def store_intermediates(
        v: Any, row: Any, unit: Any, units: Any, intermediates: Any, o: Any, k: Any
    ) -> None:
        row_bytes = uint64(units) * uint64(4)
        at = v + (uint64(row) * row_bytes + uint64(unit)) * uint64(4)
        store4(at, uint32(intermediates[o] + k[ZEROS]))
        store4(at + row_bytes, uint32(intermediates[o + 1] + k[ZEROS + 1]))
        store4(at + row_bytes * uint64(2), uint32(intermediates[o + 2] + k[ZEROS + 2]))
        store4(at + row_bytes * uint64(3), uint32(intermediates[o + 3] + k[ZEROS + 3]))

    return store_intermediates


def state_writer(shape: StepTile) -> Any:
    """The device function that writes a lane's states to y, and to codes unless that is 0."""
    lane_pairs, pair = shape.lane_pairs, pair_locator(shape)
    store_float, store1, mul, float_of = ptx.store_float, ptx.store1, ptx.mul, ptx.float_of

    @inlined
    def give(before: Any, y: Any, codes: Any, scale: Any, position: Any, n: Any, units: Any, k: Any) -> None:
        _, _, _, _, row0, unit0 = position
        for j in range(lane_pairs):
            row, unit = pair(j, position)
            row, unit = uint32(row0 + row), uint32(unit0 + unit)
            if row < n and unit < units:
                at = uint64(row) * uint64(units) + uint64(unit)
                store_float(y + at * uint64(4), mul(float32(before[j]), float_of(scale)))
                if codes != uint64(0):
                    store1(codes + at, uint32(before[j] + k[ZERO]))

    return give
