"""What of a format kernels keep: derived once, from the format alone, for CPU and CUDA.

Fast kernels do not read blocks as they lie in a file. They keep the same codes and the same scales in an
order of their own: panels on a CPU, planes and strips on a GPU. Where things lie there is theirs to say;
*what* there is to keep is a fact of the format, and stands here: which codes occur, how many bits they
need, and of what numbers its scales are made. A new format gets all three layouts from its own file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from .formats import BlockFormat

SAMPLE = 4096  # blocks of random bytes: enough to meet each code of a format
RUN = 32  # columns of activations that share a scale, where these are quantized
MOST_LEVELS = 16  # entries of a table that a vector register or a few words hold


@dataclass(frozen=True)
class Packing:
    """The facts of a format that decide how it is kept."""

    codes: tuple[int, ...]  # all that occur, ascending
    room: float  # bits a weight in the file
    group: int  # weights that share a scale
    has_offset: bool
    scale: Literal["half", "single", "power", "small_float"]  # "half": perhaps times a byte
    integers: bool  # with the halves of its block 1, scales and offsets are integers of eight bits

    @property
    def lowest(self) -> int:
        """The least code."""
        return self.codes[0]

    @property
    def bits(self) -> int:
        """Of a code, counted from the lowest one."""
        return (self.codes[-1] - self.codes[0]).bit_length()

    @property
    def levels(self) -> tuple[int, ...]:
        """The codes, where few of a wide range occur and an index into them takes fewer bits; else empty."""
        few = len(self.codes) <= MOST_LEVELS and (len(self.codes) - 1).bit_length() < self.bits
        return self.codes if few else ()

    @property
    def alone(self) -> bool:
        """Whether the file has room for each code by itself; else neighbours share bits: a code book."""
        return math.log2(len(self.codes)) <= self.room

    @property
    def run(self) -> int:
        """Columns with one scale of the weights and one of the activations."""
        return min(self.group, RUN)


@cache
def packing(fmt: BlockFormat) -> Packing:
    """The facts of a format: its descriptor asked, and blocks of random bytes looked at."""
    raw = np.random.default_rng(0).integers(0, 256, (SAMPLE, fmt.dtype.itemsize), np.uint8)
    blocks = raw.view(fmt.dtype)[:, 0]
    for name in halves(fmt):
        blocks[name] = 1
    with np.errstate(all="ignore"):
        codes, scale, offset = fmt.unpack(blocks)
    return Packing(
        codes=tuple(np.unique(codes).tolist()),
        room=fmt.bits_per_weight,
        group=fmt.group,
        has_offset=fmt.has_offset,
        scale=_scale(fmt),
        integers=_int8(scale) and (offset is None or _int8(offset)),
    )


def halves(fmt: BlockFormat) -> list[str]:
    """The fields of a block that are halves: d, then m (dmin)."""
    assert fmt.dtype.names is not None
    return [name for name in fmt.dtype.names if fmt.dtype[name] == np.float16]


def _scale(fmt: BlockFormat) -> Literal["half", "single", "power", "small_float"]:
    table = fmt.scales.table
    if table is not None:
        return "power" if (table[1:] == 2 * table[:-1]).all() else "small_float"
    return "single" if fmt.dtype[0] == np.float32 else "half"


def _int8(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bool:
    with np.errstate(invalid="ignore"):
        return bool((values == values.astype(np.int8)).all())
