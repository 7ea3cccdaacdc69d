"""``mma`` with scales for emulated_ptx.py, as PTX defines it for 12.x: exact products, one rounding.

Which lane has which scale is PTX's "scale-a-data" and "scale-b-data" with thread 0: of row g lane 4 g, of row
g + 8 lane 4 g + 1, of column g lane 4 g.
"""

from __future__ import annotations

import numpy as np
from emulated_hopper import VALUES
from emulated_words import listed, op, read, write

from ggmlq.codes import CODES
from ggmlq.formats._tables import FP4

POWERS = CODES["e8m0"].decode(np.arange(256, dtype=np.uint8)).astype(np.float64)


def floats(words, kind):
    """Words [registers, lanes] as floats: bytes or nibbles, the lowest first."""
    if kind == "e4m3":
        return VALUES["e4m3"][words.view(np.uint8).reshape(*words.shape, 4)]
    return FP4[words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15] / 2


def scales(warp, operand, pick, lane, count):
    """Scales of a lane's word: bytes from the picked one on."""
    byte, thread = (int(number) for number in listed(pick))
    assert thread == 0
    bytes_of = np.ascontiguousarray(read(warp, operand, np.uint32)).view(np.uint8).reshape(32, 4)
    assert count != 4 or not byte
    picked = bytes_of[lane, byte : byte + count]
    if count == 1:
        return POWERS[picked]
    return VALUES["e4m3"][picked]


@op("mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4", "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4")
@np.errstate(invalid="ignore", over="ignore")  # rows that nobody has may hold anything
def mma(warp, name, operands, active):
    """Rows and columns as those of bytes: emulated_integers.py."""
    kind, count = ("e4m3", 1) if "mxf8f6f4" in name else ("e2m1", 4)
    a, b = (floats(np.stack([read(warp, r, np.uint32) for r in listed(o)]), kind) for o in operands[1:3])
    left = a.reshape(2, 2, 8, 4, -1).transpose(1, 2, 0, 3, 4).reshape(16, count, -1)
    right = b.reshape(2, 8, 4, -1).transpose(1, 0, 2, 3).reshape(8, count, -1)
    quads = 4 * np.arange(8)
    left = left * scales(warp, operands[4], operands[5], np.concatenate([quads, quads + 1]), count)[..., None]
    right = right * scales(warp, operands[6], operands[7], quads, count)[..., None]
    products, lane = left.reshape(16, -1) @ right.reshape(8, -1).T, np.arange(32)
    for i, (register, before) in enumerate(zip(listed(operands[0]), listed(operands[3]), strict=True)):
        value = products[lane // 4 + 8 * (i >> 1), 2 * (lane % 4) + (i & 1)]
        write(warp, register, (value + read(warp, before, np.float32)).astype(np.float32), active)
