"""More instructions for emulated_ptx.py: what the lanes of a warp tell each other, and copies of 16 bytes."""

from __future__ import annotations

import numpy as np
from emulated_words import bytes_at, listed, op, place, read, write


@op("vote.sync.ballot")
def ballot(warp, name, operands, active):
    bits = np.uint32(sum(1 << int(lane) for lane in np.flatnonzero(read(warp, operands[1], bool))))
    write(warp, operands[0], np.full(32, bits), active)


@op("popc.b32")
def popc(warp, name, operands, active):
    write(warp, operands[0], np.bitwise_count(read(warp, operands[1], np.uint32)).astype(np.uint32), active)


@op("shfl.sync.bfly", "shfl.sync.up")
def shfl(warp, name, operands, active):
    """The result may be a register and a predicate: whether the other lane is there."""
    to, *there = operands[0].split("|")
    value, by = (read(warp, operand, np.uint32) for operand in operands[1:3])
    lane = np.arange(32)
    other = lane ^ by if "bfly" in name else lane - by.astype(np.int64)
    inside = other >= 0
    write(warp, to, value[np.where(inside, other, lane)], active)
    for register in there:
        write(warp, register, inside, active)


@op("atom.shared.add.u32")
def add_shared(warp, name, operands, active):
    at, by, found = place(warp, operands[1]), read(warp, operands[2], np.uint32), np.zeros(32, np.uint32)
    for lane in np.flatnonzero(active):
        word = bytes_at(warp, ".shared", int(at[lane]), 4).view(np.uint32)
        found[lane] = word[0]
        word[0] += by[lane]
    write(warp, operands[0], found, active)


@op("cp.async.cg.shared.global")
def copy(warp, name, operands, active):
    """Of so many bytes; the rest of the 16 becomes zeros."""
    to, at = place(warp, operands[0]), place(warp, operands[1])
    size = read(warp, operands[3], np.uint32) if len(operands) > 3 else np.full(32, 16)
    for lane in np.flatnonzero(active):
        length = int(size[lane])
        assert to[lane] % 16 == 0
        assert at[lane] % 16 == 0
        place_of = bytes_at(warp, ".shared", int(to[lane]), 16)
        place_of[:] = 0
        if length:
            place_of[:length] = warp.machine.memory.at(int(at[lane]), length)


@op("ldmatrix.sync.aligned.m8n8.x4.shared.b16")
def ldmatrix(warp, name, operands, active):
    """Lane 8 i + r names row r of matrix i; lane 4 g + t gets bytes 4 t … 4 t + 3 of row g of each."""
    at = place(warp, operands[1])
    assert (at % 16 == 0).all()
    for i, register in enumerate(listed(operands[0])):
        matrix = [bytes_at(warp, ".shared", int(at[8 * i + r]), 16).view(np.uint32) for r in range(8)]
        write(warp, register, np.concatenate(matrix), active)
