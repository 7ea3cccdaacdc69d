"""More instructions for emulated_ptx.py: on whole numbers, and of blocks that wait for others in memory."""

from __future__ import annotations

import numpy as np
from emulated_words import TYPES, bytes_at, kind_of, listed, op, place, read, write

from ggmlq.codes import CODES


@op("neg.")
def neg(warp, name, operands, active):
    write(warp, operands[0], np.negative(read(warp, operands[1], kind_of(name))), active)


@op("max.s16x2")
def larger_halves(warp, name, operands, active):
    a, b = (np.ascontiguousarray(read(warp, o, np.uint32)).view(np.int16) for o in operands[1:])
    write(warp, operands[0], np.maximum(a, b).view(np.uint32), active)


@op("mul.wide.s32")
def wide(warp, name, operands, active):
    a, b = (read(warp, o, np.int32).astype(np.int64) for o in operands[1:])
    write(warp, operands[0], a * b, active)


@op("mul.hi.u64")
def mul_high(warp, name, operands, active):
    a, b = (read(warp, o, np.uint64).astype(object) for o in operands[1:])
    write(warp, operands[0], (a * b >> 64).astype(np.uint64), active)


@op("mul.f64")
def mul(warp, name, operands, active):
    write(warp, operands[0], np.multiply(*(read(warp, o, np.float64) for o in operands[1:])), active)


@op("cvta.")
def cvta(warp, name, operands, active):
    write(warp, operands[0], read(warp, operands[1], np.uint64), active)


BYTES = {  # the value of each byte, by the word of an instruction for its kind
    "s8": np.arange(256).astype(np.int8).astype(np.int64),
    "u8": np.arange(256),
    **{n: CODES[n].decode(np.arange(256, dtype=np.uint8)).astype(np.float64) for n in ("e4m3", "e5m2")},
}


def quarters(words, kind="s8"):
    """The four numbers of each word."""
    return BYTES[kind][words.astype(np.uint32)[..., None] >> np.arange(0, 32, 8, dtype=np.uint32) & 255]


@op("dp4a.")
def dp4a(warp, name, operands, active):
    left, right = (f"{kind[0]}8" for kind in name.split(".")[1:])
    a, b, c = (read(warp, o, np.int32) for o in operands[1:])
    write(warp, operands[0], ((quarters(a, left) * quarters(b, right)).sum(1) + c).astype(np.int32), active)


@op("mma.sync.aligned.m16n8k32.row.col.", "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32")
def mma(warp, name, operands, active):
    """Lane 4 g + t has bytes 4 t … of rows g and g + 8, then those 16 further on; of column g likewise."""
    *_, left, right, kind = name.split(".")
    a, b = (np.stack([read(warp, r, np.uint32) for r in listed(o)]) for o in operands[1:3])
    parts = len(b)
    left = (
        quarters(a, left).reshape(parts, 2, 8, 4, 4).transpose(1, 2, 0, 3, 4).reshape(16, -1)
    )  # further, row, g, t
    right = quarters(b, right).reshape(parts, 8, 4, 4).transpose(1, 0, 2, 3).reshape(8, -1)
    lane = np.arange(32)
    product = left @ right.T  # rows that nobody has may hold anything
    for i, (register, before) in enumerate(zip(listed(operands[0]), listed(operands[3]), strict=True)):
        value = product[lane // 4 + 8 * (i >> 1), 2 * (lane % 4) + (i & 1)] + read(warp, before, TYPES[kind])
        write(warp, register, value.astype(TYPES[kind]), active)


@op("cvt.rn.f16x2.e4m3x2", "cvt.rn.f16x2.e5m2x2")
def widened(warp, name, operands, active):
    """Two codes as halves, the lower one in the lower half."""
    codes = read(warp, operands[1], np.uint16)
    low, high = (BYTES[name[13:17]][codes >> shift & 255].astype(np.float16) for shift in (0, 8))
    word = high.view(np.uint16).astype(np.uint32) << np.uint32(16) | low.view(np.uint16)
    write(warp, operands[0], word, active)


def added(warp, name, at, by, active):
    """To memory; what was there."""
    kind = kind_of(name)
    before = np.zeros(32, kind)
    for lane in np.flatnonzero(active):
        where = bytes_at(warp, name, int(at[lane]), np.dtype(kind).itemsize).view(kind)
        before[lane] = where[0]
        where += by[lane]
    return before


@op("atom.global.add", "atom.add")
def atom(warp, name, operands, active):
    by = read(warp, operands[2], kind_of(name))
    write(warp, operands[0], added(warp, name, place(warp, operands[1]), by, active), active)


@op("red.release.gpu.global.add", "red.global.add")
def red(warp, name, operands, active):
    added(warp, name, place(warp, operands[0]), read(warp, operands[1], kind_of(name)), active)


@op("red.global.or")
def red_or(warp, name, operands, active):
    at, by = place(warp, operands[0]), read(warp, operands[1], np.uint32)
    for lane in np.flatnonzero(active):
        where = bytes_at(warp, name, int(at[lane]), 4).view(np.uint32)
        where |= by[lane]


LOOP = 8  # instructions of a loop that waits, at most


@op("ld.acquire")
def look_again(warp, name, operands, active):
    """A load in a loop: as long as nothing changed the warp waits. A later loop may see the same."""
    at, found = place(warp, operands[1]), np.zeros(32, np.uint32)
    lanes = np.flatnonzero(active)
    for lane in lanes:
        found[lane] = bytes_at(warp, name, int(at[lane]), 4).view(np.uint32)[0]
    now = [(int(at[lane]), int(found[lane])) for lane in lanes]
    before, step = warp.state.get("seen", (None, 0))
    if before == now and warp.steps - step <= LOOP:
        return False
    warp.state["seen"] = now, warp.steps
    return write(warp, operands[0], found, active)


@op("ld.relaxed")
def look(warp, name, operands, active):
    """The same once."""
    at, found = place(warp, operands[1]), np.zeros(32, np.uint32)
    for lane in np.flatnonzero(active):
        found[lane] = bytes_at(warp, name, int(at[lane]), 4).view(np.uint32)[0]
    return write(warp, operands[0], found, active)
