"""Instructions for emulated_ptx.py: a function each, on the 32 lanes of a warp; False: it has to wait."""

from __future__ import annotations

import re

import numpy as np

from ggmlq.codes import CODES
from ggmlq.cuda.machine.maps import KINDS

OPS, START = {}, 1024 + 128  # where dynamic shared memory begins
TYPES = {
    "u32": np.uint32,
    "s32": np.int32,
    "b32": np.uint32,
    "u64": np.uint64,
    "s64": np.int64,
    "b64": np.uint64,
}
TYPES |= {"f32": np.float32, "u16": np.uint16, "b16": np.uint16, "f64": np.float64, "s16": np.int16}
TYPES |= {"u8": np.uint8, "s8": np.int8, "b8": np.uint8}


class Locked(Exception):
    """All that is left waits."""


class Trap(Exception):
    """A kernel stopped itself."""


def op(*names):
    def decorate(function):
        for name in names:
            OPS[name] = function
        return function

    return decorate


def read(warp, text, kind):
    """An operand as 32 values of a kind."""
    if text in warp.registers:
        value = warp.registers[text]
        if value.dtype == bool or kind is bool:
            return value
        size = np.dtype(kind).itemsize
        if value.itemsize == size:
            return value.view(kind)
        return value.astype(np.uint64).astype(np.dtype(f"u{size}")).view(kind)
    if text in warp.special:
        return warp.special[text].astype(np.uint32).astype(kind)
    if text == "dynamic_shared":
        return np.full(32, START, kind)
    if text.startswith("0d"):
        return np.full(32, int(text[2:], 16), np.uint64).view(np.float64)
    if text.startswith("0f"):
        return np.full(32, int(text[2:], 16), np.uint32).view(np.float32)
    value = int(text, 0)
    size = np.dtype(kind).itemsize
    return np.full(32, value % (1 << 8 * size), f"u{size}").view(kind)


def write(warp, text, value, active):
    """To a register."""
    value = np.asarray(value)
    old = warp.registers.get(text)
    if old is None or old.dtype.itemsize != value.dtype.itemsize:
        old = np.zeros(32, value.dtype)
    warp.registers[text] = np.where(active, value, old.view(value.dtype) if value.dtype != bool else old)


def kind_of(name):
    return TYPES[re.findall(r"\.([usbf]\d\d?)\b", name)[-1]]


def arithmetic(function):
    def run(warp, name, operands, active):
        kind = kind_of(name)
        with np.errstate(all="ignore"):
            values = [read(warp, o, kind) for o in operands[1:]]
            write(warp, operands[0], function(*values).astype(kind), active)

    return run


OPS["add."] = arithmetic(lambda a, b: a + b)
OPS["sub."] = arithmetic(lambda a, b: a - b)
OPS["mul.lo."] = OPS["mul.f32"] = OPS["mul.rn"] = arithmetic(lambda a, b: a * b)
OPS["mad.lo."] = arithmetic(lambda a, b, c: a * b + c)
OPS["min."], OPS["max."] = arithmetic(np.minimum), arithmetic(np.maximum)
OPS["div."], OPS["rem."] = arithmetic(lambda a, b: a // b), arithmetic(lambda a, b: a % b)
OPS["fma."] = arithmetic(lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float32))


@op("shl.", "shr.")
def shift(warp, name, operands, active):
    kind = kind_of(name)
    by, bits = read(warp, operands[2], np.uint32), 8 * np.dtype(kind).itemsize
    a = read(warp, operands[1], kind)
    if name.startswith("shl"):
        found = np.where(by < bits, a << np.minimum(by, bits - 1).astype(kind), 0).astype(kind)
    else:
        found = a >> np.minimum(by, bits - 1).astype(kind)
        found = found if np.dtype(kind).kind == "i" else np.where(by < bits, found, 0).astype(kind)
    write(warp, operands[0], found, active)


@op("and.", "or.", "xor.", "not.")
def bits(warp, name, operands, active):
    kind = bool if ".pred" in name else kind_of(name)
    values = [read(warp, o, kind) for o in operands[1:]]
    functions = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}
    write(warp, operands[0], functions[name.split(".")[0]](*values), active)


@op("bfi.b32")
def bfi(warp, name, operands, active):
    a, b, at, count = (read(warp, o, np.uint32) for o in operands[1:])
    mask = ((np.uint64(1) << count.astype(np.uint64)) - np.uint64(1)).astype(np.uint32) << at
    write(warp, operands[0], b & ~mask | a << at & mask, active)


@op("mul.wide.u16", "mul.wide.u32")
def wide(warp, name, operands, active):
    kind, to = (np.uint16, np.uint32) if name.endswith("u16") else (np.uint32, np.uint64)
    a, b = (read(warp, o, kind).astype(to) for o in operands[1:])
    write(warp, operands[0], a * b, active)


@op("mov.")
def mov(warp, name, operands, active):
    if ".pred" in name:
        value = warp.registers.get(operands[1])
        write(warp, operands[0], np.full(32, operands[1] != "0") if value is None else value, active)
    elif operands[1].startswith("{"):
        low, high = (read(warp, o.strip(), np.uint32).astype(np.uint64) for o in operands[1][1:-1].split(","))
        write(warp, operands[0], low | high << np.uint64(32), active)
    else:
        write(warp, operands[0], read(warp, operands[1], kind_of(name)), active)


@op("cvt.")
def cvt(warp, name, operands, active):
    _, to, source = name.replace(".rn", "").replace(".rzi", "").split(".")
    if to in ("bf16x2", "f16x2"):
        high, low = (narrow(read(warp, o, np.float32), to[:-2]) for o in operands[1:])
        write(warp, operands[0], high << np.uint32(16) | low, active)
    elif to in ("bf16", "f16"):
        write(warp, operands[0], narrow(read(warp, operands[1], np.float32), to).astype(np.uint16), active)
    else:
        with np.errstate(all="ignore"):
            write(warp, operands[0], read(warp, operands[1], TYPES[source]).astype(TYPES[to]), active)


def narrow(value, kind):
    with np.errstate(over="ignore"):
        if kind == "f16":
            return value.astype(np.float16).view(np.uint16).astype(np.uint32)
    word = value.view(np.uint32)
    return (word + np.uint32(0x7FFF) + (word >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)


@op("selp.")
def selp(warp, name, operands, active):
    a, b = (read(warp, o, kind_of(name)) for o in operands[1:3])
    write(warp, operands[0], np.where(warp.registers[operands[3]], a, b), active)


@op("setp.")
def setp(warp, name, operands, active):
    parts = name.split(".")
    kind = kind_of(name)
    a, b = (read(warp, o, kind) for o in operands[1:3])
    compare = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal}
    compare |= {"gt": np.greater, "ge": np.greater_equal, "neu": np.not_equal}
    found = compare[parts[1]](a, b)
    write(warp, operands[0], found & warp.registers[operands[3]] if parts[2] == "and" else found, active)


# --- memory -----------------------------------------------------------------------------------


def place(warp, text):
    """Addresses of an operand in brackets."""
    register, _, offset = text[1:-1].partition("+")
    name = register.strip()
    return read(warp, name, np.uint64).astype(np.int64) + int(offset or 0)


def bytes_at(warp, name, at, size):
    """Of global memory, of this block's shared memory, or of another's."""
    if ".shared" not in name:
        return warp.machine.memory.at(at, size)
    shared = warp.block.shared
    if "::cluster" in name:
        shared, at = warp.machine.cluster[at >> 24].shared, at & 0xFFFFFF
    assert START <= at <= len(shared) - size, f"{name} outside: {at}"
    return shared[at : at + size]


def listed(text):
    return [part.strip() for part in text.strip("{}").split(",")]


@op("ld.param")
def ld_param(warp, name, operands, active):
    value, kind = warp.machine.arguments[operands[1][1:-1]], kind_of(name)
    value %= 1 << 8 * np.dtype(kind).itemsize
    write(warp, operands[0], np.full(32, value, f"u{np.dtype(kind).itemsize}").view(kind), active)


@op("ld.")
def ld(warp, name, operands, active):
    kind, to, at = kind_of(name), listed(operands[0]), place(warp, operands[1])
    size = np.dtype(kind).itemsize
    assert (at[active] % (size * len(to)) == 0).all(), f"{name} is not aligned"
    for i, register in enumerate(to):
        value = np.zeros(32, kind)
        for lane in np.flatnonzero(active):
            value[lane] = bytes_at(warp, name, int(at[lane]) + size * i, size).view(kind)[0]
        if size < 4 and not register.startswith("%rs"):  # a load fills its register
            value = value.astype(np.int64 if register.startswith("%rd") else np.int32)
        elif size == 1:
            value = value.astype(np.int16)
        write(warp, register, value, active)


@op("st.")
def st(warp, name, operands, active):
    kind, values, at = kind_of(name), listed(operands[1]), place(warp, operands[0])
    size = np.dtype(kind).itemsize
    assert (at[active] % (size * len(values)) == 0).all(), f"{name} is not aligned"
    for i, register in enumerate(values):
        value = read(warp, register, kind)
        for lane in np.flatnonzero(active):
            bytes_at(warp, name, int(at[lane]) + size * i, size)[:] = value[lane : lane + 1].view(np.uint8)


@op("mapa.")
def mapa(warp, name, operands, active):
    at, rank = (read(warp, o, np.uint32) for o in operands[1:])
    write(warp, operands[0], at | rank << np.uint32(24), active)


@op("stmatrix.")
def stmatrix(warp, name, operands, active):
    at, words = place(warp, operands[0]), [read(warp, o, np.uint32) for o in listed(operands[1])]
    for i, word in enumerate(words):
        for r in range(8):
            a = int(at[8 * i + r])
            assert a % 16 == 0
            warp.block.shared[a : a + 16] = word[4 * r : 4 * r + 4].view(np.uint8)


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
    """Of so many threads of a block."""
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
    return meets(warp, operands[0], int(operands[1]) if len(operands) > 1 else warp.machine.threads)


@op("barrier.cluster.arrive")
def cluster_arrive(warp, name, operands, active):
    meeting = warp.machine.meeting
    warp.state["cluster"] = meeting.generation
    meeting.arrived += 1
    if meeting.arrived == warp.machine.live:
        meeting.arrived, meeting.generation = 0, meeting.generation + 1


@op("barrier.cluster.wait")
def cluster_wait(warp, name, operands, active):
    return warp.machine.meeting.generation != warp.state["cluster"]


@op("bar.warp.sync", "fence.", "griddepcontrol.", "setmaxnreg.", "cp.async.bulk.commit", "cp.async.bulk.wait")
@op("wgmma.fence", "wgmma.commit", "wgmma.wait", "cp.async.commit", "cp.async.wait", "prefetch.")
def at_once(warp, name, operands, active):
    """All is done when it is asked for."""


@op("shfl.sync.idx")
def shfl(warp, name, operands, active):
    values, lanes = (read(warp, operand, np.uint32) for operand in operands[1:3])
    write(warp, operands[0], values[lanes & 31], active)


# --- the copy engine and the tensor cores -----------------------------------------------------


def swizzled(at):
    """Where a byte of a swizzled box lies."""
    return at ^ (at >> 7 & 7) << 4


def box_of(warp, text, active):
    address, column, row = re.match(r"\[(\S+), \{(\S+), (\S+)\}\]", text).groups()
    lane = int(np.argmax(active))
    assert active.sum() == 1
    box = warp.machine.memory.maps[int(read(warp, address, np.uint64)[lane])]
    return box, int(read(warp, column, np.int32)[lane]), int(read(warp, row, np.int32)[lane])


def moved(warp, box, column, row, shared, put):
    """Copy a box, row by row; what is outside of the matrix is zeros, or stays away."""
    size = KINDS[box.kind][1]
    length = box.box_columns * size
    assert shared % (1024 if box.swizzled else 128) == 0, "a box must be aligned"
    assert length <= 128 or not box.swizzled
    inside = max(0, min(box.columns - column, box.box_columns)) * size
    for r in range(box.box_rows):
        places = shared + r * length + np.arange(length)
        places = swizzled(places) if box.swizzled else places
        assert places.max() < len(warp.block.shared)
        at = box.address + (row + r) * box.pitch + column * size
        there = inside if row + r < box.rows else 0
        memory = warp.machine.memory.at(at, there) if there else places[:0]
        if put:
            memory[:] = warp.block.shared[places[:there]]
        else:
            warp.block.shared[places] = 0
            warp.block.shared[places[:there]] = memory
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


@op("cp.async.bulk.tensor.2d.global")
def put(warp, name, operands, active):
    box, column, row = box_of(warp, operands[0], active)
    moved(warp, box, column, row, lanes(warp, operands[1], active)[0], True)


VALUES = {
    name: CODES[name].decode(np.arange(256, dtype=np.uint8)).astype(np.float64) for name in ("e4m3", "e5m2")
}
VALUES |= {"s8": np.arange(256).astype(np.int8).astype(np.float64), "u8": np.arange(256).astype(np.float64)}


def tile(warp, descriptor, rows, code):
    """[rows, 32] of an operand."""
    word = int(descriptor)
    assert word >> 32 == (1 << 30 | 64), "rows of 128 bytes, swizzled"
    assert word >> 16 & 0x3FFF == 1
    start = (word & 0x3FFF) << 4
    places = swizzled(start + 128 * np.asarray(rows)[:, None] + np.arange(32))
    return VALUES[code][warp.block.shared[places]]


@op("wgmma.mma_async")
def wgmma(warp, name, operands, active):
    n = int(re.search(r"n(\d+)k32", name)[1])
    *_, kind, code_a, code_b = name.split(".")
    sums, first = listed(operands[0]), 16 * (warp.number % 4)
    a, b = (read(warp, o, np.uint64)[0] for o in operands[1:3])
    found = tile(warp, a, first + np.arange(16), code_a) @ tile(warp, b, np.arange(n), code_b).T
    lane = np.arange(32)
    for i, register in enumerate(sums):
        row, column = lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2
        value = found[row, column]
        if operands[3] != "0":
            value = value + read(warp, register, TYPES[kind])
        write(warp, register, value.astype(TYPES[kind]), active)
