"""More instructions for emulated_ptx.py: pairs of halves, their products by tensor cores, turned tiles."""

from __future__ import annotations

import emulated_bfloat
import numpy as np
from emulated_votes import bytes_at
from emulated_words import listed, op, place, read, write


def pairs(words):
    """The low and the high half of 32 words, as float64."""
    return list(np.ascontiguousarray(words, np.uint32).view(np.float16).reshape(-1, 2).T.astype(np.float64))


def joined(low, high):
    """Two halves in each of 32 words, each rounded once."""
    both = np.stack([low, high], 1).astype(np.float16)
    return np.ascontiguousarray(both).view(np.uint32).reshape(-1)


def arithmetic(function):
    def run(warp, name, operands, active):
        numbers = (pairs(read(warp, o, np.uint32)) for o in operands[1:])
        write(warp, operands[0], joined(*(function(*n) for n in zip(*numbers, strict=True))), active)

    return run


op("add.rn.f16x2")(arithmetic(lambda a, b: a + b))
op("sub.rn.f16x2")(arithmetic(lambda a, b: a - b))
op("mul.rn.f16x2")(arithmetic(lambda a, b: a * b))
op("fma.rn.f16x2")(arithmetic(lambda a, b, c: a * b + c))


@op("cvt.rn.f16x2.f32")
def narrowed(warp, name, operands, active):
    high, low = (read(warp, o, np.float32) for o in operands[1:])
    write(warp, operands[0], joined(low, high), active)


@op("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
def mma(warp, name, operands, active):
    emulated_bfloat.products(warp, operands, active, pairs)


@op("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16")
def mma_of_halves(warp, name, operands, active):
    """Sums as float32, then rounded to halves, of which a register has those of columns 2 t and 2 t + 1."""
    sums = {}
    for i, register, start, own in emulated_bfloat.terms(warp, operands, pairs):
        before = pairs(read(warp, start, np.uint32))[i % 2]
        sums.setdefault(register, []).append(emulated_bfloat.cut_off(np.column_stack([own, before])))
    for register, both in sums.items():
        write(warp, register, joined(*both), active)


@op("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16")
def ldmatrix(warp, name, operands, active):
    """Lane 8 i + r names row r of matrix i; lane 4 g + t gets rows 2 t and 2 t + 1 of column g of each."""
    at = place(warp, operands[1])
    assert (at % 16 == 0).all()
    for i, register in enumerate(listed(operands[0])):
        rows = [bytes_at(warp, ".shared", int(at[8 * i + r]), 16).view(np.uint16) for r in range(8)]
        write(warp, register, np.ascontiguousarray(np.transpose(rows)).view(np.uint32).reshape(-1), active)


@op("dp2a.lo.u32.u32")
def dp2a(warp, name, operands, active):
    a, b, c = (read(warp, o, np.uint32) for o in operands[1:])
    low, high = np.uint32(0xFFFF), np.uint32(0xFF)
    total = c + (a & low) * (b & high) + (a >> np.uint32(16)) * (b >> np.uint32(8) & high)
    write(warp, operands[0], total, active)


@op("movmatrix.sync.aligned.m8n8.trans.b16")
def movmatrix(warp, name, operands, active):
    """Lane 4 g + t has elements 2 t and 2 t + 1 of row g, and gets them of column g."""
    matrix = np.ascontiguousarray(read(warp, operands[1], np.uint32)).view(np.uint16).reshape(8, 8)
    write(warp, operands[0], np.ascontiguousarray(matrix.T).view(np.uint32).reshape(-1), active)
