"""Tiles: the outputs of a block and the layout of its stages; the order of a product's tiles; work units;
the x_tiles that are made late; the problems that such kernels refuse.

A tile is computed with swapped operands (swap_ab): weights are the operand A of ``wgmma``, 64 rows a
warpgroup, and come from registers, for they have to be unpacked anyway. Activations are B and stay in shared
memory, so a tile has as many columns as rows of activations, which may be few.

    stage    x_tiles [fragments][columns, 64]   swizzled, as layouts/x_tiles.py made them
             weights [8][fragments]             as layouts/pack.py made them; large ones [fragments][8]
    barriers full [stages] · empty [stages]
    scratch  words that the threads of a block leave for each other: stream_k.py

A stage is one fragment of each fragment row, or two: as much as is multiplied in a thousand clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, NamedTuple

from ....dispatch.card import older_than
from ....dispatch.problems import Linear
from ....formats import BlockFormat
from ...driver import tensor_maps
from ...intrinsics.atoms import inlined
from ...intrinsics.language import uint32, uint64
from ...layouts import operand
from ...layouts.layout import FRAGMENT_ROWS, STEP, TILE_ROWS, PackedLayout
from ...layouts.pack import LONGEST
from .frame import MAX_SHARED_BYTES

CONSUMER_WARPS = FRAGMENT_ROWS  # one for each fragment row of a tile
CONSUMER_THREADS = 32 * CONSUMER_WARPS
X_ROW_BYTES = 2 * STEP  # of a row of an x_tile
MAP_ELEMENT_BYTES = 8  # of an element of the map of weights
MAX_BOX_ELEMENTS = 256  # in a row of a box
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 56, 224  # of a thread of wide tiles; 168 at the start
SCRATCH_BYTES = 32
UNIT_FRAGMENTS = 2  # fragments of a row that are multiplied in turn: K is split in multiples of them


@dataclass(frozen=True)
class WarpSpecializedTile:
    """The rows of activations of a block, and the blocks that a multiprocessor holds."""

    columns: int
    blocks: int = 1

    def __str__(self) -> str:
        return f"{self.columns} columns" + f", {self.blocks} blocks" * (self.blocks > 1)

    @property
    def wide(self) -> bool:
        """True where a whole warpgroup stands beside the consumers and gives them registers.

        One of its warps fetches, the others make late x_tiles.
        """
        return self.columns > 160

    @property
    def fragments(self) -> int:
        """Fragments of a fragment row in a stage."""
        return 1 if self.columns > 128 else UNIT_FRAGMENTS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return CONSUMER_THREADS + (128 if self.wide else 32)

    @property
    def x_tile_bytes(self) -> int:
        """Bytes of the activations of 64 columns."""
        return self.columns * X_ROW_BYTES

    def boxes(self, layout: PackedLayout) -> int:
        """Boxes that bring the weights of a stage: one, or one for each fragment where a box cannot be as
        wide as two.
        """
        return (
            1
            if self.fragments * layout.fragment_bytes // MAP_ELEMENT_BYTES <= MAX_BOX_ELEMENTS
            else self.fragments
        )

    def box_row(self, layout: PackedLayout) -> int:
        """Bytes of a fragment row that a box brings."""
        return self.fragments // self.boxes(layout) * layout.fragment_bytes

    def next_fragment(self, layout: PackedLayout) -> int:
        """Bytes from a fragment row's first fragment of a stage to its second."""
        return layout.fragment_bytes if self.boxes(layout) == 1 else FRAGMENT_ROWS * layout.fragment_bytes

    def size(self, layout: PackedLayout) -> int:
        """Bytes of a stage that are fetched."""
        return self.fragments * (self.x_tile_bytes + FRAGMENT_ROWS * layout.fragment_bytes)

    def stage(self, layout: PackedLayout) -> int:
        """Bytes of a stage in whole kilobytes, as the swizzle demands."""
        return -(-self.size(layout) // 1024) * 1024

    def stages(self, layout: PackedLayout) -> int:
        """Stages in shared memory."""
        return max(2, min(8, (MAX_SHARED_BYTES // self.blocks - 2048) // self.stage(layout)))

    def shared(self, layout: PackedLayout) -> int:
        """Bytes of shared memory."""
        return 1024 + self.stages(layout) * (self.stage(layout) + 16) + SCRATCH_BYTES


def reads_plain(layout: PackedLayout, tile: WarpSpecializedTile) -> bool:
    """True where blocks with a tile can read x of 16 bits as it lies, without x_tiles.

    Lanes then take weights in the order of columns. With wide tiles idle warps make x_tiles instead.
    """
    return not tile.wide and operand.serves(layout)


# --- the raster: the order of a product's tiles ---------------------------------------------------
#
# Blocks compute tiles of neighbouring numbers at the same time. A *sweep* goes down all rows of tiles, over
# some of their columns; the next sweep follows to the right:
#
#                activations
#     weights    0  1  2 |  9 10
#                3  4  5 | 11 12
#                6  7  8 | 13 14
#
# So the x_tiles of a sweep stay in the L2 cache while weights go by.


class Raster(NamedTuple):
    """A raster as kernels take it, in this order."""

    across: int  # tiles along the rows of activations
    width: int  # tiles across a sweep
    per_sweep: int  # tiles of a sweep
    tiles: int


def plan_raster(across: int, down: int, blocks: int, x_bytes: int, w_bytes: int) -> Raster:
    """The raster of ``across`` × ``down`` tiles, ``blocks`` of them computed at the same time.

    ``x_bytes``, ``w_bytes``: bytes that a tile reads of either operand for the same part of K. Sweeps have
    the width with which blocks read the fewest bytes; all are about equally wide, with a tile for each block.
    """
    best, tiles = max(1.0, sqrt(blocks * w_bytes / x_bytes)), across * down
    width = -(-across // max(1, min(round(across / best), tiles // blocks)))
    return Raster(across, width, width * down, tiles)


def raster_width(blocks: int, x_bytes: int, w_bytes: int) -> int:
    """The best width of a sweep where the number of tiles is not known yet."""
    return max(1, round(sqrt(blocks * w_bytes / x_bytes)))


# --- places of tiles ----------------------------------------------------------------------------


class TileOrder(NamedTuple):
    """The order of the tiles of one product."""

    raster: Any  # a Raster
    m: Any  # rows of activations


class ProducerPlace(NamedTuple):
    """The place of a tile for producers."""

    fragment_row: Any  # the first of the packed weights
    column: Any  # of tiles, along the rows of activations
    sweep: Any  # of the raster


class ConsumerPlace(NamedTuple):
    """The place of a thread's first sum."""

    row: Any  # of weights: a column of the results
    column: Any  # row of activations
    limit: Any  # columns from here on are not real
    rows_of_columns: Any  # address of a list: the row of the results for each column of the tile; or 0


@inlined
def tile_place(number: Any, raster: Any) -> Any:
    """The row of tiles and the column of a tile."""
    sweep = uint32(number // raster.per_sweep)
    column, within = uint32(sweep * raster.width), uint32(number - uint32(sweep * raster.per_sweep))
    across_here = min(raster.width, uint32(raster.across - column))
    down = uint32(within // across_here)
    return down, uint32(column + uint32(within - uint32(down * across_here)))


@inlined
def locate_for_producer(tile_order: Any, number: Any) -> Any:
    """The ProducerPlace of a tile; ``tile_order``: a TileOrder."""
    down, column = tile_place(number, tile_order.raster)
    fragment_row = uint32(down * FRAGMENT_ROWS)
    return ProducerPlace(fragment_row, column, uint32(column // tile_order.raster.width))


def consumer_locator(columns: int) -> Any:
    """The device function for the ConsumerPlace in a tile with ``columns`` columns.

    ``thread_at``: the row and the column of the thread's first sum in its tile.
    """

    @inlined
    def locate(tile_order: Any, number: Any, thread_at: Any) -> Any:
        below, beside = thread_at
        down, right = tile_place(number, tile_order.raster)
        row, column = uint32(down * TILE_ROWS + below), uint32(right * columns + beside)
        return ConsumerPlace(row, column, tile_order.m, uint64(0))

    return locate


# --- work units: the steps of a tile that a block computes -----------------------------------------
#
# All blocks of a card shall be busy to the end. They take whole tiles, wave after wave. The last wave has
# fewer tiles than blocks. Its tiles are *split* among all blocks along K (stream-K): block after block takes
# an equal length of the steps, across the borders of tiles.
#
#     tile      0                1                2
#     steps     |----------------|----------------|----------------|
#     block     |- 0 --|- 1 --|- 2 --|- 3 --|- 4 --|- 5 --|- 6 --|     all blocks
#               |-  0  -|-  1  -|-  2  -|-  3  -|-  4  -|-  5  -|      or as many for each tile
#
# A block with parts of two tiles finishes both, one after the other; where tiles are short this takes longer
# than a few idle blocks.
#
# stream_k.py says what becomes of partial sums. Blocks are numbered from the last one down, so the block with
# the first steps of a tile is started after all other blocks of that tile.

MAX_CLUSTER = 8  # blocks of the largest cluster that any card takes


class TileSplit(NamedTuple):
    """The split of the last wave, in the order of ``Split.arguments`` of cost/warp_specialized.py."""

    split_tiles: Any  # the last tiles, which blocks share
    split_blocks: Any  # the blocks that share them: the first by rank
    splits: Any  # parts of each of these tiles; 0: blocks go over the ends of tiles, and then ...
    block_stages: Any  # ... stages of a block
    longer_blocks: Any  # ... blocks with one stage more


class LastWave(NamedTuple):
    """The fields of TileSplit, and the number of whole tiles."""

    split_tiles: Any
    split_blocks: Any
    splits: Any
    block_stages: Any
    longer_blocks: Any
    whole_tiles: Any  # the tiles before, each of one block


class Work(NamedTuple):
    """The work of a block."""

    rank: Any  # of the block in the order of work units: its first whole tile, too
    end: Any  # of its stages in split tiles, counted from the first stage of the first of them
    stages_left: Any  # in split tiles
    whole_tiles: Any  # of all blocks


class WorkUnit(NamedTuple):
    """The next steps of a block, all of one tile; then what is left for the block."""

    tile: Any
    first: Any  # stage
    last: Any  # the stage after its last
    stages_left: Any  # in split tiles
    next_whole: Any  # its next tile among the whole ones


@inlined
def split_last_wave(tiles: Any, stages: Any, blocks: Any, least_saved: Any) -> Any:
    """The TileSplit where the kernel alone knows the number of tiles.

    Each tile of the last wave is cut into as many parts as there are blocks for, if that saves a block at
    least ``least_saved`` stages.
    """
    rest = uint32(tiles % blocks)
    splits = min(uint32(blocks // max(rest, uint32(1))), stages)
    longest = uint32(uint32(uint32(stages + splits) - 1) // splits)
    if rest == 0 or uint32(longest + least_saved) > stages:
        rest, splits = uint32(0), uint32(0)
    return TileSplit(rest, uint32(rest * splits), splits, uint32(0), uint32(0))


@inlined
def shared_stages(rank: Any, stages: Any, split: Any) -> Any:
    """The begin and end of a block's steps in the tiles that are split, in stages; both are 0 for blocks
    without any.
    """
    if rank >= split.split_blocks:
        return uint32(0), uint32(0)
    if split.splits > 0:
        tile = uint32(rank // split.splits)
        at, begin = uint32(rank - uint32(tile * split.splits)), uint32(tile * stages)
        end = uint32(uint32(uint32(at + 1) * stages) // split.splits)
        return uint32(begin + uint32(uint32(at * stages) // split.splits)), uint32(begin + end)
    begin = uint32(uint32(rank * split.block_stages) + min(rank, split.longer_blocks))
    return begin, uint32(
        begin + split.block_stages + (uint32(1) if rank < split.longer_blocks else uint32(0))
    )


@inlined
def block_of_stage(stage: Any, block_stages: Any, longer_blocks: Any) -> Any:
    """The block that computes a stage, where the steps of a block cross the borders of tiles."""
    longer = uint32(block_stages + 1)
    border = uint32(longer_blocks * longer)
    if stage < border:
        return uint32(stage // longer)
    return uint32(longer_blocks + uint32(uint32(stage - border) // block_stages))


@inlined
def blocks_of_tile(tile: Any, stages: Any, split: Any) -> Any:
    """The first block of a tile that is split, and the number of its blocks."""
    if split.splits > 0:
        return uint32(tile * split.splits), split.splits
    begin = uint32(tile * stages)
    first = block_of_stage(begin, split.block_stages, split.longer_blocks)
    end = uint32(begin + uint32(stages - 1))
    last = block_of_stage(end, split.block_stages, split.longer_blocks)
    return first, uint32(uint32(last - first) + 1)


@inlined
def next_work_unit(
    stages_left: Any, end: Any, next_whole: Any, stages: Any, blocks: Any, whole_tiles: Any
) -> Any:
    """A block's next WorkUnit: whole tiles first, then its stages in tiles that are split.

    Producers and consumers of a block call it with the same numbers, so both see the same order of stages
    without a word between them.
    """
    if next_whole < whole_tiles:
        return WorkUnit(next_whole, uint32(0), stages, stages_left, uint32(next_whole + blocks))
    at = uint32(end - stages_left)
    tile = uint32(at // stages)
    first = uint32(at - uint32(tile * stages))
    count = min(stages_left, uint32(stages - first))
    return WorkUnit(
        uint32(whole_tiles + tile), first, uint32(first + count), uint32(stages_left - count), next_whole
    )


# --- late x_tiles: activations that idle warps bring into order while others multiply -----------------
#
# A kernel that makes all x_tiles beforehand takes a tenth of the time of a product with a thousand rows.
# Three warps beside the producer have nothing to do: they make the x_tiles that are needed later. The kernel
# before makes only the beginning, as much as these warps could not finish while the first tiles are
# multiplied. Tiles that blocks share along K come last.
#
# A *section* is some columns of the rows of a raster sweep. Sections are made in the order in
# which tiles want them, sweep after sweep, along K:
#
#     section    0   1   2   3 | 4   5   6   7 | 8  …        4 sections a sweep
#     made by    kernel before | warps that take tickets, some rows of a section each
#
# A warp increments the section's counter when it finishes a ticket. The producer waits on that counter before
# its first load from the section.

LANES, TICKET_ROWS = 32, 8  # lanes of a warp, rows of a ticket
SECTION_STEPS = 8  # of 64 columns: 16 for each lane of a warp
MIN_SECTIONS_BEFOREHAND = 2  # that the kernel before makes
MIN_NUMBERS_LEFT = 1 << 21  # to the product, below which it does not pay
# Microseconds: to begin; for a number that the product makes; for a number that is made beforehand.
BEGINNING_US, NUMBER_US, X_TILE_US = 1.9, 6e-6, 1.7e-6
ALL_READY = (1 << 32) - 1


class LateXTiles(NamedTuple):
    """The late sections of a product, as kernels take them: in this order."""

    counters: int  # offset of the counters behind the flags, in words: of tickets taken, then of each section
    ready: int  # sections that are made beforehand
    sections: int  # of a sweep
    section_tickets: int  # of a section
    tickets: int

    @property
    def words(self) -> int:
        """The words that the counters take."""
        return 0 if self.ready == ALL_READY else 1 + self.ready + self.tickets // self.section_tickets

    def before(self, rows: int) -> tuple[int | None, int | None]:
        """Rows of x, and steps of theirs, that are made beforehand; None means all. ``rows``: of a sweep."""
        return (None, None) if self.ready == ALL_READY else (rows, self.ready * SECTION_STEPS)


def plan_late(
    order: Raster, wide: bool, columns: int, steps: int, split_tiles: int, counters: int, wave_us: float
) -> LateXTiles:
    """The sections that are left to the product's own warps.

    There are none where little would be left, or where blocks share all tiles along K and so want all
    sections at once. ``wave_us``: how long a block multiplies at a tile.
    """
    sections, sweeps, rows = (
        -(-steps // SECTION_STEPS),
        -(-order.across // order.width),
        order.width * columns,
    )
    ready = max(
        min(MIN_SECTIONS_BEFOREHAND, sections), ceil(sections * share_beforehand(rows * steps * 64, wave_us))
    )
    if (
        not wide
        or split_tiles == order.tiles
        or (sweeps * sections - ready) * rows * SECTION_STEPS * 64 < MIN_NUMBERS_LEFT
    ):
        return LateXTiles(counters, ALL_READY, 1, 1, 0)
    section_tickets = rows // TICKET_ROWS
    return LateXTiles(
        counters, ready, sections, section_tickets, (sweeps * sections - ready) * section_tickets
    )


def share_beforehand(numbers: int, wave_us: float) -> float:
    """The share of a sweep's numbers that must be made beforehand, since the first wave would have to wait
    for it.
    """
    return max(0.0, 1 - wave_us / (numbers * NUMBER_US))


def waiting_us(numbers: int, wave_us: float) -> float:
    """The time that a product waits for the x_tiles that are made beforehand, with ``numbers`` of them in a
    sweep.
    """
    return BEGINNING_US + share_beforehand(numbers, wave_us) * numbers * X_TILE_US


# --- problems that kernels on tiles of packed weights refuse: for their shape, the GPU or the driver --

MIN_CAPABILITY, HOPPER = (8, 0), (9, 0)
MAX_ROWS_OF_X = 65535 * 64  # a grid has 65535 rows of blocks


def refuses_shape(problem: Linear) -> str | None:
    """The reason why tiles of packed weights do not serve a problem, or None: format, size or card."""
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > MAX_ROWS_OF_X or problem.k > LONGEST or problem.m * problem.k >= 1 << 32:
        return f"takes up to {MAX_ROWS_OF_X} rows, {LONGEST} columns and 2**32 elements of activations"
    return older_than(problem.card, MIN_CAPABILITY)


def refuses(problem: Linear) -> str | None:
    """The reason why warp-specialised kernels do not serve a problem, or None."""
    if problem.card is not None and problem.card.capability != HOPPER:
        return "needs compute capability 9.0: other GPUs do not have these instructions"
    return refuses_shape(problem) or tensor_maps.missing(problem.card)
