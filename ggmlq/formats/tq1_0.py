"""tq1_0: 1.6875 bits a weight, ``value = d * (q - 1)`` with q = 0, 1, 2; 256 weights share d.

    struct block_tq1_0 { uint8_t qs[48]; uint8_t qh[4]; ggml_half d; }

    byte   0  …  31 | 32  …  47 | 48 … 51 | 52 53
           qs       | qs        | qh      | d
    weights in byte m of each part:
           m + 32 n | 160 + m + 16 n | 240 + m + 4 n
           n = 0…4  | n = 0…4        | n = 0…3

A byte holds five base-3 digits ("trits"), weight n = 0 in the most significant one; the fifth
trit of qh is empty. The number t of five trits is stored as ceil(t * 256 / 243): a fixed-point
fraction, so that digit n is the integer part after multiplying by 3 n + 1 times.
"""

from __future__ import annotations

import numpy as np

from ._bits import f32, half, offset_of, u8
from ._round import half_away, inverse
from .format import BlockFormat, Blocks, Bytes, Floats, Parts

DTYPE = np.dtype([("qs", "u1", (48,)), ("qh", "u1", (4,)), ("d", "<f2")])
QS, QH, D = (offset_of(DTYPE, field) for field in ("qs", "qh", "d"))
POWERS = np.array([1, 3, 9, 27, 81], np.uint8)


def unpack(blocks: Blocks) -> Parts:
    qs, qh = blocks["qs"], blocks["qh"]
    trits = [_trits(qs[..., :32], 5), _trits(qs[..., 32:], 5), _trits(qh, 4)]
    codes = np.concatenate(trits, axis=-1).view(np.int8) - np.int8(1)
    return Parts(codes, f32(blocks["d"]), None)


def _trits(packed: Bytes, n: int) -> Bytes:
    """The first n trits of each byte; a run of bytes gives n runs of weights."""
    fraction = packed[..., None, :] * POWERS[:n, None]  # wraps at 256: the integer part drops
    digits = fraction.astype(np.uint16) * 3 >> 8
    return digits.astype(np.uint8).reshape(*packed.shape[:-1], n * packed.shape[-1])


def code(block: Bytes, i: int) -> int:
    if i < 160:
        at, n = QS + i % 32, i // 32
    elif i < 240:
        at, n = QS + 32 + i % 16, (i - 160) // 16
    else:
        at, n = QH + i % 4, (i - 240) // 4
    fraction = u8(block, at) * u8(POWERS, n) & 255
    return (fraction * 3 >> 8) - 1


def scale(block: Bytes, g: int) -> np.float32:
    return half(block, D)


def pack(x: Floats, imatrix: Floats | None) -> Blocks:
    d = np.abs(x).max(axis=-1)
    q = (half_away(x * inverse(d)) + 1).astype(np.int8)
    lead = x.shape[:-1]
    blocks = np.empty(lead, DTYPE)
    blocks["qs"][..., :32] = _pack_trits(q[..., :160].reshape(*lead, 5, 32))
    blocks["qs"][..., 32:] = _pack_trits(q[..., 160:240].reshape(*lead, 5, 16))
    blocks["qh"] = _pack_trits(q[..., 240:].reshape(*lead, 4, 4))
    blocks["d"] = d
    return blocks


def _pack_trits(q: np.ndarray) -> np.ndarray:
    """[..., n, bytes] trits to bytes, the first in the most significant place."""
    n = q.shape[-2]
    number = np.tensordot(q, POWERS[::-1][:n].astype(np.int32), axes=(-2, 0))
    return (number * 256 + 242) // 243


FORMAT = BlockFormat(
    name="tq1_0", id=34, block_size=256, group=256, dtype=DTYPE, zero=1,
    unpack=unpack, code=code, scale=scale, pack=pack, fallback="q4_0",
)  # fmt: skip
