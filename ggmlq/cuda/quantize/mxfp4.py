"""mxfp4: a power of two as scale, and the nearest of eight magnitudes; layout in formats/mxfp4.py.

The exponent is floor(log2(amax)) with log2 rounded to float32, so just below a power of two it may
already be the next one. How far below depends on the exponent: a table made with the CPU's own
logarithm says it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...formats._tables import FP4
from ...formats.mxfp4 import DTYPE, POWER, QS
from .. import ptx
from ..atoms import inlined
from ..language import float32, int32, uint32, uint64
from ..launch import Kernel, family
from ._block import block_kernel, four_bytes, largest_size, size_of, store_nibbles

LOWEST = -149  # exponent of the smallest float32
STEPS = 128  # so far below a power of two it certainly counts as below


def _first_that_counts_as_next() -> Any:
    """For each exponent, the first significand of 24 bits whose rounded logarithm is the next integer."""
    exponents = np.arange(LOWEST, 128)[:, None]
    significands = np.arange((1 << 24) - STEPS, 1 << 24)
    log2 = np.log2(np.ldexp(significands.astype(np.float64), exponents - 23)).astype(np.float32)
    return ((1 << 24) - (np.floor(log2) > exponents).sum(axis=1)).astype(np.int32)


NEXT = _first_that_counts_as_next()
LEVELS = FP4[:8].astype(np.float32)


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
def code(value: Any, scale: Any) -> Any:
    """The nearest level; a tie goes to the smaller one, as the rounded distances have it."""
    size = abs(value)
    best, found = size, uint32(0)
    for i in range(1, 8):
        distance = abs(ptx.sub(ptx.mul(scale, LEVELS[i]), size))
        if distance < best:
            best, found = distance, uint32(i)
    if value < float32(0) and found > uint32(0):
        found |= uint32(8)
    return found


@inlined
def encode(v0: Any, v1: Any, v2: Any, v3: Any, part: Any, at: Any, live: Any) -> Any:
    largest = largest_size(v0, v1, v2, v3)
    e = uint32(0)
    if largest > float32(0) and size_of(largest) < uint32(0x7F800000):
        e = uint32(floor_log2(largest) + int32(125)) & uint32(255)
    scale = POWER[e]
    word = four_bytes(code(v0, scale), code(v1, scale), code(v2, scale), code(v3, scale))
    store_nibbles(at + uint64(QS), word, part, live, False)
    if live and part == uint32(0):
        ptx.store1(at, e)
    unfit = uint32(0)
    if e == uint32(255):
        unfit = uint32(0x7C00)
    return unfit


@family()
def kernel() -> Kernel:
    return block_kernel("quantize mxfp4", encode, DTYPE.itemsize)
