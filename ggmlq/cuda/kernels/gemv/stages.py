"""The stages of the gemv kernel in shared memory, the warps and blocks that have them, and its variants.

A warp copies its own stages and waits for no other warp. Two fragments at a time cost fewer instructions
than one; GPUs with little shared memory take one. The numbers of warps and stages are those that were
fastest on an H200 (bench/notes/gemv.md): more stages in flight do not help.

A block makes outputs of two fragment rows or of four. Each block reads all activations, so with four they are
loaded and converted half as often. A *lone* block has a multiprocessor for itself. A *small* one shares it
with others, and may be one of a cluster that splits the columns of a tile, from capability 9.0 on.

The memory of a block, stage by stage and warp by warp; in the end sums lie where the stages were:

    warp 0                              warp 1   …      partials_at
    stage 0        stage 1   stage 2                    sums from the other blocks of the cluster
    weights, x     …         …
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...layouts.layout import ROWS, STEP, PackedLayout

MIN_CAPABILITY, HOPPER = (8, 0), (9, 0)  # in code for GPUs before Hopper 32 rows and two fragments spill
TWO, FOUR = 2, 4  # fragment rows of a block
MAX_ROWS_OF_FLOATS = 8  # rows of activations, up to which the kernel itself narrows floats
MAX_BYTES_OF_THREE_STAGES = 4 << 10  # of a stage, up to which small blocks have three
MAX_BYTES_OF_MOST_WARPS = 800  # of a fragment, beyond which fewer warps are faster
SMALL_BLOCK_WARPS = 4
# Warps of small blocks that a multiprocessor has registers for, by fragment rows and rows of activations.
RESIDENT_WARPS = {
    TWO: {1: 24, 2: 24, 4: 20, 8: 16, 16: 12},
    FOUR: {1: 20, 2: 16, 4: 16, 8: 16, 16: 12},
}
COLUMNS = (*RESIDENT_WARPS[TWO], 32)  # rows of activations that kernels are made for
SPANS = 2, 1  # fragments of a row in a stage, for GPUs with much or little shared memory
# Bytes of shared memory: of a Hopper multiprocessor, and lost for each block.
HOPPER_SHARED, RESERVED = 227 << 10, 1 << 10
USE_COLUMNS = (1, 2, 4)  # uses of an expert that a block serves
USE_BLOCKS = {TWO: 3, FOUR: 2}  # of experts, that a multiprocessor has registers for, by fragment rows


class SplitBlocks(NamedTuple):
    """The blocks that split a tile, and the blocks on a multiprocessor; (1, 1) is a lone, large block."""

    splits: int
    most: int


ALONE = SplitBlocks(1, 1)


@dataclass(frozen=True)
class GemvStage:
    """The part of a product that a warp works on at a time: fragments of each row, and their activations."""

    layout: PackedLayout
    columns: int  # rows of activations
    span: int  # fragments of a row
    small: bool = False
    fragment_rows: int = TWO
    narrow: bool = False  # of eight rows: their floats have 16 bits

    @property
    def warps(self) -> int:
        """Warps of a block; each has stages of its own."""
        if self.small:
            return SMALL_BLOCK_WARPS
        if self.columns > 4:
            return 8
        return 12 if self.layout.fragment_bytes > MAX_BYTES_OF_MOST_WARPS or self.fragment_rows > TWO else 16

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor has registers and shared memory for."""
        if not self.small:
            return 1
        resident = RESIDENT_WARPS[self.fragment_rows][self.columns] // SMALL_BLOCK_WARPS
        return max(1, min(resident, HOPPER_SHARED // (self.shared + RESERVED)))

    @property
    def most_splits(self) -> int:
        """The most blocks that split the columns of a tile."""
        if not self.small or (self.fragment_rows > TWO and self.columns > 4):
            return 1
        return 8 if self.columns <= MAX_ROWS_OF_FLOATS and self.fragment_rows == TWO else 4

    @property
    def floats(self) -> bool:
        """True where rows of a stage have room for float32, False where they are of 16 bits."""
        return self.columns <= MAX_ROWS_OF_FLOATS and not self.narrow

    @property
    def takes_bits(self) -> bool:
        """True where activations may be of 16 bits; with eight rows a branch in the loop costs too much."""
        return self.columns != MAX_ROWS_OF_FLOATS or self.narrow

    @property
    def tiles(self) -> int:
        """Tiles of eight rows of activations."""
        return -(-self.columns // 8)

    @property
    def numbers(self) -> int:
        """Sums of a lane: four for each fragment row and tile."""
        return 4 * self.fragment_rows * self.tiles

    @property
    def swaps(self) -> bool:
        """True where rows have no room against bank conflicts, and chunks change places instead."""
        return not self.floats

    @property
    def depth(self) -> int:
        """Columns of activations."""
        return STEP * self.span

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of activations."""
        return (4 if self.floats else 2) * self.depth

    @property
    def pitch(self) -> int:
        """Bytes from row to row of activations, padded against bank conflicts."""
        return self.row_bytes + (64 if self.floats and self.columns > 1 else 0)

    @property
    def size(self) -> int:
        """Bytes of a fragment row."""
        return self.span * self.layout.fragment_bytes

    @property
    def x_at(self) -> int:
        """Offset of the activations of a stage, behind its weights."""
        return self.fragment_rows * self.size

    @property
    def length(self) -> int:
        """Bytes of a stage."""
        return self.x_at + self.columns * self.pitch

    @property
    def rows(self) -> int:
        """Rows of a block's outputs."""
        return self.fragment_rows * ROWS

    @property
    def sums(self) -> int:
        """Floats from one column of sums to the next, padded against bank conflicts."""
        return self.rows + 4

    @property
    def count(self) -> int:
        """Stages of a warp: those in flight, and the one it works on."""
        if self.small:
            return 3 if self.columns <= 4 and self.length <= MAX_BYTES_OF_THREE_STAGES else 2
        return 3 if self.columns == 8 and self.span > 1 and self.fragment_rows == TWO else 2

    @property
    def partials_at(self) -> int:
        """Offset of the sums of other blocks: behind the stages, and behind the warps' sums in the end."""
        return self.warps * max(self.count * self.length, self.columns * self.sums * 4)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        other_bytes = self.most_splits * self.columns * self.rows * 4 if self.small else 0
        return self.partials_at + other_bytes


@dataclass(frozen=True)
class ExpertStage(GemvStage):
    """A stage for uses of an expert, of a block of eight warps that shares its multiprocessor."""

    @classmethod
    def of(cls, layout: PackedLayout, columns: int, fragment_rows: int) -> ExpertStage:
        """The stage of two fragments of a row."""
        return cls(layout, columns, SPANS[0], fragment_rows=fragment_rows)

    @property
    def warps(self) -> int:
        return 8

    @property
    def count(self) -> int:
        return 3 if self.columns == 1 and self.fragment_rows == TWO else 2

    @property
    def uses(self) -> int:
        """Offset of a warp's uses in shared memory, behind all else."""
        return super().shared

    @property
    def shared(self) -> int:
        return self.uses + 4 * self.warps * self.columns

    @property
    def blocks(self) -> int:
        return max(1, min(USE_BLOCKS[self.fragment_rows], HOPPER_SHARED // (self.shared + RESERVED)))


def columns_of(fragment_rows: int) -> tuple[int, ...]:
    """The rows of activations that kernels are made for, by the fragment rows of a block."""
    return COLUMNS if fragment_rows == TWO else tuple(RESIDENT_WARPS[fragment_rows])


def columns_for(m: int) -> int:
    """The rows of activations of the smallest kernel that takes ``m`` rows."""
    return next(columns for columns in COLUMNS if columns >= m)


def widths_of(columns: int) -> tuple[bool, ...]:
    """The kernels of so many rows: False for all floats, or those of 32 bits; True for those of 16 alone."""
    return (False, True) if columns == MAX_ROWS_OF_FLOATS else (False,)


def kinds_of(fragment_rows: int, columns: int) -> tuple[bool, ...]:
    """The kinds of blocks that kernels are made for: False for lone blocks, True for small ones."""
    lone, small = fragment_rows == TWO or columns > 4, columns in RESIDENT_WARPS[fragment_rows]
    return (False,) * lone + (True,) * small


def spans(layout: PackedLayout, columns: int, newer: bool = True) -> tuple[int, ...]:
    """The numbers of fragments of a row that a stage may have, the largest first.

    32 rows leave no registers for two of them where there are offsets, or on older GPUs.
    """
    return SPANS[1:] if columns > 16 and (layout.has_offset or not newer) else SPANS
