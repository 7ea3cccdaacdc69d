"""Facts that kernels need of a format: derived once, from the format alone, for CPU and CUDA.

Fast kernels do not read blocks as they lie in a file. They keep the same codes and the same scales in an
order of their own: panels on a CPU, unpacked and packed weights on a GPU. They say where things lie;
*what* there is to keep is a fact of the format, and stands here: which codes occur, how many bits they
need, and of what numbers its scales are made. A new format gets all three layouts from its own file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from . import BlockFormat
from .format import Blocks, Floats

SAMPLE = 4096  # blocks of random bytes: enough to meet each code of a format
RUN = 32  # columns of activations that share a scale, where these are quantized
MOST_LEVELS = 16  # entries of a table that a vector register or a few words hold


@dataclass(frozen=True)
class Packing:
    """The facts of a format that decide the layout of its packed weights."""

    codes: tuple[int, ...]  # all that occur, ascending
    group: int  # weights that share a scale
    has_offset: bool
    scale: Literal["half", "single", "power", "small_float"]  # "half": perhaps times a byte
    integers: bool  # over d and a unit, scales and offsets are integers of eight bits: ``over`` gives d

    @property
    def lowest(self) -> int:
        """The least of the codes."""
        return self.codes[0]

    @property
    def bits(self) -> int:
        """Number of bits of a code, counted from the lowest one."""
        return (self.codes[-1] - self.codes[0]).bit_length()

    @property
    def levels(self) -> tuple[int, ...]:
        """The codes, where few of a wide range occur and an index into them takes fewer bits; else empty."""
        few = len(self.codes) <= MOST_LEVELS and (len(self.codes) - 1).bit_length() < self.bits
        return self.codes if few else ()

    @property
    def run(self) -> int:
        """Columns with one scale of the weights and one of the activations."""
        return min(self.group, RUN)


@cache
def packing(fmt: BlockFormat) -> Packing:
    """The facts of a format, from its descriptor and from the values of random blocks."""
    raw = np.random.default_rng(0).integers(0, 256, (SAMPLE, fmt.dtype.itemsize), np.uint8)
    blocks = raw.view(fmt.dtype)[:, 0]
    for name in halves(fmt):
        blocks[name] = 1
    with np.errstate(all="ignore"):
        codes, scale, offset = fmt.unpack(blocks)
        scale = sub_scales(fmt, scale, blocks)
    return Packing(
        codes=tuple(np.unique(codes).tolist()),
        group=fmt.group,
        has_offset=fmt.has_offset,
        scale=_scale(fmt),
        integers=_int8(scale) and (offset is None or _int8(offset)),
    )


def halves(fmt: BlockFormat) -> list[str]:
    """The fields of a block that are halves: d, then m (dmin)."""
    assert fmt.dtype.names is not None
    return [name for name in fmt.dtype.names if fmt.dtype[name] == np.float16]


def over(fmt: BlockFormat, blocks: Blocks) -> NDArray[np.float16]:
    """Factors of the integers of blocks: d, and a half for the offsets where there are any [..., n]."""
    if fmt.scales.d is None:
        names = halves(fmt)[: 1 + fmt.has_offset]
        return np.stack([blocks[name] for name in names], axis=-1)
    octets = np.ascontiguousarray(blocks)[..., None].view(np.uint8)
    bits = np.asarray(fmt.scales.d(np.moveaxis(octets, -1, 0)))
    return bits.astype(np.uint16).view(np.float16)[..., None]


def sub_scales(fmt: BlockFormat, scale: Floats, blocks: Blocks) -> Floats:
    """Scales [..., groups] of blocks over the unit, and over d where no field of a block could be made 1."""
    scale = scale / np.float32(fmt.scales.unit)
    if fmt.scales.d is None:
        return scale
    d = over(fmt, blocks).astype(np.float32)
    known = np.isfinite(d) & (d != 0)  # elsewhere any integer gives the same: zeros, or no numbers
    with np.errstate(invalid="ignore"):
        return np.where(known, scale / np.where(known, d, 1), np.float32(1))


def _scale(fmt: BlockFormat) -> Literal["half", "single", "power", "small_float"]:
    table = fmt.scales.table
    if table is not None:
        return "power" if (table[1:] == 2 * table[:-1]).all() else "small_float"
    return "single" if fmt.dtype[0] == np.float32 else "half"


def _int8(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bool:
    with np.errstate(invalid="ignore"):
        return bool((values == values.astype(np.int8)).all())
