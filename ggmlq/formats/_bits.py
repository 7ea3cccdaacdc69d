"""Bits that several formats pack alike: first for atoms (one block), then for whole arrays.

Atoms are plain Python that Numba compiles too. Their one rule: widen every byte to int64 before
any arithmetic. A NumPy uint8 wraps in plain Python, and Numba turns ``int(uint8) - 8`` into a
float64; with int64 both agree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .format import Bytes

# --- atoms: one block, byte by byte ---------------------------------------------------------


def u8(block: Bytes, at: int) -> int:
    """The unsigned byte at an address of the block."""
    return np.int64(block[at])  # type: ignore[return-value]


def i8(block: Bytes, at: int) -> int:
    """The signed byte at an address of the block."""
    return (u8(block, at) ^ 128) - 128


def u16(block: Bytes, at: int) -> int:
    """A little-endian 16-bit word."""
    return u8(block, at) | u8(block, at + 1) << 8


def u32(block: Bytes, at: int) -> int:
    """A little-endian 32-bit word."""
    return u16(block, at) | u16(block, at + 2) << 16


# 2**(e - 25) for the 5 exponent bits e of a half: (1024 + mantissa) times that is its value.
HALF_UNIT = np.ldexp(np.float32(1), np.arange(32) - 25).astype(np.float32)


def half_value(bits: int) -> np.float32:
    """The float32 of a half's 16 bits, exact, subnormals included."""
    exponent = bits >> 10 & 31
    mantissa = bits & 1023
    if exponent == 31:
        value = np.float32(np.nan) if mantissa else np.float32(np.inf)
    elif exponent == 0:
        value = np.float32(mantissa) * HALF_UNIT[1]
    else:
        value = np.float32(mantissa + 1024) * HALF_UNIT[exponent]
    return -value if bits & 0x8000 else value


def half(block: Bytes, at: int) -> np.float32:
    """The half at an address of the block, as float32."""
    return half_value(u16(block, at))


def level(table: NDArray[np.int8], code: int) -> int:
    """Entry of a table of levels."""
    return np.int64(table[code])  # type: ignore[return-value]


def entry(book: NDArray[np.int8], row: int, column: int) -> int:
    """Entry of a code book."""
    return np.int64(book[row, column])  # type: ignore[return-value]


def nibble(block: Bytes, at: int, i: int) -> int:
    """Element i of 32 in 16 bytes: the low nibbles are 0 to 15, the high nibbles 16 to 31."""
    return u8(block, at + i % 16) >> 4 * (i // 16) & 15


def pair_bits(block: Bytes, at: int, i: int) -> int:
    """Element i of 256 in 64 bytes of 2-bit codes; 32 bytes carry four runs of 32 elements."""
    return u8(block, at + i // 128 * 32 + i % 32) >> i % 128 // 32 * 2 & 3


def k_scale(block: Bytes, at: int, j: int) -> int:
    """6-bit scale j of 8 in the 12 bytes of q4_K and q5_K (picture in q4_k.py)."""
    if j < 4:
        return u8(block, at + j) & 63
    return u8(block, at + j + 4) & 15 | u8(block, at + j - 4) >> 6 << 4


def k_min(block: Bytes, at: int, j: int) -> int:
    """6-bit minimum j of 8 in the 12 bytes of q4_K and q5_K (picture in q4_k.py)."""
    if j < 4:
        return u8(block, at + j + 4) & 63
    return u8(block, at + j + 4) >> 4 | u8(block, at + j) >> 6 << 4


def sign_bits(index: int) -> int:
    """Seven sign bits to eight: bit 7 makes the number of minus signs even."""
    parity = index ^ index >> 4
    parity ^= parity >> 2
    parity ^= parity >> 1
    return index | (parity & 1) << 7


# --- whole arrays ---------------------------------------------------------------------------


def offset_of(dtype: np.dtype[np.void], field: str) -> int:
    """Byte address of a field in its block."""
    assert dtype.fields is not None
    return dtype.fields[field][1]


def f32(field: NDArray[np.floating]) -> NDArray[np.float32]:
    """Halves as float32, with a last axis of one: the scale of a block with a single group."""
    return field.astype(np.float32)[..., None]


def nibbles(qs: Bytes, run: int = 16) -> Bytes:
    """[..., n] bytes to [..., 2n] nibbles: in each run of bytes the low ones first, then the high."""
    *lead, n = qs.shape
    codes: Bytes = qs.reshape(*lead, n // run, 1, run) >> _steps(2, 4) & np.uint8(15)
    return codes.reshape(*lead, 2 * n)


def pairs(qs: Bytes) -> Bytes:
    """[..., 64] bytes to [..., 256] 2-bit codes; 32 bytes carry four runs of 32 elements."""
    runs = qs.reshape(*qs.shape[:-1], 2, 1, 32)
    codes: Bytes = runs >> _steps(4, 2) & np.uint8(3)
    return codes.reshape(*qs.shape[:-1], 256)


def bits(packed: Bytes) -> Bytes:
    """[..., n] bytes to [..., 8n] bits, the least significant bit of each byte first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def k_scales(s: Bytes) -> tuple[Bytes, Bytes]:
    """The eight 6-bit scales and minima in 12 bytes of q4_K and q5_K (picture in q4_k.py)."""
    a, b, c = s[..., 0:4], s[..., 4:8], s[..., 8:12]
    scale = np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=-1)
    low = np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=-1)
    return scale, low


def signed(magnitude: NDArray[np.int8], minus: Bytes) -> NDArray[np.int8]:
    """Magnitudes with a minus where ``minus`` is 1."""
    return np.where(minus, -magnitude, magnitude)


def _steps(n: int, width: int) -> Bytes:
    """Shifts 0, width, 2 * width, … as a column."""
    return (np.arange(n, dtype=np.uint8) * np.uint8(width))[:, None]
