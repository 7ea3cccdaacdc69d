"""Formats in whose blocks each weight has bits of its own, and how codes are written there.

Encoders choose scales and codes together. Error feedback keeps the scales and chooses codes one column
after the other, so it must write codes into blocks that stand. Where they lie follows from ``unpack``: the
bits of a weight are those that change its code and no other. Grids and packed trits have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from .format import BlockFormat, Bytes, Format

TRIES = 8  # blocks of random bytes in which each bit is turned over: in one a bit may change nothing


@dataclass(frozen=True)
class Direct:
    """The places of codes in a block."""

    bits: NDArray[np.intp]  # [block_size, bits of a code], counted from the lowest of byte 0
    levels: NDArray[np.float32]  # codes that occur, ascending
    patterns: NDArray[np.uint8]  # the bits of each

    def write(self, raw: Bytes, codes: NDArray[np.intp]) -> None:
        """Write codes [n, block_size], as numbers of levels, into blocks [n, bytes]."""
        octets = np.unpackbits(raw, axis=-1, bitorder="little")
        patterns = self.patterns[codes]
        for bit, places in enumerate(self.bits.T):
            octets[:, places] = patterns >> bit & 1
        raw[...] = np.packbits(octets, axis=-1, bitorder="little")


@cache
def direct(fmt: Format) -> Direct | None:
    """The places of a format's codes, or None where weights share bits."""
    if not isinstance(fmt, BlockFormat) or {"s", "bsums"} & {
        *(fmt.dtype.names or ())
    }:  # sums of codes lie beside
        return None
    size = fmt.dtype.itemsize
    raw = np.random.default_rng(0).integers(0, 256, (TRIES, size), np.uint8)
    turned = np.repeat(raw[:, None], 8 * size, axis=1)
    bits = np.arange(8 * size)
    turned[:, bits, bits // 8] ^= (1 << bits % 8).astype(np.uint8)
    changed = (_codes(fmt, turned) != _codes(fmt, raw[:, None])).any(axis=0)  # [bits, block_size]
    of_weight = changed.sum(axis=0)
    if (changed.sum(axis=1) > 1).any() or len(np.unique(of_weight)) != 1:
        return None
    places = np.nonzero(changed.T)[1].reshape(fmt.block_size, -1)
    count = places.shape[1]
    octets = np.zeros((1 << count, 8 * size), np.uint8)
    octets[:, places] = (np.arange(1 << count)[:, None, None] >> np.arange(count) & 1).astype(np.uint8)
    codes = _codes(fmt, np.packbits(octets, axis=-1, bitorder="little"))
    if (codes != codes[:, :1]).any():
        return None
    levels, patterns = np.unique(codes[:, 0], return_index=True)
    return Direct(places, levels.astype(np.float32), patterns.astype(np.uint8))


def _codes(fmt: BlockFormat, raw: Bytes) -> NDArray[np.int8]:
    blocks = np.ascontiguousarray(raw).view(fmt.dtype)[..., 0]
    with np.errstate(all="ignore"):  # scales of random bytes may be no numbers
        return fmt.unpack(blocks[..., None])[0].reshape(*blocks.shape, fmt.block_size)
