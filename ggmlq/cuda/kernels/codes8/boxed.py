"""A ring of stages that the copy engine fills: tiles of 8-bit codes in boxes, with their scales.

    stage    codes of x [rows, 128] · codes of w [columns, 128]                  swizzled
    scales   of x [rows], and of w [columns] where each column has its own       floats: those of one step
    outputs  a buffer for each consumer warp
    barriers full [stages] · empty [stages]

Two producer threads in different warps fill it, one with codes of w, one with those of x, for each of their
steps takes some hundred clocks: they wait until a stage is empty, announce its bytes and start its boxes.
Consumer warps wait until it is full, and arrive at its other barrier when they have multiplied it. The
raster of tiles is that of kernels/mma/shape.py, so that blocks that run at the same time share rows of both
operands in the L2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...driver import device
from ...intrinsics import barrier as barriers
from ...intrinsics import boxes, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.boxes import BUFFER
from ...intrinsics.language import uint32
from ...intrinsics.wgmma import STEP
from ..hopper.frame import MAX_SHARED_BYTES, stage_advancer

KILO = 1024  # bytes; swizzled boxes are aligned to as many


@dataclass(frozen=True)
class BoxTile:
    """A tile of outputs, and its stages in shared memory."""

    rows: int = 256  # of x
    columns: int = 128  # rows of w
    stages: int = 4
    groups: int = 2  # consumer warpgroups, each with an equal part of the rows
    pair: bool = False  # a cluster of two blocks makes neighbours in a row: each fetches half of x for both

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}, {self.stages} stages{', pairs' * self.pair}"

    @property
    def halves(self) -> int:
        """Products of 64 rows that a warpgroup makes in a step."""
        return self.rows // self.groups // 64

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return 1 + self.pair

    @property
    def box_rows(self) -> int:
        """Rows of x that a block fetches."""
        return self.rows // self.blocks

    @property
    def stage(self) -> int:
        """Bytes of a stage's codes."""
        return (self.rows + self.columns) * STEP

    def divides(self, n: int) -> bool:
        """True where no block of a cluster would be left without columns."""
        return -(-n // self.columns) % self.blocks == 0

    def tiles(self, m: int, n: int) -> int:
        """Tiles of an output of m rows and n columns."""
        return -(-m // self.rows) * -(-n // self.columns)


@dataclass(frozen=True)
class SharedLayout:
    """The layout of a block's shared memory: offsets from the start of the ring, in bytes."""

    tile: BoxTile
    x_scales: bool = True
    w_scales: bool = False  # each column has a scale

    @property
    def scale_bytes(self) -> int:
        """Bytes of a stage's scales."""
        return 4 * (self.tile.rows * self.x_scales + self.tile.columns * self.w_scales)

    @property
    def scales(self) -> int:
        """Offset of the first stage's scales."""
        return self.tile.stages * self.tile.stage

    @property
    def outputs(self) -> int:
        """Offset of the warps' buffers."""
        return -(-(self.scales + self.tile.stages * self.scale_bytes) // KILO) * KILO

    @property
    def barriers(self) -> int:
        """Offset of the full barriers; the empty ones follow."""
        return self.outputs + 4 * self.tile.groups * BUFFER

    @property
    def shared(self) -> int:
        """Bytes in all; the ring begins at the first multiple of 1024."""
        return KILO + self.barriers + 16 * self.tile.stages

    @property
    def fits(self) -> bool:
        """True where a block of a Hopper card may have as much."""
        return self.shared <= MAX_SHARED_BYTES


def ring_placer(barriers_offset: int) -> Any:
    """The device function for the beginning of the ring in shared memory, and its first full barrier."""
    base = ptx.shared_base

    @inlined
    def place_ring() -> Any:
        ring = uint32(uint32(base() + (KILO - 1)) & 0xFFFFFC00)
        return ring, uint32(ring + barriers_offset)

    return place_ring


def raster(tile: BoxTile, raster_height: int) -> Any:
    """The device function for a tile's first row and column, ``raster_height`` tiles down at a time.

    Tiles 2 i and 2 i + 1 of pairs are neighbours in a row, of which there are an even number across.
    """
    rows, columns, pair = tile.rows, tile.columns, tile.pair

    @inlined
    def one(number: Any, down: Any, across: Any) -> Any:
        raster_tiles = uint32(raster_height * across)
        first = uint32(uint32(number // raster_tiles) * raster_height)
        height, rest = min(uint32(down - first), uint32(raster_height)), uint32(number % raster_tiles)
        row = uint32(first + uint32(rest % height))
        return uint32(row * rows), uint32(uint32(rest // height) * columns)

    @inlined
    def of_pair(number: Any, down: Any, across: Any) -> Any:
        row, column = one(uint32(number >> uint32(1)), down, uint32(across >> uint32(1)))
        return row, uint32(uint32(column << uint32(1)) + (number & uint32(1)) * uint32(columns))

    return of_pair if pair else one


def code_fetcher(tile: BoxTile, is_w: bool) -> Any:
    """The device function that starts the box of an operand's codes; a block of a pair fetches its half of
    the rows of x for both blocks.
    """
    fetch_for_all, rank_in_cluster, box_rows = boxes.fetch_for_all, barriers.rank_in_cluster, tile.box_rows

    @inlined
    def fetch_half(to: Any, codes: Any, column: Any, row: Any, done: Any) -> None:
        first, both = uint32(rank_in_cluster() * uint32(box_rows)), uint32(3)
        fetch_for_all(uint32(to + first * uint32(STEP)), codes, column, uint32(row + first), done, both)

    return fetch_half if tile.pair and not is_w else boxes.fetch


def box_fetcher(layout: SharedLayout, is_w: bool) -> Any:
    """The device function that starts the boxes of one operand's stage, whose barrier is ``done``.

    That of w announces the bytes of both operands. ``scales``: a map, of x [groups, M], of w [steps, N];
    ``at``: the operand's first row; ``scale_column``: its place in a row of scales; ``group``: the row of
    scales of the step.
    """
    length, size, first = (
        layout.tile.stage,
        layout.tile.stage + layout.scale_bytes,
        layout.tile.rows * STEP * is_w,
    )
    scaled = layout.w_scales if is_w else layout.x_scales
    scales_at, scale_bytes = layout.scales + 4 * layout.tile.rows * layout.x_scales * is_w, layout.scale_bytes
    expect, fetch, fetch_codes = barriers.expect, boxes.fetch, code_fetcher(layout.tile, is_w)

    @inlined
    def start_boxes(
        ring: Any, done: Any, stage: Any, codes: Any, scales: Any, at: Any, scale_column: Any,
        step: Any, group: Any,
    ) -> None:  # fmt: skip
        if is_w:
            expect(done, uint32(size))
        to = uint32(ring + stage * length + first)
        fetch_codes(to, codes, uint32(step * STEP), at, done)
        if scaled:
            fetch(
                uint32(ring + scales_at + stage * scale_bytes),
                scales,
                scale_column,
                group,
                done,
            )

    return start_boxes


def scale_row_advancer(is_w: bool) -> Any:
    """The device functions for the row of scales of the first step, and of the next step."""

    @inlined
    def begin(step: Any, span: Any) -> Any:
        if is_w:
            return step, uint32(0)
        return uint32(step // span), uint32(span - uint32(step % span))

    @inlined
    def follow(group: Any, left: Any, span: Any) -> Any:
        if is_w:
            return uint32(group + 1), left
        left = uint32(left - 1)
        return (uint32(group + 1), span) if left == 0 else (group, left)

    return begin, follow


def step_producer(layout: SharedLayout, is_w: bool) -> Any:
    """The device function that starts an operand's boxes of steps ``first`` … ``last``, stage by stage.

    Returns the stage after the last one, and its parity.
    """
    stages, wait, after = layout.tile.stages, barriers.wait, stage_advancer(layout.tile.stages)
    start_boxes, (first_group, next_group) = box_fetcher(layout, is_w), scale_row_advancer(is_w)

    @inlined
    def produce(
        ring: Any, full: Any, stage: Any, phase: Any, codes: Any, scales: Any, at: Any, scale_column: Any,
        first: Any, last: Any, span: Any,
    ) -> Any:  # fmt: skip
        step, (group, left) = first, first_group(first, span)
        while step < last:
            done = uint32(full + stage * 8)
            wait(uint32(done + 8 * stages), uint32(phase ^ 1))
            start_boxes(ring, done, stage, codes, scales, at, scale_column, step, group)
            stage, phase = after(stage, phase)
            step, (group, left) = uint32(step + 1), next_group(group, left, span)
        return stage, phase

    return produce


# The choice of a tile by waves: the tile with which the multiprocessors are done first.


class RatedTile(NamedTuple):
    """A tile, and how busy its kernel keeps a multiprocessor, relative to other tiles."""

    tile: BoxTile
    efficiency: float


def best_tile(tiles: Sequence[RatedTile], m: int, n: int, multiprocessors: int = 0) -> BoxTile:
    """The best tile for m × n outputs: blocks take tiles wave after wave, so the busiest block's number of
    tiles counts.
    """
    count = multiprocessors or device.multiprocessors()

    def time(choice: RatedTile) -> float:
        tile = choice.tile
        return -(-tile.tiles(m, n) // count) * tile.rows * tile.columns / choice.efficiency

    return min(tiles, key=time).tile
