"""A digest of bytes at the speed of memory: it shows whether weights that can change have changed.

Each of 64 lanes takes every 64th word: it is xored in, and the lane multiplied by an odd number. Both can
be undone, so a lane in which one word has changed always differs; with several, all but once in 2**32.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .jit import jit
from .kernels import kernel
from .tables import Address
from .workers import share_kernel

LANES = 64
PART = 1 << 18  # words that a thread reads at a time
ODD = np.uint32(0x9E3779B1)


class Digest(NamedTuple):
    """Arguments: words of 32 bits, and the lanes that take them in."""

    words: Address  # uint32 [size]
    size: int
    lanes: Address  # uint32 [parts, LANES], zeros


@cache
def adder() -> Any:
    """Compiled: take parts ``first`` … ``stop`` of the words into their lanes."""
    from .memory import (
        bytes_at,
        reader,  # Numba's names: only for a process that compiles
    )

    arguments_of = reader(Digest)

    def add(arguments: int, first: int, stop: int) -> None:
        fields = arguments_of(arguments)
        for part in range(first, stop):
            count = min(PART, fields.size - part * PART)
            words = bytes_at(fields.words + 4 * PART * part, 1, 4 * count)[0].view(np.uint32)
            lanes = bytes_at(fields.lanes + 4 * LANES * part, 1, 4 * LANES)[0].view(np.uint32)
            for at in range(0, count - count % LANES, LANES):
                for i in range(LANES):
                    lanes[i] = (lanes[i] ^ words[at + i]) * ODD
            for i in range(count % LANES):
                lanes[i] = (lanes[i] ^ words[count - 1 - i]) * ODD

    return jit(add)


def digest(raw: NDArray[Any]) -> bytes:
    """The digest of an array's bytes, to be compared within this process."""
    flat = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    words = flat.size // 4
    whole = flat[: 4 * words]
    if whole.ctypes.data % 4:
        whole = whole.copy()
    lanes = np.zeros((-(-words // PART), LANES), np.uint32)
    share_kernel(
        kernel("machine.digest.adder"), Digest(whole.ctypes.data, words, lanes.ctypes.data), len(lanes)
    )
    return lanes.tobytes() + flat[4 * words :].tobytes()
