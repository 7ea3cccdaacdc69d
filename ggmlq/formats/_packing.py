"""Codes into bytes, in the words of ``_program.py``: the inverses of what ``_bits.py`` unpacks."""

from __future__ import annotations

from ._program import Tile, Vector, at_once, bits, get, part, put


def put_half(out: Tile, at: int, bits: Vector) -> None:
    """Two bytes of a half."""
    put(out, at, bits & 255)
    put(out, at + 1, bits >> 8)


def put_float(out: Tile, at: int, v: Vector) -> None:
    """Four bytes of a float."""
    for i in range(4):
        put(out, at + i, bits(v) >> 8 * i)


def put_fifths(out: Tile, at: int, codes: Tile) -> None:
    """The fifth bits of 32 codes in 4 bytes, in order from the lowest."""
    for i in at_once(4):
        eight = part(codes, i, 8)
        byte = get(eight, 0) >> 4 & 1
        for bit in range(1, 8):
            byte = byte | (get(eight, bit) >> 4 & 1) << bit
        put(out[at : at + 4], i, byte)


def put_pairs(out: Tile, at: int, codes: Tile) -> None:
    """The low two bits of 256 codes in 64 bytes; 32 bytes carry four runs of 32."""
    for h in range(2):
        half, to = codes[128 * h : 128 * h + 128], out[at + 32 * h : at + 32 * h + 32]
        for i in at_once(32):
            low = get(half[:32], i) & 3 | (get(half[32:64], i) & 3) << 2
            put(to, i, low | (get(half[64:96], i) & 3) << 4 | (get(half[96:], i) & 3) << 6)


def put_k_scales(out: Tile, at: int, sc: Tile, m: Tile) -> None:
    """The 12 bytes of eight 6-bit scales and minima (picture in q4_k.py)."""
    for k in range(4):
        put(out, at + k, get(sc, k) | get(sc, 4 + k) >> 4 << 6)
        put(out, at + 4 + k, get(m, k) | get(m, 4 + k) >> 4 << 6)
        put(out, at + 8 + k, get(sc, 4 + k) & 15 | (get(m, 4 + k) & 15) << 4)


def put_nibbles(out: Tile, at: int, codes: Tile, n: int, run: int) -> None:
    """The low four bits of n codes; a run of bytes has its first codes in the low nibbles."""
    for j in range(0, n // 2, run):
        low, high = codes[2 * j : 2 * j + run], codes[2 * j + run : 2 * j + 2 * run]
        for i in at_once(run):
            put(out[at + j : at + j + run], i, get(low, i) & 15 | (get(high, i) & 15) << 4)


def put_bits(out: Tile, at: int, codes: Tile, shift: int) -> None:
    """One bit of each of 256 codes: bit g of byte i is that of code 32 g + i."""
    for i in at_once(32):
        byte = get(codes[:32], i) >> shift & 1
        for g in range(1, 8):
            byte = byte | (get(codes[32 * g : 32 * g + 32], i) >> shift & 1) << g
        put(out[at : at + 32], i, byte)


def sum_of_bytes(codes: Tile, n: int) -> Vector:
    """The sum of n codes with a sign."""
    total = get(codes, 0) ^ 128
    for i in range(1, n):
        total = total + (get(codes, i) ^ 128)
    return total - 128 * n
