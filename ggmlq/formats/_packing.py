"""Codes into bytes, in the words of ``_program.py``: the inverses of what ``_bits.py`` unpacks."""

from __future__ import annotations

from ._program import Tile, Vector, get, put


def put_half(out: Tile, at: int, bits: Vector) -> None:
    """Two bytes of a half."""
    put(out, at, bits & 255)
    put(out, at + 1, bits >> 8)


def put_fifths(out: Tile, at: int, codes: Tile) -> None:
    """The fifth bits of 32 codes in 4 bytes, in order from the lowest."""
    for i in range(4):
        byte = get(codes, 8 * i) >> 4
        for bit in range(1, 8):
            byte = byte | get(codes, 8 * i + bit) >> 4 << bit
        put(out, at + i, byte)


def put_pairs(out: Tile, at: int, codes: Tile) -> None:
    """The low two bits of 256 codes in 64 bytes; 32 bytes carry four runs of 32."""
    for i in range(64):
        j = i // 32 * 128 + i % 32
        low = get(codes, j) & 3 | (get(codes, j + 32) & 3) << 2
        put(out, at + i, low | (get(codes, j + 64) & 3) << 4 | (get(codes, j + 96) & 3) << 6)


def put_k_scales(out: Tile, at: int, sc: Tile, m: Tile) -> None:
    """The 12 bytes of eight 6-bit scales and minima (picture in q4_k.py)."""
    for k in range(4):
        put(out, at + k, get(sc, k) | get(sc, 4 + k) >> 4 << 6)
        put(out, at + 4 + k, get(m, k) | get(m, 4 + k) >> 4 << 6)
        put(out, at + 8 + k, get(sc, 4 + k) & 15 | (get(m, 4 + k) & 15) << 4)


def put_nibbles(out: Tile, at: int, codes: Tile, n: int, run: int) -> None:
    """The low four bits of n codes; a run of bytes has its first codes in the low nibbles."""
    for i in range(n // 2):
        j = i // run * 2 * run + i % run
        put(out, at + i, get(codes, j) & 15 | (get(codes, j + run) & 15) << 4)


def put_bits(out: Tile, at: int, codes: Tile, shift: int) -> None:
    """One bit of each of 256 codes: bit g of byte i is that of code 32 g + i."""
    for i in range(32):
        byte = get(codes, i) >> shift & 1
        for g in range(1, 8):
            byte = byte | (get(codes, 32 * g + i) >> shift & 1) << g
        put(out, at + i, byte)
