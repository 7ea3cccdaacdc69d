"""More instructions for emulated_ptx.py: barriers, clusters, the copy engine and ``wgmma``."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from emulated_bfloat import bfloat_products
from emulated_integers import BYTES
from emulated_wgmma import products16
from emulated_words import OPS, TYPES, bytes_at, listed, op, place, read, write
from fake_cupy import decoded

from ggmlq.cuda.driver.tensor_maps import KINDS

MOST_BYTES = 1 << 20  # fewer can be announced at a barrier

# --- waiting ----------------------------------------------------------------------------------


class Barrier:
    def __init__(self, count):
        self.count = self.left = count
        self.bytes, self.phase = 0, 0

    def turn(self):
        if self.left == 0 and self.bytes == 0:
            self.left, self.phase = self.count, self.phase + 1
        assert self.left >= 0, "more arrivals than expected"


def lanes(warp, operand, active):
    at = place(warp, operand)
    return [int(at[lane]) for lane in np.flatnonzero(active)]


@op("mbarrier.init")
def mbarrier_init(warp, name, operands, active):
    for at in lanes(warp, operands[0], active):
        assert at % 8 == 0
        warp.block.barriers[at] = Barrier(int(read(warp, operands[1], np.uint32)[np.argmax(active)]))


@op("mbarrier.arrive")
def mbarrier_arrive(warp, name, operands, active):
    for at in lanes(warp, operands[1], active):
        barrier = warp.block.barriers[at]
        if "expect_tx" in name:
            barrier.bytes += int(read(warp, operands[2], np.uint32)[np.argmax(active)])
            assert barrier.bytes < MOST_BYTES
        barrier.left -= 1
        barrier.turn()


@op("mbarrier.try_wait", "mbarrier.test_wait")
def mbarrier_wait(warp, name, operands, active):
    at, parity = place(warp, operands[1]), read(warp, operands[2], np.uint32)
    phases = np.array(
        [warp.block.barriers[int(a)].phase if x else 0 for a, x in zip(at, active, strict=True)]
    )
    ended = phases % 2 != parity
    if not ended[active].all():
        return False
    return write(warp, operands[0], ended, active)


def meets(warp, number, count):
    """True once ``count`` threads of a block have arrived."""
    arrived, generation = warp.block.meetings.setdefault(number, (0, 0))
    waits = warp.state.get(number)
    if waits is None:
        arrived += 32
        if arrived < count:
            warp.state[number] = generation
            warp.block.meetings[number] = arrived, generation
            return False
        warp.block.meetings[number] = 0, generation + 1
        return True
    if waits == generation:
        return False
    del warp.state[number]
    return True


@op("bar.sync")
def bar_sync(warp, name, operands, active):
    return meets(warp, number_of(warp, operands[0]), count_of(warp, operands))


@op("bar.arrive")
def bar_arrive(warp, name, operands, active):
    number = number_of(warp, operands[0])
    arrived, generation = warp.block.meetings.get(number, (0, 0))
    full = arrived + 32 == count_of(warp, operands)
    warp.block.meetings[number] = (0, generation + 1) if full else (arrived + 32, generation)


def number_of(warp, text):
    """The number of a barrier of warps."""
    return int(read(warp, text, np.uint32)[0])


def count_of(warp, operands):
    return int(operands[1]) if len(operands) > 1 else warp.machine.threads


@op("barrier.cluster.arrive")
def cluster_arrive(warp, name, operands, active):
    warp.state["cluster"] = warp.cluster.generation
    warp.cluster.arrived += 1
    warp.cluster.turn()


@op("barrier.cluster.wait")
def cluster_wait(warp, name, operands, active):
    return warp.cluster.generation != warp.state["cluster"]


@op("st.async.")
def st_async(warp, name, operands, active):
    """A store that reports its bytes to a barrier of the block whose memory it writes."""
    write_words = OPS["st."]
    write_words(warp, name, operands[:2], active)
    assert "::complete_tx::bytes" in name
    for at in lanes(warp, operands[2], active):
        barrier = warp.cluster.blocks[at >> 24].barriers[at & 0xFFFFFF]
        barrier.bytes -= 4 * len(listed(operands[1]))
        barrier.turn()


@op("setmaxnreg.")
def setmaxnreg(warp, name, operands, active):
    count = int(operands[0])
    assert count % 8 == 0
    assert 24 <= count <= 256


@op("bar.warp", "bar.warp.sync", "fence.", "griddepcontrol.", "cp.async.bulk.commit", "cp.async.bulk.wait")
@op("wgmma.fence", "wgmma.commit", "wgmma.wait", "cp.async.commit", "cp.async.wait", "prefetch.")
def at_once(warp, name, operands, active):
    """Instructions without effect here: everything is complete when it is issued."""


@op("shfl.sync.idx")
def shfl(warp, name, operands, active):
    values, lanes = (read(warp, operand, np.uint32) for operand in operands[1:3])
    to, *there = operands[0].split("|")
    write(warp, to, values[lanes & 31], active)
    for register in there:
        write(warp, register, np.full(32, True), active)


# --- the copy engine and the tensor cores -----------------------------------------------------


def swizzled(at):
    """The place of a byte of a swizzled box."""
    return at ^ (at >> 7 & 7) << 4


@op("cvta.param")
def parameter_map(warp, name, operands, active):
    """The address of a map that lies in a kernel's parameters, 128 bytes of them."""
    first = int(read(warp, operands[1], np.uint64)[0])
    words = [warp.machine.arguments[each] for each in warp.machine.names[first : first + 16]]
    at = warp.machine.memory.map(decoded(words)) if words[1] else 0
    write(warp, operands[0], np.full(32, at, np.uint64), active)


def box_of(warp, text, active):
    address, column, row = re.match(r"\[(\S+), \{(\S+), (\S+)\}\]", text).groups()
    lane = int(np.argmax(active))
    assert active.sum() == 1
    box = warp.machine.memory.maps[int(read(warp, address, np.uint64)[lane])]
    return box, int(read(warp, column, np.int32)[lane]), int(read(warp, row, np.int32)[lane])


def moved(warp, box, column, row, shared, put, block=None):
    """Copy a box, row by row; what is outside of the matrix is zeros, or stays away."""
    block = block or warp.block
    size = KINDS[box.kind][1]
    length = box.box_columns * size
    assert shared % (1024 if box.swizzled and box.box_rows > 1 else 128) == 0, "a box must be aligned"
    assert column * size % 16 == 0, "left of a box is a multiple of 16 bytes"
    inside = max(0, min(box.columns - column, box.box_columns)) * size
    for r in range(box.box_rows):
        places = shared + r * length + np.arange(length)
        places = swizzled(places) if box.swizzled else places
        assert places.max() < len(block.shared)
        at = box.address + (row + r) * box.pitch + column * size
        there = inside if row + r < box.rows else 0
        memory = warp.machine.memory.at(at, there) if there else places[:0]
        if put:
            memory[:] = block.shared[places[:there]]
        else:
            block.shared[places] = 0
            block.shared[places[:there]] = memory
    return box.box_rows * length


@op("cp.async.ca.shared.global")
def copy(warp, name, operands, active):
    to, at = place(warp, operands[0]), place(warp, operands[1])
    for lane in np.flatnonzero(active):
        assert to[lane] % 4 == at[lane] % 4 == 0
        bytes_at(warp, ".shared", int(to[lane]), 4)[:] = warp.machine.memory.at(int(at[lane]), 4)


@op("cp.async.bulk.tensor.2d.shared::cluster")
def fetch(warp, name, operands, active):
    box, column, row = box_of(warp, operands[1], active)
    size = moved(warp, box, column, row, lanes(warp, operands[0], active)[0], False)
    barrier = warp.block.barriers[lanes(warp, operands[2], active)[0]]
    barrier.bytes -= size
    barrier.turn()


@op("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast")
def fetch_for_all(warp, name, operands, active):
    """A box to the same place of several blocks of the cluster, and to their barriers."""
    box, column, row = box_of(warp, operands[1], active)
    (to, at), bits = (lanes(warp, operands[i], active)[0] for i in (0, 2)), read(warp, operands[3], np.uint16)
    bits = int(bits[np.argmax(active)])
    assert 0 < bits < 1 << len(warp.cluster.blocks)
    for block in (block for block in warp.cluster.blocks if bits >> block.rank & 1):
        block.barriers[at].bytes -= moved(warp, box, column, row, to, False, block)
        block.barriers[at].turn()


@op("cp.async.bulk.tensor.2d.global")
def put(warp, name, operands, active):
    box, column, row = box_of(warp, operands[0], active)
    moved(warp, box, column, row, lanes(warp, operands[1], active)[0], True)


def tile(warp, descriptor, rows, code):
    """Rows of an operand: [rows, 32]."""
    word = int(descriptor)
    assert word >> 32 == (1 << 30 | 64), "rows of 128 bytes, swizzled"
    assert word >> 16 & 0x3FFF == 1
    start = (word & 0x3FFF) << 4
    places = swizzled(start + 128 * np.asarray(rows)[:, None] + np.arange(32))
    return BYTES[code][warp.block.shared[places]]


@cache
def fragments(count):
    """Row and column of a tile that each register of each lane holds: [registers, 32] both."""
    i, lane = np.arange(count)[:, None], np.arange(32)
    return lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2


@op("cp.async.bulk.shared::cluster.global")
def fetch_line(warp, name, operands, active):
    assert active.sum() == 1
    (to, at), size = (lanes(warp, o, active)[0] for o in operands[:2]), read(warp, operands[2], np.uint32)
    size = int(size[np.argmax(active)])
    assert to % 16 == at % 16 == size % 16 == 0
    bytes_at(warp, ".shared", to, size)[:] = warp.machine.memory.at(at, size)
    barrier = warp.block.barriers[lanes(warp, operands[3], active)[0]]
    barrier.bytes -= size
    barrier.turn()


@op("wgmma.mma_async")
def wgmma(warp, name, operands, active):
    if "k16" in name:
        plain = name.endswith(".bf16") and operands[1].startswith("{") and operands[-1] != "1"
        return (bfloat_products if plain else products16)(warp, name, operands, active)
    n = int(re.search(r"n(\d+)k32", name)[1])
    *_, kind, code_a, code_b = name.split(".")
    sums, first = listed(operands[0]), 16 * (warp.number % 4)
    a, b = (read(warp, o, np.uint64)[0] for o in operands[1:3])
    found = tile(warp, a, first + np.arange(16), code_a) @ tile(warp, b, np.arange(n), code_b).T
    values = found[fragments(len(sums))]
    if operands[3] != "0":
        values = values + np.stack([read(warp, register, TYPES[kind]) for register in sums])
    for register, value in zip(sums, values.astype(TYPES[kind]), strict=True):
        write(warp, register, value, active)
