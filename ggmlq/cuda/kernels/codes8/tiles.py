"""Tiles of Hopper's kernels for 8-bit codes: their shared memory, the choice of one, and variants of kernels.

    stage    codes of x [rows, 128] · codes of w [columns, 128]                  swizzled
    scales   of x [rows], and of w [columns] where each column has its own       floats: those of one step
    outputs  a buffer for each consumer warp
    barriers full [stages] · empty [stages]

A variant is what a kernel is compiled for: its tile, its codes and its outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product as combined
from math import gcd
from typing import NamedTuple

from ....codes import CODES as ALL_CODES
from ....dispatch.epilogue import is_written
from ...driver import device
from ...intrinsics import hopper
from ...intrinsics.hopper import BOX_BYTES
from ...intrinsics.wgmma import INTEGERS, STEP, Form
from ..hopper.frame import MAX_SHARED_BYTES, Frame

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
        return self.outputs + 4 * self.tile.groups * BOX_BYTES

    @property
    def shared(self) -> int:
        """Bytes in all; the ring begins at the first multiple of 1024."""
        return KILO + self.barriers + 16 * self.tile.stages

    @property
    def fits(self) -> bool:
        """True where a block of a Hopper card may have as much."""
        return self.shared <= MAX_SHARED_BYTES


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


# --- variants ----------------------------------------------------------------------------------

SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
NARROW = {"float16": "f16", "bfloat16": "bf16"}
RASTER_HEIGHT = 16  # tiles of a column of the raster that blocks go down together
SCALE_ROWS = 128  # rows of w that share a scale, at most
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232  # of a thread, which starts with 168

FLOAT_TILES = (
    RatedTile(BoxTile(256, 128, 4), 1.0),
    RatedTile(BoxTile(128, 192, 5), 0.96),
    RatedTile(BoxTile(128, 128, 6), 0.88),
    RatedTile(BoxTile(128, 64, 8), 0.55),
)
PAIR_TILE = BoxTile(256, 128, 4, pair=True)  # FP8 with scales of w by tile
COLUMN_SCALE_TILES = (RatedTile(BoxTile(128, 128, 6), 1.0), RatedTile(BoxTile(128, 64, 8), 0.7))
INTEGER_TILES = (
    RatedTile(BoxTile(128, 256, 4), 1.0),
    RatedTile(BoxTile(256, 128, 4), 0.96),
    RatedTile(BoxTile(128, 128, 6), 0.87),
    RatedTile(BoxTile(128, 64, 8), 0.5),
)
# Larger tiles have no registers left for zero points where results become codes.
CODED_ZERO_POINT_TILES = INTEGER_TILES[2:]
SPLIT_TILES = (BoxTile(128, 128, 6), BoxTile(128, 64, 8))
MAX_SPLITS = 8  # blocks that share K

LOW = BoxTile(64, 128, 8, groups=1)  # for few uses an expert: half the rows for as many weights
# How busy they keep a multiprocessor: that of LOW is a guess.
EXPERT_FLOAT_TILES = (*FLOAT_TILES[:3], RatedTile(LOW, 0.6))
EXPERT_COLUMN_SCALE_TILES = (COLUMN_SCALE_TILES[0], RatedTile(LOW, 0.6))
EXPERT_INTEGER_TILES = (INTEGER_TILES[0], INTEGER_TILES[2], RatedTile(LOW, 0.55))
EXPERT_ZERO_POINT_TILES = EXPERT_INTEGER_TILES[1:]  # the largest tile has no registers left for zero points
FLOAT_CODES = ("e4m3", "e5m2")


def columns_of_box(kind: str) -> int:
    """Columns of outputs in 128 bytes."""
    return 128 // SIZES[kind]


class OutputKind(NamedTuple):
    """The type of a kernel's outputs."""

    kind: str = "float32"  # a kind of floats, or the name of a code
    column_scales: bool = False  # for codes: each column has its own scale

    @property
    def coded(self) -> bool:
        """True for codes, False for floats."""
        return self.kind not in SIZES

    def __str__(self) -> str:
        return self.kind + " by columns" * self.column_scales


FLOAT32_OUTPUT = OutputKind()
OUTPUTS = tuple(map(OutputKind, SIZES))
CODED_OUTPUTS = tuple(
    OutputKind(code.name, along) for code in ALL_CODES.values() if is_written(code) for along in (False, True)
)


@dataclass(frozen=True)
class Variant:
    """The facts that a kernel for 8-bit codes is compiled for."""

    tile: BoxTile
    x: str  # the code of x, by its name in instructions; likewise w
    w: str
    out: OutputKind = FLOAT32_OUTPUT
    boxed: bool = True  # the copy engine writes outputs; else threads do, one element at a time
    column_scales: bool = False  # floats: each row of w has its own scale
    zeros: bool = False  # integers: operands have zero points

    blocks = 1  # that fit on a multiprocessor

    def __str__(self) -> str:
        ends = ["" if self.boxed else ", one by one", ", a scale a column" * self.column_scales]
        guarded = ", guarded" * hopper.GUARDED
        return f"{self.x} {self.w} to {self.out}, {self.tile}{''.join(ends)}{', zeros' * self.zeros}{guarded}"

    @property
    def integer(self) -> bool:
        """True where codes are integers."""
        return self.x in INTEGERS

    @property
    def form(self) -> Form:
        """The ``wgmma`` products of one warpgroup."""
        return Form(self.tile.columns, self.x, self.w, self.tile.halves)

    @property
    def layout(self) -> SharedLayout:
        """The layout of its shared memory."""
        return SharedLayout(self.tile, x_scales=not self.integer, w_scales=self.column_scales)

    @property
    def columns_per_scale(self) -> int:
        """Columns of the tile that share a scale of w."""
        return gcd(self.tile.columns, SCALE_ROWS)

    @property
    def column_groups(self) -> int:
        """Groups of the tile's columns with a scale of w each; 0 where each column has its own."""
        return 0 if self.column_scales else self.tile.columns // self.columns_per_scale

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (self.tile.groups + 1)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.layout.shared

    @property
    def frame(self) -> Frame:
        """Its warps, and what a block takes; two warpgroups of consumers take registers of the producers."""
        registers = (PRODUCER_REGISTERS, CONSUMER_REGISTERS) if self.tile.groups > 1 else None
        return Frame(4 * self.tile.groups, self.threads, self.shared, self.blocks, registers)


def float_variants() -> list[tuple[Variant]]:
    """Every tile, pair of codes and kind of floats, under scales of w by tile.

    Scales by column only for the first of their tiles; stores by threads, and outputs in codes, only for the
    first tile and e4m3; pairs only for e4m3.
    """
    every_variant = [
        Variant(rated.tile, a, b, out)
        for rated, a, b, out in combined(FLOAT_TILES, FLOAT_CODES, FLOAT_CODES, OUTPUTS)
    ]
    every_variant += [
        Variant(COLUMN_SCALE_TILES[0].tile, a, b, out, column_scales=True)
        for a, b, out in combined(FLOAT_CODES, FLOAT_CODES, OUTPUTS)
    ]
    every_variant += [
        Variant(FLOAT_TILES[0].tile, "e4m3", "e4m3", out, boxed=False) for out in (*OUTPUTS, *CODED_OUTPUTS)
    ]
    every_variant += [Variant(PAIR_TILE, "e4m3", "e4m3", out) for out in OUTPUTS]
    return [(variant,) for variant in every_variant]


def integer_variants() -> list[tuple[Variant]]:
    """Every tile, pair of codes and kind of floats, with and without zero points.

    Stores by threads, and outputs in codes, only for the first tile and s8.
    """
    combinations = combined(INTEGER_TILES, INTEGERS, INTEGERS, OUTPUTS, (False, True))
    every_variant = [Variant(rated.tile, a, b, out, zeros=zeros) for rated, a, b, out, zeros in combinations]
    every_variant += [
        Variant(INTEGER_TILES[0].tile, "s8", "s8", out, boxed=False) for out in (*OUTPUTS, *CODED_OUTPUTS)
    ]
    return [(variant,) for variant in every_variant]


def split_variants() -> list[tuple[Variant]]:
    """Every tile, pair of codes and kind of floats; scales by column and outputs in codes for e4m3 alone."""
    combinations = combined(SPLIT_TILES, FLOAT_CODES, FLOAT_CODES, OUTPUTS)
    cases = [(*case, False) for case in combinations]
    cases += [(tile, "e4m3", "e4m3", out, True) for tile, out in combined(SPLIT_TILES, OUTPUTS)]
    cases += [(SPLIT_TILES[0], "e4m3", "e4m3", out, False) for out in CODED_OUTPUTS]
    return [(Variant(tile, a, b, out, False, by_column),) for tile, a, b, out, by_column in cases]


def expert_variants() -> list[tuple[Variant]]:
    """Every tile, pair of codes and kind of floats."""
    tables: tuple[tuple[tuple[RatedTile, ...], Iterable[str], dict[str, bool]], ...] = (
        (EXPERT_FLOAT_TILES, FLOAT_CODES, {}),
        (EXPERT_COLUMN_SCALE_TILES, FLOAT_CODES, {"column_scales": True}),
        (EXPERT_INTEGER_TILES, INTEGERS, {}),
        (EXPERT_ZERO_POINT_TILES, INTEGERS, {"zeros": True}),
    )
    return [
        (Variant(rated.tile, a, b, out, boxed=False, **facts),)
        for tiles, names, facts in tables
        for rated, a, b, out in combined(tiles, names, names, OUTPUTS)
    ]
