"""All steps of a call in one kernel, whose blocks hand each other the states.

A block has some units, with the weights in registers, and some rows. After each step its states go to all
blocks that have the same rows:

    cluster   into the shared memory of each; the blocks of a cluster meet in hardware
    grid      into memory, where the others read them past their first cache; a counter in memory says when
              all are there

h has two buffers, of which a step reads one and writes the other, so one meeting a step is enough: who writes to a
buffer again has met all who read it. What is not needed by others, y and the part of x for the next step, goes
its way between reaching the meeting point and leaving it.
"""

from __future__ import annotations

from typing import Any

from ..machine.launch import Kernel
from ..words import barrier, codes8, integers, ptx
from ..words.atoms import inlined
from ..words.lane import warp_and_lane
from ..words.language import cuda, float32, int32, int64, types, uint32, uint64
from .atoms import COUNTS, GIVEN, KEPT, STORED, VALID, ZERO, ZEROS, clear, copied, given, tell, verbs
from .tile import BYTES, ENTRIES, ROWS, UNITS, Shape, fetcher, meeting, multiplier, reader, weights_loader


def kernel(shape: Shape, cluster: bool) -> Kernel:
    """Block (rows, units): the units of some rows are neighbours."""
    own, tiles, splits, halves = shape.own, shape.tiles, shape.splits, shape.halves
    threads, rows_, groups, blocks = shape.threads, shape.rows, shape.groups, shape.blocks
    of_stage, of_sums, of_states, pitch = shape.of_stage, shape.of_sums, shape.of_states, shape.pitch
    beside, columns = shape.beside, shape.columns
    size_a, size_d, size_c = 24 * shape.pairs, 12 * tiles * shape.chains, 16 * halves
    own_3, shape_pairs = 3 * own, shape.pairs
    load, multiply, gather = weights_loader(shape), multiplier(shape, fetcher(cluster)), meeting(shape)
    read, hand_on, atoms = reader(shape), publisher(shape, cluster), verbs(True, shared=True)
    hidden, gates, next_state = atoms.hidden, atoms.gates, atoms.state
    load4, load1, put1 = codes8.load4, integers.load1, integers.put1
    first_lane, base = barrier.of_first_lane, ptx.shared_base
    meet_cluster, reach_cluster, await_cluster = (
        barrier.meet_cluster, barrier.reach_cluster, barrier.await_cluster
    )  # fmt: skip
    reach, await_sum = barrier.reach, barrier.await_sum

    @inlined
    def element(i: Any, split: Any, group: Any, near: Any, lane: Any) -> Any:
        """Of a lane's pairs one: its row in the block, and its unit in the block."""
        e = uint32(uint32(split * uint32(own)) + uint32(i))
        row = uint32(uint32(near * uint32(ROWS * tiles)) + uint32(uint32(e >> uint32(2)) * uint32(ROWS)))
        row = uint32(uint32(row + uint32(uint32(lane & uint32(3)) << uint32(1))) + uint32(e & uint32(1)))
        half = uint32(uint32(uint32(e >> uint32(1)) & uint32(1)) << uint32(3))
        return row, uint32(uint32(uint32(group * uint32(UNITS)) + half) + uint32(lane >> uint32(2)))

    def work(
        R: Any, constants_of: Any, biases: Any, tables: Any, entries: Any,
        p: Any,  # [steps · N, 3 · padded]
        h: Any, between: Any,  # states; bytes between both buffers
        y: Any, codes: Any, v: Any, size: Any, scale: Any, first_row: Any, units: Any,  # plain.Outs
        total: Any, counter: Any, reached: Any,  # of the grid: arrivals so far
        steps: Any, first: Any, n: Any, row_from: Any, given_k: Any,
    ) -> None:  # fmt: skip
        k, counts = cuda.local.array(GIVEN, int32), cuda.local.array(KEPT, int32)
        copied(given_k, k)
        clear(counts)
        thread, lane = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.x) & uint32(31)
        warp = first_lane(uint32(thread >> uint32(5)))
        split = uint32(warp % uint32(splits))
        near = uint32(uint32(warp // uint32(splits)) % uint32(beside))
        group = uint32(warp // uint32(splits * beside))
        rank = uint32(uint32(cuda.blockIdx.x) % uint32(blocks))
        part = uint32(uint32(cuda.blockIdx.x) // uint32(blocks))
        row0 = uint32(row_from + uint32(part * uint32(rows_)))
        unit0 = uint32(rank * uint32(groups * UNITS))
        memory, last = base(), uint32(n - uint32(1))
        across = uint32(
            uint32(split * uint32(BYTES * shape_pairs)) + uint32(uint32(lane & uint32(3)) << uint32(4))
        )
        a = cuda.local.array(size_a, int32)
        own_unit = uint32(uint32(unit0 + uint32(group * uint32(UNITS))) + uint32(lane >> uint32(2)))
        load(a, R + uint64(own_unit) * uint64(columns) + uint64(across), uint32(columns), uint32(columns))
        i = thread
        while i < uint32(uint32(3) * entries):
            integers_put(uint32(memory + uint32(i << uint32(2))), load4(tables + uint64(i) * uint64(4)))
            i = uint32(i + uint32(threads))
        of_r = uint32(memory + uint32(entries << uint32(2)))
        of_g = uint32(of_r + uint32(entries << uint32(2)))
        constants = cuda.local.array(size_c, int32)
        _, unit = element(0, split, group, near, lane)
        read(constants, constants_of, biases, uint32(unit0 + unit), uint32(columns))
        before, brought = cuda.local.array(own, int32), cuda.local.array(own_3, int32)
        start = h if cluster else h + uint64(first & uint32(1)) * between
        for j in range(own):
            row, unit = element(j, split, group, near, lane)
            row, unit = min(uint32(row0 + row), last), uint32(unit0 + unit)
            before[j] = int32(load1(start + uint64(row) * uint64(columns) + uint64(unit)) - k[STORED])
            at = p + (uint64(row) * uint64(3 * columns) + uint64(unit)) * uint64(4)
            for gate in range(3):
                brought[gate * own + j] = load4(at + uint64(4 * columns * gate))
        if cluster:
            i = thread
            while i < uint32(rows_ * columns // 16):
                r, c = uint32(i // uint32(columns // 16)), uint32(i % uint32(columns // 16))
                row = min(uint32(row0 + r), last)
                w = load16_of_others(start + uint64(row) * uint64(columns) + uint64(uint32(c << uint32(4))))
                to = uint32(uint32(memory + uint32(of_states)) + uint32(r * uint32(pitch)))
                put16(uint32(to + uint32(c << uint32(4))), w[0], w[1], w[2], w[3])
                i = uint32(i + uint32(threads))
            meet_cluster()  # nobody writes to who has not begun
        cuda.syncthreads()
        row_here = uint32(uint32(near * uint32(ROWS * tiles)) + uint32(lane >> uint32(2)))
        d, whole = cuda.local.array(size_d, int32), cuda.local.array(own_3, int32)
        sums_at = uint32(uint32(memory + uint32(of_sums)) + uint32(
            uint32(uint32(group * uint32(beside)) + near) * uint32(splits * 12 * tiles * 128)
        ))  # fmt: skip
        stage = uint32(memory + uint32(of_stage))
        step, out = uint32(0), first_row * uint64(units)
        p_step = p
        while step < steps:
            now = uint32(uint32(first + step) & uint32(1))
            for j in range(size_d):
                d[j] = int32(0)
            if cluster:
                now = uint32(step & uint32(1))
                buffers = uint32(memory + uint32(of_states))
                at = uint32(buffers + uint32(now * uint32(rows_ * pitch)))
                at = uint32(uint32(at + uint32(row_here * uint32(pitch))) + across)
                multiply(d, a, at, uint32(pitch))
            else:
                source = h + uint64(now) * between + uint64(across)
                multiply(d, a, source + uint64(uint32(row0 + row_here)) * uint64(columns), uint64(columns))
            gather(d, whole, sums_at, split, lane)
            for j in range(own):
                row, unit = element(j, split, group, near, lane)
                c = 16 * ((j >> 1) & 1) if halves == 2 else 0
                inside = uint32(row0 + row) < n and uint32(unit0 + unit) < units
                counts[VALID] = int32(inside)
                dz = hidden(whole[j], constants[c], constants[c + 1], constants[c + 2], constants[c + 3],
                            constants[c + 4], k, counts)  # fmt: skip
                dr = hidden(whole[own + j], constants[c + 5], constants[c + 6], constants[c + 7],
                            constants[c + 8], constants[c + 9], k, counts)  # fmt: skip
                dg = hidden(whole[2 * own + j], constants[c + 10], constants[c + 11], constants[c + 12],
                            constants[c + 13], constants[c + 14], k, counts)  # fmt: skip
                z, r, g, a_ = gates(dz, dr, dg, brought[j], brought[own + j], brought[2 * own + j],
                                    constants[c + 15], memory, of_r, of_g, k, counts)  # fmt: skip
                before[j] = next_state(z, g, before[j], k, counts)
                slot = uint32(uint32(uint32(unit >> uint32(4)) * uint32(rows_)) + row)
                put1(uint32(uint32(stage + uint32(slot << uint32(4))) + uint32(unit & uint32(15))),
                     int32(before[j] + k[STORED]))  # fmt: skip
                if v != uint64(0) and inside:
                    at_v = (first_row + uint64(step) * uint64(n) + uint64(uint32(row0 + row))) * uint64(4)
                    at_v = v + (at_v * uint64(units) + uint64(uint32(unit0 + unit))) * uint64(4)
                    every = uint64(units) * uint64(4)
                    store4(at_v, uint32(z + k[ZEROS]))
                    store4(at_v + every, uint32(r + k[ZEROS + 1]))
                    store4(at_v + every * uint64(2), uint32(g + k[ZEROS + 2]))
                    store4(at_v + every * uint64(3), uint32(a_ + k[ZEROS + 3]))
            cuda.syncthreads()
            hand_on(stage, memory, h, between, now, row0, unit0)
            if cluster:
                reach_cluster()
            else:
                cuda.syncthreads()
                if thread == uint32(0):
                    reach(counter + uint64(part) * uint64(128), uint32(1))
            step = uint32(step + uint32(1))
            more = uint64(n) * uint64(12 * columns) if step < steps else uint64(0)
            p_step = p_step + more
            for j in range(own):
                row, unit = element(j, split, group, near, lane)
                row, unit = uint32(row0 + row), uint32(unit0 + unit)
                if row < n and unit < units:
                    at = out + uint64(row) * uint64(units) + uint64(unit)
                    store_float(y + at * uint64(4), mul(float32(before[j]), float_of(scale)))
                    if codes != uint64(0):
                        store1(codes + at, uint32(before[j] + k[ZERO]))
                at = p_step + (uint64(min(row, last)) * uint64(3 * columns) + uint64(unit)) * uint64(4)
                for gate in range(3):
                    brought[gate * own + j] = load4(at + uint64(4 * columns * gate))
            out = out + uint64(n) * uint64(units)
            if cluster:
                await_cluster()
            else:
                if thread == uint32(0):
                    await_sum(
                        counter + uint64(part) * uint64(128), uint32(reached + uint32(step * uint32(blocks)))
                    )
                cuda.syncthreads()
        if cluster:
            for j in range(own):
                row, unit = element(j, split, group, near, lane)
                row, unit = uint32(row0 + row), uint32(unit0 + unit)
                if row < n and unit < units:
                    at = uint64(row) * uint64(columns) + uint64(unit)
                    store1(h + at, uint32(before[j] + k[STORED]))
        tell(counts, total)

    integers_put, put16, load16_of_others = ptx.put, integers.put16, integers.load16_of_others
    store4, store1, store_float, mul, float_of = (
        ptx.store4,
        ptx.store1,
        ptx.store_float,
        ptx.mul,
        ptx.float_of,
    )
    parts = (
        *(uint64,) * 4, uint32, *(uint64,) * 3, *(uint64,) * 3, uint32, uint32, uint64, uint32,
        types.Array(int64, 1, "C"), uint64, *(uint32,) * 5, given(True),
    )  # fmt: skip
    name = f"gru steps in a {'cluster' if cluster else 'grid'}, {shape}{', guarded' * barrier.GUARDED}"
    return Kernel(
        name, work, *parts, threads=threads, shared=shape.shared if cluster else of_states,
        least=(9, 0) if cluster else (8, 0), together=not cluster,
    )  # fmt: skip


def publisher(shape: Shape, cluster: bool) -> Any:
    """The device function that hands a block's states on, 16 units of a row at a time."""
    rows, groups, threads, blocks = shape.rows, shape.groups, shape.threads, shape.blocks
    of_states, pitch, columns = shape.of_states, shape.pitch, shape.columns
    chunks, take16 = rows * groups, ptx.take16
    put16_of, store16 = barrier.put16_of, ptx.store16
    count = chunks * (blocks if cluster else 1)

    @inlined
    def hand_on(stage: Any, memory: Any, h: Any, between: Any, now: Any, row0: Any, unit0: Any) -> None:
        i = uint32(cuda.threadIdx.x)
        other = uint32(uint32(1) - now)
        while i < uint32(count):
            chunk, rank = uint32(i % uint32(chunks)), uint32(i // uint32(chunks))
            v = take16(uint32(stage + uint32(chunk << uint32(4))))
            group, row = uint32(chunk // uint32(rows)), uint32(chunk % uint32(rows))
            column = uint32(unit0 + uint32(group << uint32(4)))
            if cluster:
                to = uint32(uint32(memory + uint32(of_states)) + uint32(other * uint32(rows * pitch)))
                to = uint32(uint32(to + uint32(row * uint32(pitch))) + column)
                put16_of(to, rank, v[0], v[1], v[2], v[3])
            else:
                at = h + uint64(other) * between + uint64(uint32(row0 + row)) * uint64(columns)
                store16(at + uint64(column), uint32(v[0]), uint32(v[1]), uint32(v[2]), uint32(v[3]))
            i = uint32(i + uint32(threads))

    return hand_on


__all__ = ["COUNTS", "ENTRIES", "kernel", "warp_and_lane"]
