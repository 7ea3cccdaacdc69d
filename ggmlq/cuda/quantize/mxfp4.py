"""The GPU's encoder of mxfp4: a power of two as scale, the nearest of eight magnitudes; see formats/mxfp4.py.

The exponent is floor(log2(amax)) with log2 rounded to float32, so just below a power of two it may
already be the next one. How far below depends on the exponent: a table made with the CPU's own
logarithm says how far.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...formats.mxfp4 import DTYPE, QS
from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.codes import size_of
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from ._block import block_kernel, largest_size

LOWEST = -149  # exponent of the smallest float32
STEPS = 128  # so far below a power of two it certainly counts as below


def _first_that_counts_as_next() -> Any:
    """For each exponent, the first significand of 24 bits whose rounded logarithm is the next integer."""
    exponents = np.arange(LOWEST, 128)[:, None]
    significands = np.arange((1 << 24) - STEPS, 1 << 24)
    log2 = np.log2(np.ldexp(significands.astype(np.float64), exponents - 23)).astype(np.float32)
    return ((1 << 24) - (np.floor(log2) > exponents).sum(axis=1)).astype(np.int32)


NEXT = _first_that_counts_as_next()


@inlined
def floor_log2(value: Any) -> Any:
    """floor(float32(log2(value))) of a positive float."""
    bits = ptx.bits_of(value)
    shift = int32(0)
    if bits < uint32(1 << 23):  # subnormal: its exponent is found in a number 2**24 times as large
        bits = ptx.bits_of(ptx.mul(value, float32(1 << 24)))
        shift = int32(24)
    exponent = int32(bits >> uint32(23)) - int32(127) - shift
    significand = int32(bits & uint32(0x7FFFFF)) | int32(0x800000)
    return exponent + int32(significand >= NEXT[exponent - LOWEST])


@inlined
def exponent_of(value: Any) -> Any:
    """The block's exponent: the floor of log2, read from the exponent bits where they suffice."""
    bits = ptx.bits_of(value)
    exponent = int32(bits >> uint32(23)) - int32(127)
    if exponent < int32(-126) or uint32(bits & uint32(0x7FFFFF)) >= uint32((1 << 23) - STEPS):
        exponent = floor_log2(value)
    return exponent


@inlined
def code(value: Any, per: Any, most: Any) -> Any:
    """The nearest level's code in the four highest bits; a tie goes to the smaller level.

    In u the levels are 0 0.5 1 1.5 2 3 4 6: from 1 on a bit of exponent and one of significand
    count them, and so they do below 1 in (u + 1) / 2. That is rounded up, as rounding to a tie
    would hide that u lies above it.
    """
    u = ptx.mul(abs(value), per)
    u = ptx.smaller(ptx.larger(u, ptx.fma_up(u, float32(0.5), float32(0.5))), most)
    counted = uint32(uint32(ptx.bits_of(u) - uint32(0x3EE00001)) * uint32(64))
    return uint32(counted | uint32(ptx.bits_of(value) & uint32(0x80000000)))


@inlined
def both(low: Any, high: Any) -> Any:
    """Two codes as the highest byte."""
    mask = uint32(0xF0000000)
    return uint32(uint32(high & mask) | uint32(uint32(low >> uint32(4)) & ~mask))


@inlined
def encode(v: Any, part: Any, at: Any, live: Any) -> Any:
    largest = largest_size(v)
    e = uint32(0)
    if largest > float32(0) and size_of(largest) < uint32(0x7F800000):
        e = uint32(uint32(exponent_of(largest) + int32(125)) & uint32(255))
    per = ptx.float_of(uint32(uint32(254) - e) << uint32(23))  # half the inverse of the scale
    most = float32(3) if e == uint32(253) else float32(6)  # 4 overflows
    q = cuda.local.array(4, uint32)
    for i in range(4):
        q[i] = both(code(v[i], per, most), code(v[i + 4], per, most))
    word = ptx.low_halves(ptx.high_bytes(q[0], q[1]), ptx.high_bytes(q[2], q[3]))
    sevens = uint32(0x77777777)
    word = uint32(word & uint32(uint32(uint32(word & sevens) + sevens) | sevens))  # no sign at a zero
    if live:
        for i in range(4):
            ptx.store1(at + uint64(QS + i) + uint64(part) * uint64(4), uint32(word >> uint32(8 * i)))
        if part == uint32(0):
            ptx.store1(at, e)
    return uint32(0x7C00) if e == uint32(255) else uint32(0)


@family()
def kernel() -> Kernel:
    return block_kernel("quantize mxfp4", encode, DTYPE.itemsize)
