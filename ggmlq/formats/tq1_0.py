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
from ._extremes import largest_of_256
from ._packing import put_half
from ._program import Packer, Tile, at_once, get, put, small, to_half
from ._round import half_away, inverse
from .format import BlockFormat, Blocks, Bytes, Parts

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


def encode(x: Tile, importance: None, mean_square: None, out: Tile) -> None:
    codes, d = small(x, 256), largest_of_256(x)
    k = inverse(d)
    for i in at_once(256):
        put(codes, i, half_away(get(x, i) * k) + 1)
    put_trits(out[QS : QS + 32], codes[:160], 32, 5)
    put_trits(out[QS + 32 : QS + 48], codes[160:240], 16, 5)
    put_trits(out[QH : QH + 4], codes[240:], 4, 4)
    put_half(out, D, to_half(d))


def put_trits(out: Tile, codes: Tile, size: int, n: int) -> None:
    """Bytes of n trits, the first in the most significant place; the fifth of four is 0."""
    for i in at_once(size):
        number = get(codes[:size], i)
        for place in range(1, n):
            number = number * 3 + get(codes[place * size : place * size + size], i)
        if n == 4:
            number = number * 3
        put(out, i, (number * 256 + 242) * 69043 >> 24)  # over 243, by a product that is exact for these


FORMAT = BlockFormat(
    name="tq1_0", id=34, block_size=256, group=256, dtype=DTYPE, zero=1,
    unpack=unpack, code=code, scale=scale, pack=Packer(encode, DTYPE), fallback="q4_0",
)  # fmt: skip
