"""What a kernel that multiplies 8-bit codes out of boxes is made for: its tile, its codes, its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as combined
from math import gcd
from typing import NamedTuple

from ...codes import CODES as ALL_CODES
from ...dispatch.ending import can_be
from ..epilogue.wgmma_sums import SIZES
from ..intrinsics import barrier as barriers
from ..intrinsics.wgmma8 import INTEGERS, Form
from ..rings.boxed import BoxTile, SharedLayout
from ..schedule.waves import Share

RASTER_HEIGHT = 16  # tiles that are gone down together
SCALE_ROWS = 128  # rows of w, the most that share a scale here

FLOAT_TILES = (
    Share(BoxTile(256, 128, 4), 1.0),
    Share(BoxTile(128, 192, 5), 0.96),
    Share(BoxTile(128, 128, 6), 0.88),
    Share(BoxTile(128, 64, 8), 0.55),
)
COLUMN_SCALE_TILES = (Share(BoxTile(128, 128, 6), 1.0), Share(BoxTile(128, 64, 8), 0.7))
INTEGER_TILES = (
    Share(BoxTile(128, 256, 4), 1.0),
    Share(BoxTile(256, 128, 4), 0.96),
    Share(BoxTile(128, 128, 6), 0.87),
    Share(BoxTile(128, 64, 8), 0.5),
)
CODED_ZERO_POINT_TILES = INTEGER_TILES[
    2:
]  # larger tiles have no registers left for zero points where results become codes
FLOAT_CODES = ("e4m3", "e5m2")


class OutputKind(NamedTuple):
    """What outputs are."""

    kind: str = "float32"  # of floats, or a code
    column_scales: bool = False  # codes: each column has a scale of its own

    @property
    def coded(self) -> bool:
        """Whether they are codes."""
        return self.kind not in SIZES

    def __str__(self) -> str:
        return self.kind + " by columns" * self.column_scales


FLOAT32_OUTPUT = OutputKind()
OUTPUTS = tuple(map(OutputKind, SIZES))
CODED_OUTPUTS = tuple(
    OutputKind(code.name, along) for code in ALL_CODES.values() if can_be(code) for along in (False, True)
)


@dataclass(frozen=True)
class Variant:
    """What a kernel is made for."""

    tile: BoxTile
    x: str  # codes, as instructions name them
    w: str
    out: OutputKind = FLOAT32_OUTPUT
    boxed: bool = True  # outputs go through the copy engine; else element by element
    column_scales: bool = False  # floats: each column has a scale of w of its own
    zeros: bool = False  # integers

    def __str__(self) -> str:
        ends = ["" if self.boxed else ", one by one", ", a scale a column" * self.column_scales]
        guarded = ", guarded" * barriers.GUARDED
        return f"{self.x} {self.w} to {self.out}, {self.tile}{''.join(ends)}{', zeros' * self.zeros}{guarded}"

    @property
    def integer(self) -> bool:
        """Whether codes are integers."""
        return self.x in INTEGERS

    @property
    def form(self) -> Form:
        """The products of a warpgroup."""
        return Form(self.tile.columns, self.x, self.w, self.tile.halves)

    @property
    def layout(self) -> SharedLayout:
        """Its shared memory."""
        return SharedLayout(self.tile, x_scales=not self.integer, w_scales=self.column_scales)

    @property
    def columns_per_scale(self) -> int:
        """Columns that share a scale of w."""
        return gcd(self.tile.columns, SCALE_ROWS)

    @property
    def parts(self) -> int:
        """Of a tile's columns; 0: see ``float_products``."""
        return 0 if self.column_scales else self.tile.columns // self.columns_per_scale

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * (self.tile.groups + 1)


def float_variants() -> list[tuple[Variant]]:
    """Every tile, kind of codes and of outputs; one by one only the widest."""
    found = [
        Variant(wave.tile, a, b, out)
        for wave, a, b, out in combined(FLOAT_TILES, FLOAT_CODES, FLOAT_CODES, OUTPUTS)
    ]
    found += [
        Variant(COLUMN_SCALE_TILES[0].tile, a, b, out, column_scales=True)
        for a, b, out in combined(FLOAT_CODES, FLOAT_CODES, OUTPUTS)
    ]
    found += [
        Variant(FLOAT_TILES[0].tile, "e4m3", "e4m3", out, boxed=False) for out in (*OUTPUTS, *CODED_OUTPUTS)
    ]
    return [(variant,) for variant in found]


def integer_variants() -> list[tuple[Variant]]:
    """Likewise, with zero points and without."""
    every = combined(INTEGER_TILES, INTEGERS, INTEGERS, OUTPUTS, (False, True))
    found = [Variant(wave.tile, a, b, out, zeros=zeros) for wave, a, b, out, zeros in every]
    found += [
        Variant(INTEGER_TILES[0].tile, "s8", "s8", out, boxed=False) for out in (*OUTPUTS, *CODED_OUTPUTS)
    ]
    return [(variant,) for variant in found]
