"""All steps of a GRU in one kernel, whose blocks exchange the states after each step.

A block has some units, with the weights in registers, and some rows. After each step its states go to all
blocks that have the same rows:

    cluster   into the shared memory of each; the blocks of a cluster meet in hardware
    grid      into global memory, where the others read them around L1; a counter in memory says when
              all are there

h has two buffers: a step reads one and writes the other, so one meeting a step is enough. A block
that writes to a buffer again has met all that read it. Data that other blocks do not need, y and the input
terms of the next step, is moved between arriving at the meeting point and leaving it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...cuda.driver.launch import Kernel
from ...cuda.intrinsics import hopper, ptx
from ...cuda.intrinsics.atoms import inlined
from ...cuda.intrinsics.language import cuda, float32, int32, int64, types, uint32, uint64
from .atoms import (
    STORED,
    VALID,
    ZERO,
    Gates,
    RowConstants,
    add_counts,
    constants_and_counts,
    constants_type,
    step_functions,
    store_gates,
)
from .call import DeviceCall
from .tile import (
    BYTES,
    ROWS,
    UNITS,
    StepTile,
    constants_loader,
    state_fetcher,
    sum_gatherer,
    warp_multiplier,
    weights_loader,
)


def kernel(shape: StepTile, cluster: bool) -> Kernel:
    """The kernel of r3 or r4: a block has some units of some rows; blocks of the same rows are neighbours."""
    lane_pairs, own_3, blocks = shape.lane_pairs, 3 * shape.lane_pairs, shape.blocks
    begin, make_step, meet = (
        preparer(shape, cluster),
        step_maker(shape, cluster),
        meeting_waiter(shape, cluster),
    )
    fetch, give, leave = input_loader(shape), state_writer(shape), last_states(shape)
    place_lane, size_a, size_c = lane_placer(shape), 24 * shape.pairs, 16 * shape.halves
    publish, notify, columns = state_publisher(shape, cluster), arrival_notifier(cluster), shape.columns
    begin_counts = constants_and_counts(True)

    def work(
        R: Any, rows: Any, biases: Any, tables: Any, entries: Any,
        p: Any,  # [steps · N, 3 · columns]
        h: Any, buffer_bytes: Any,  # states; bytes between both buffers
        y: Any, codes: Any, v: Any, size: Any, scale: Any, first_row: Any, units: Any,  # plain.Outs
        total: Any, counter: Any, steps: Any, first: Any, n: Any, row_from: Any, constants_k: Any,
    ) -> None:  # fmt: skip
        k, counts = begin_counts(constants_k)
        a, constants = cuda.local.array(size_a, int32), cuda.local.array(size_c, int32)
        before, inputs = cuda.local.array(lane_pairs, int32), cuda.local.array(own_3, int32)
        position = place_lane(hopper.from_first_lane(uint32(cuda.threadIdx.x) >> 5), row_from, n, units)
        memory = ptx.shared_base()
        r_table = uint32(memory + uint32(entries << 2))
        table_addresses = memory, r_table, uint32(r_table + uint32(entries << 2))
        now = uint32(first & 1)
        fetch(inputs, p, position)
        begin(
            a, constants, before, R, rows, biases, tables, entries, memory, h, buffer_bytes, now, position, k
        )  # fmt: skip
        counter = counter + uint64(uint32(uint32(cuda.blockIdx.x) // blocks)) * 128
        step, step_elements = uint32(0), uint64(n) * units
        y, codes_step = y + first_row * units * 4, size * step_elements
        codes = codes + (first_row * units * size if codes != 0 else uint64(0))
        v = v + (first_row * units * 16 if v != 0 else uint64(0))
        while step < steps:
            make_step(
                a, constants, before, inputs, table_addresses, memory, h, buffer_bytes, now, v, position, k,
                counts,
            )  # fmt: skip
            cuda.syncthreads()  # all warps have staged their states, which are sent 16 bytes at a time
            publish(memory, h, buffer_bytes, now, position)
            notify(counter)
            # What no other block needs goes on between arriving and waiting.
            give(before, y, codes, scale, position, k)
            step, now = uint32(step + 1), uint32(1 - now)
            y = y + step_elements * 4
            codes = codes + (codes_step if codes != 0 else uint64(0))
            v = v + (step_elements * 16 if v != 0 else uint64(0))
            p = p + (uint64(n) * (12 * columns) if step < steps else uint64(0))
            fetch(inputs, p, position)
            meet(counter, step)
        if cluster:
            leave(before, h + uint32(uint32(first + steps) & 1) * buffer_bytes, position, k)
        add_counts(counts, total)

    parts = (
        *(uint64,) * 4, uint32, *(uint64,) * 3, *(uint64,) * 3, uint32, uint32, uint64, uint32,
        types.Array(int64, 1, "C"), uint64, *(uint32,) * 4, constants_type(True),
    )  # fmt: skip
    name = f"gru steps in a {'cluster' if cluster else 'grid'}, {shape}{', guarded' * hopper.GUARDED}"
    return Kernel(
        name, work, *parts, threads=shape.threads, shared=shape.shared if cluster else shape.states_offset,
        least=(9, 0) if cluster else (8, 0), together=not cluster,
    )  # fmt: skip


def launch_steps(
    work: DeviceCall, one: Kernel, blocks: int, first: int, stop: int, counters: Any = 0, row_from: int = 0,
    cluster: int = 1,
) -> None:  # fmt: skip
    """Launch the kernel for these steps, of the rows from ``row_from`` on."""
    weights = work.weights
    work.launch(
        one, (blocks,), weights.R, weights.rh_constants, weights.biases, weights.tables,
        weights.tables.shape[1], work.p, work.states, work.buffer_bytes, *work.outs(first), work.counts,
        counters, stop - first, first, work.rows, row_from, weights.k, cluster=cluster,
    )  # fmt: skip


def preparer(shape: StepTile, cluster: bool) -> Any:
    """The device function of all work before the first step."""
    threads, rows_, columns, pitch = shape.threads, shape.rows, shape.columns, shape.pitch
    load, read, states_of_start = weights_loader(shape), constants_loader(shape), first_states(shape)
    load4, put, put16, load16 = ptx.load4_nc, ptx.put4, ptx.put16, ptx.load16_l2
    states_offset, sync_cluster, pair = shape.states_offset, hopper.sync_cluster, pair_locator(shape)
    first_column, line = column_locator(shape), columns // 16

    @inlined
    def fill(to: Any, h: Any, row0: Any, n: Any) -> None:
        """Copy the states of the block's rows into shared memory."""
        i = uint32(cuda.threadIdx.x)
        while i < rows_ * line:
            r, c = uint32(i // line), uint32(uint32(i % line) << 4)
            row = min(uint32(row0 + r), uint32(n - 1))
            w = load16(h + uint64(row) * columns + c)
            put16(uint32(uint32(to + uint32(r * pitch)) + c), w[0], w[1], w[2], w[3])
            i = uint32(i + threads)

    @inlined
    def begin(
        a: Any, constants: Any, before: Any, R: Any, rows: Any, biases: Any, tables: Any, entries: Any,
        memory: Any, h: Any, buffer_bytes: Any, now: Any, position: Any, k: Any,
    ) -> None:  # fmt: skip
        unit0 = position.unit0
        unit = uint32(uint32(unit0 + uint32(position.group << 4)) + uint32(position.lane >> 2))
        across = first_column(position)
        load(a, R + uint64(unit) * columns + across, uint32(columns), uint32(columns))
        i = uint32(cuda.threadIdx.x)
        while i < uint32(3 * entries):
            put(uint32(memory + uint32(i << 2)), load4(tables + uint64(i) * 4))
            i = uint32(i + threads)
        _, pair_unit = pair(0, position)
        read(constants, rows, biases, uint32(unit0 + pair_unit), uint32(columns))
        start = h + now * buffer_bytes
        states_of_start(before, start, position, k)
        if cluster:
            to = uint32(memory + states_offset)
            fill(uint32(to + uint32(now * (rows_ * pitch))), start, position.row0, position.rows)
            sync_cluster()  # no block writes to one that has not started
        cuda.syncthreads()

    return begin


def step_maker(shape: StepTile, cluster: bool) -> Any:
    """The device function that computes one step and leaves its states in shared memory."""
    rows_, columns, pitch, tiles = shape.rows, shape.columns, shape.pitch, shape.tiles
    size, own_3, first_column = 12 * tiles * shape.chains, 3 * shape.lane_pairs, column_locator(shape)
    multiply, gather, advance = (
        warp_multiplier(shape, state_fetcher(cluster)),
        sum_gatherer(shape),
        state_maker(shape),
    )
    states_offset, sums_offset, stage_offset = shape.states_offset, shape.sums_offset, shape.stage_offset
    row_warps, warp_bytes = shape.row_warps, shape.splits * 12 * tiles * 128

    @inlined
    def make_step(
        a: Any, constants: Any, before: Any, inputs: Any, tables: Any, memory: Any, h: Any, buffer_bytes: Any,
        now: Any, v: Any, position: Any, k: Any, counts: Any,
    ) -> None:  # fmt: skip
        lane, split = position.lane, position.split
        d, whole = cuda.local.array(size, int32), cuda.local.array(own_3, int32)
        for j in range(size):
            d[j] = int32(0)
        across = first_column(position)
        row = uint32(uint32(position.row_warp * (8 * tiles)) + uint32(lane >> 2))
        if cluster:
            at = uint32(uint32(memory + states_offset) + uint32(now * (rows_ * pitch)))
            multiply(d, a, uint32(uint32(at + uint32(row * pitch)) + across), uint32(pitch))
        else:
            source = h + now * buffer_bytes + across
            multiply(d, a, source + uint64(uint32(position.row0 + row)) * columns, uint64(columns))
        warps = uint32(uint32(uint32(position.group * row_warps) + position.row_warp) * warp_bytes)
        gather(d, whole, uint32(uint32(memory + sums_offset) + warps), split, lane)
        stage = uint32(memory + stage_offset)
        advance(before, inputs, whole, constants, tables, stage, v, position, k, counts)

    return make_step


def arrival_notifier(cluster: bool) -> Any:
    """The device function that signals that a block has sent its states."""
    arrive_at_cluster, notify, sync_warp = hopper.arrive_at_cluster, hopper.add_release, hopper.sync_warp

    @inlined
    def say(counter: Any) -> None:
        if cluster:
            sync_warp()  # the barrier of the cluster is of whole warps (``.aligned``)
            arrive_at_cluster()
        else:
            # All threads have stored their states before one thread adds with release: who sees the sum sees
            # them, too. Without this barrier only that thread's own stores would be covered.
            cuda.syncthreads()
            if uint32(cuda.threadIdx.x) == 0:
                notify(counter, uint32(1))

    return say


def meeting_waiter(shape: StepTile, cluster: bool) -> Any:
    """The device function that waits until all blocks of the same rows have sent the states of ``step``."""
    wait_for_cluster, wait_for_sum, blocks = hopper.wait_for_cluster, hopper.wait_for_sum, shape.blocks
    sync_warp = hopper.sync_warp

    @inlined
    def meet(counter: Any, step: Any) -> None:
        if cluster:
            sync_warp()
            wait_for_cluster()
        else:
            if uint32(cuda.threadIdx.x) == 0:
                wait_for_sum(counter, uint32(step * blocks))
            cuda.syncthreads()  # one thread has waited for all of its block

    return meet


def state_publisher(shape: StepTile, cluster: bool) -> Any:
    """The device function that sends a block's states to the others, 16 units of a row at a time."""
    rows, groups, threads, blocks = shape.rows, shape.groups, shape.threads, shape.blocks
    states_offset, pitch, columns = shape.states_offset, shape.pitch, shape.columns
    chunks, take16, stage_offset = rows * groups, ptx.take16, shape.stage_offset
    put16_in_block, store16 = hopper.put16_in_block, ptx.store16
    count = chunks * (blocks if cluster else 1)

    @inlined
    def publish(memory: Any, h: Any, buffer_bytes: Any, now: Any, position: Any) -> None:
        row0, unit0 = position.row0, position.unit0
        i, other = uint32(cuda.threadIdx.x), uint32(1 - now)
        stage = uint32(memory + stage_offset)
        while i < count:
            chunk, rank = uint32(i % chunks), uint32(i // chunks)
            v = take16(uint32(stage + uint32(chunk << 4)))
            group, row = uint32(chunk // rows), uint32(chunk % rows)
            column = uint32(unit0 + uint32(group << 4))
            if cluster:
                to = uint32(uint32(memory + states_offset) + uint32(other * (rows * pitch)))
                to = uint32(uint32(to + uint32(row * pitch)) + column)
                put16_in_block(to, rank, v[0], v[1], v[2], v[3])
            else:
                at = h + other * buffer_bytes + uint64(uint32(row0 + row)) * columns
                store16(at + column, uint32(v[0]), uint32(v[1]), uint32(v[2]), uint32(v[3]))
            i = uint32(i + threads)

    return publish


# --- A lane's work after the products of a step, in r3 and r4: from its sums to gates, states and results
#
# A lane has ``lane_pairs`` pairs of a unit and a row. ``position`` says which. From step to step a lane holds
# three arrays:
#
#     before     [lane_pairs]       deviations of h
#     inputs     [3, lane_pairs]    input terms of the next step
#     constants  [halves, 16]       constants of its units, see ``tile.CONSTANTS``


class Position(NamedTuple):
    """The place of a lane, and what rows and units there are."""

    lane: Any
    split: Any  # among warps that share the columns
    row_warp: Any  # among warps with different rows
    group: Any  # of 16 units
    row0: Any  # the block's first row and unit
    unit0: Any
    rows: Any  # that exist
    units: Any


def lane_placer(shape: StepTile) -> Any:
    """The device function for the position of a lane."""
    splits, row_warps, blocks = shape.splits, shape.row_warps, shape.blocks
    rows, units = shape.rows, shape.groups * UNITS

    @inlined
    def place_lane(warp: Any, row_from: Any, n: Any, all_units: Any) -> Any:
        lane, block = uint32(cuda.threadIdx.x) & 31, uint32(cuda.blockIdx.x)
        row_warp = uint32(uint32(warp // splits) % row_warps)
        row0 = uint32(row_from + uint32(uint32(block // blocks) * rows))
        unit0 = uint32(uint32(block % blocks) * units)
        split, group = uint32(warp % splits), uint32(warp // (splits * row_warps))
        return Position(lane, split, row_warp, group, row0, unit0, n, all_units)

    return place_lane


def pair_locator(shape: StepTile) -> Any:
    """The device function for the row and the unit, in the block, of a lane's pair i."""
    lane_pairs, rows = shape.lane_pairs, ROWS * shape.tiles

    @inlined
    def pair(i: Any, position: Any) -> Any:
        lane, group = position.lane, position.group
        e = uint32(uint32(position.split * lane_pairs) + uint32(i))
        row = uint32(uint32(position.row_warp * rows) + uint32(uint32(e >> 2) * ROWS))
        row = uint32(uint32(row + uint32(uint32(lane & 3) << 1)) + uint32(e & 1))
        half = uint32(uint32(uint32(e >> 1) & 1) << 3)
        return row, uint32(uint32(uint32(group * UNITS) + half) + uint32(lane >> 2))

    return pair


def column_locator(shape: StepTile) -> Any:
    """The device function for the first column of h, or of R, that a lane multiplies."""
    split_bytes = BYTES * shape.pairs

    @inlined
    def across(position: Any) -> Any:
        return uint32(uint32(position.split * split_bytes) + uint32(uint32(position.lane & 3) << 4))

    return across


def input_loader(shape: StepTile) -> Any:
    """The device function that loads the input terms of a lane's pairs in a step."""
    lane_pairs, columns, pair, load4 = shape.lane_pairs, shape.columns, pair_locator(shape), ptx.load4_nc

    @inlined
    def fetch(inputs: Any, p: Any, position: Any) -> None:
        row0, unit0, n = position.row0, position.unit0, position.rows
        for j in range(lane_pairs):
            row, unit = pair(j, position)
            row, unit = min(uint32(row0 + row), uint32(n - 1)), uint32(unit0 + unit)
            at = p + (uint64(row) * (3 * columns) + unit) * 4
            for gate in range(3):
                inputs[gate * lane_pairs + j] = load4(at + uint64(4 * columns * gate))

    return fetch


def first_states(shape: StepTile) -> Any:
    """The device function that loads the states of a lane's pairs before the first step."""
    lane_pairs, columns, pair, load1 = shape.lane_pairs, shape.columns, pair_locator(shape), ptx.load_int8

    @inlined
    def load(before: Any, h: Any, position: Any, k: Any) -> None:
        row0, unit0, n = position.row0, position.unit0, position.rows
        for j in range(lane_pairs):
            row, unit = pair(j, position)
            row, unit = min(uint32(row0 + row), uint32(n - 1)), uint32(unit0 + unit)
            before[j] = int32(load1(h + uint64(row) * columns + unit) - k[STORED])

    return load


def last_states(shape: StepTile) -> Any:
    """The device function that stores the states of a lane's pairs after the last step."""
    lane_pairs, columns, pair, store1 = shape.lane_pairs, shape.columns, pair_locator(shape), ptx.store1

    @inlined
    def store(before: Any, h: Any, position: Any, k: Any) -> None:
        row0, unit0, n, units = position.row0, position.unit0, position.rows, position.units
        for j in range(lane_pairs):
            row, unit = pair(j, position)
            row, unit = uint32(row0 + row), uint32(unit0 + unit)
            if row < n and unit < units:
                store1(h + (uint64(row) * columns + unit), uint32(before[j] + k[STORED]))

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
    atoms = step_functions(True, shared=True)
    hidden_term, gates_of, next_state = atoms.hidden_term, atoms.gates, atoms.state

    @inlined
    def gate_term(whole: Any, at: Any, c: Any, o: Any, k: Any, counts: Any) -> Any:
        constants = RowConstants(c[o], c[o + 1], c[o + 2], c[o + 3], c[o + 4])
        return hidden_term(whole[at], constants, k, counts)

    @inlined
    def advance(
        before: Any, inputs: Any, whole: Any, constants: Any, tables: Any, stage: Any, v: Any, position: Any,
        k: Any, counts: Any,
    ) -> None:  # fmt: skip
        row0, unit0, n, units = position.row0, position.unit0, position.rows, position.units
        intermediates = cuda.local.array(own_4, int32)
        for j in range(lane_pairs):
            row, unit = pair(j, position)
            c = 16 * ((j >> 1) & 1) if halves == 2 else 0
            counts[VALID] = int32(uint32(row0 + row) < n and uint32(unit0 + unit) < units)
            dz = gate_term(whole, j, constants, c, k, counts)
            dr = gate_term(whole, lane_pairs + j, constants, c + 5, k, counts)
            dg = gate_term(whole, 2 * lane_pairs + j, constants, c + 10, k, counts)
            gates = gates_of(
                dz, dr, dg, inputs[j], inputs[lane_pairs + j], inputs[2 * lane_pairs + j], constants[c + 15],
                tables, k, counts,
            )  # fmt: skip
            before[j] = next_state(gates.z, gates.g, before[j], k, counts)
            intermediates[4 * j], intermediates[4 * j + 1] = gates.z, gates.r
            intermediates[4 * j + 2], intermediates[4 * j + 3] = gates.g, gates.added
        for j in range(lane_pairs):
            row, unit = pair(j, position)
            slot = uint32(uint32(uint32(unit >> 4) * rows) + row)
            at = uint32(uint32(stage + uint32(slot << 4)) + uint32(unit & 15))
            ptx.put1(at, int32(before[j] + k[STORED]))
        if v != 0:
            for j in range(lane_pairs):
                row, unit = pair(j, position)
                row, unit = uint32(row0 + row), uint32(unit0 + unit)
                if row < n and unit < units:
                    row_bytes, o = uint64(units) * 4, 4 * j
                    gates = Gates(
                        intermediates[o], intermediates[o + 1], intermediates[o + 2], intermediates[o + 3]
                    )
                    store_gates(v + (row * row_bytes + unit) * 4, row_bytes, gates, k)

    return advance


def state_writer(shape: StepTile) -> Any:
    """The device function that writes a lane's states to y, and to codes unless that is 0."""
    lane_pairs, pair = shape.lane_pairs, pair_locator(shape)
    store_float, store1, mul, float_of = ptx.store_float, ptx.store1, ptx.mul, ptx.float_of

    @inlined
    def give(before: Any, y: Any, codes: Any, scale: Any, position: Any, k: Any) -> None:
        row0, unit0, n, units = position.row0, position.unit0, position.rows, position.units
        for j in range(lane_pairs):
            row, unit = pair(j, position)
            row, unit = uint32(row0 + row), uint32(unit0 + unit)
            if row < n and unit < units:
                at = uint64(row) * units + unit
                store_float(y + at * 4, mul(float32(before[j]), float_of(scale)))
                if codes != 0:
                    store1(codes + at, uint32(before[j] + k[ZERO]))

    return give
