"""``wgmma`` on 16-bit floats for emulated_ptx.py: operands in registers or in swizzled tiles."""

from __future__ import annotations

import re

import numpy as np
from emulated_words import listed, read, write

LANES = np.arange(32)


def floats(words, kind):
    """16-bit floats in float64."""
    if kind == "f16":
        return words.view(np.float16).astype(np.float64)
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def tile(warp, descriptor, rows, columns, kind):
    """Elements [rows, columns] of a tile: rows of 128 bytes, of parts that lie ``leading`` bytes apart."""
    word = int(descriptor)
    assert word >> 32 == (1 << 30 | 64), "rows of 128 bytes, swizzled"
    start, leading = (word & 0x3FFF) << 4, (word >> 16 & 0x3FFF) << 4
    part, within = np.divmod(2 * np.asarray(columns), 128)
    places = start + 128 * np.asarray(rows)[:, None] + part * leading + within
    places ^= (places >> 7 & 7) << 4
    pairs = np.stack([warp.block.shared[places], warp.block.shared[places + 1]], 2)
    return floats(np.ascontiguousarray(pairs).view(np.uint16)[..., 0].copy(), kind)


def of_registers(warp, registers, kind):
    """[16, 16] of a warp: pairs of rows g and g + 8, then those eight columns on."""
    a = np.zeros((16, 16))
    for r, register in enumerate(registers):
        words = np.ascontiguousarray(read(warp, register, np.uint32)).view(np.uint16).reshape(32, 2)
        for e in range(2):
            a[LANES // 4 + 8 * (r % 2), 2 * (LANES % 4) + 8 * (r // 2) + e] = floats(words[:, e].copy(), kind)
    return a


def products16(warp, name, operands, active):
    """Sixteen rows of a warp; sums begin anew where the fourth operand is 0."""
    from emulated_hopper import fragments

    n, kind, sums = int(re.search(r"n(\d+)k16", name)[1]), name.rsplit(".", 1)[1], listed(operands[0])
    columns, deep = np.arange(n), np.arange(16)
    descriptor = int(read(warp, operands[2], np.uint64)[0])
    if operands[1].startswith("{"):
        a = of_registers(warp, listed(operands[1]), kind)
    else:
        a = tile(warp, read(warp, operands[1], np.uint64)[0], 16 * (warp.number % 4) + deep, deep, kind)
    if operands[-1] == "1":
        b = tile(warp, descriptor, deep, columns, kind)
    else:
        b = tile(warp, descriptor, columns, deep, kind).T
    product = (a @ b).astype(np.float32)
    for register, part in zip(sums, product[fragments(len(sums))], strict=True):
        write(warp, register, part + (read(warp, register, np.float32) if operands[3] != "0" else 0), active)
