"""More instructions for emulated_ptx.py: pairs of bfloat16."""

from __future__ import annotations

import re

import numpy as np
from emulated_words import listed, narrow, op, read, write


def floats(words):
    """The low and the high half of 32 words."""
    low, high = words << np.uint32(16), words & np.uint32(0xFFFF0000)
    return [low.view(np.float32), high.view(np.float32)]


@op("fma.rn.bf16x2")
def fma(warp, name, operands, active):
    """In float64, then rounded once to float32 and once to bfloat16: a tie in 2**29 may go the other way."""
    a, b, c = (np.array(floats(read(warp, o, np.uint32)), np.float64) for o in operands[1:])
    low, high = (narrow(half.astype(np.float32), "bf16") for half in a * b + c)
    write(warp, operands[0], high << np.uint32(16) | low, active)


def bfloat_products(warp, name, operands, active):
    """[16, 16] of a warp, in its registers, times a tile [16, columns] of shared memory."""
    from emulated_hopper import fragments, swizzled

    n = int(re.search(r"n(\d+)k16", name)[1])
    sums, lane = listed(operands[0]), np.arange(32)
    a = np.zeros((16, 16))
    for r, register in enumerate(listed(operands[1])):
        for e, value in enumerate(floats(read(warp, register, np.uint32))):
            a[lane // 4 + 8 * (r % 2), 2 * (lane % 4) + 8 * (r // 2) + e] = value
    word = int(read(warp, operands[2], np.uint64)[0])
    assert word >> 32 == (1 << 30 | 64), "rows of 128 bytes, swizzled"
    places = swizzled(((word & 0x3FFF) << 4) + 128 * np.arange(n)[:, None] + np.arange(32))
    b = (warp.block.shared[places].view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    product = (a @ b.T.astype(np.float64)).astype(np.float32)  # rows beyond M are anything
    for register, own in zip(sums, product[fragments(len(sums))], strict=True):
        write(warp, register, own + read(warp, register, np.float32), active)


@op("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
def mma(warp, name, operands, active):
    products(warp, operands, active, floats)


def products(warp, operands, active, split):
    """Lane 4 g + t has pairs 2 t … of rows g and g + 8, then those 8 further on; of column g likewise.

    Summed as tensor cores do: what is below the largest term by 25 bits is cut off, then what no float32 has.
    """
    for _, register, start, own in terms(warp, operands, split):
        write(warp, register, cut_off(np.column_stack([own, read(warp, start, np.float32)])), active)


def terms(warp, operands, split):
    """For each of four sums: its place, its registers (or those of its pair) and its 16 products, by lane."""
    pairs = [[split(read(warp, r, np.uint32)) for r in listed(o)] for o in operands[1:3]]
    a, b = (np.array(each, np.float64) for each in pairs)  # register, element, lane
    a = a.reshape(2, 2, 2, 8, 4).transpose(1, 3, 0, 4, 2).reshape(16, 16)  # row, g; further, t, element
    b = b.reshape(2, 2, 8, 4).transpose(2, 0, 3, 1).reshape(8, 16)
    products, lane = a[:, None] * b, np.arange(32)
    sums = [listed(each) for each in operands[::3]]
    for i in range(4):
        register, start = (each[i * len(each) // 4] for each in sums)
        yield i, register, start, products[lane // 4 + 8 * (i >> 1), 2 * (lane % 4) + (i & 1)]


def cut_off(terms):
    """Sums of rows as float32."""
    largest = np.abs(terms).max(axis=1, keepdims=True)
    unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))) - 25)
    total = (np.trunc(terms / unit) * unit).sum(axis=1)
    found = total.astype(np.float32)
    return np.where(np.abs(found) > np.abs(total), np.nextafter(found, np.float32(0)), found)
