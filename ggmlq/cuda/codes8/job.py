"""What a kernel that multiplies 8-bit codes out of boxes is made for: its tile, its codes, its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as combined
from math import gcd
from typing import NamedTuple

from ...codes import CODES as ALL_CODES
from ...dispatch.ending import can_be
from ..epilogue.tile import SIZES
from ..intrinsics import barrier as barriers
from ..intrinsics.wgmma8 import INTEGERS, Form
from ..rings.boxed import BoxTile, Room
from ..schedule.waves import TileEfficiency

TALL = 16  # tiles that are gone down together
BLOCK = 128  # rows of w, the most that share a scale here

FLOATS = (
    TileEfficiency(BoxTile(256, 128, 4), 1.0),
    TileEfficiency(BoxTile(128, 192, 5), 0.96),
    TileEfficiency(BoxTile(128, 128, 6), 0.88),
    TileEfficiency(BoxTile(128, 64, 8), 0.55),
)
BY_COLUMNS = (TileEfficiency(BoxTile(128, 128, 6), 1.0), TileEfficiency(BoxTile(128, 64, 8), 0.7))
WHOLE = (
    TileEfficiency(BoxTile(128, 256, 4), 1.0),
    TileEfficiency(BoxTile(256, 128, 4), 0.96),
    TileEfficiency(BoxTile(128, 128, 6), 0.87),
    TileEfficiency(BoxTile(128, 64, 8), 0.5),
)
CODED_ZEROS = WHOLE[2:]  # larger tiles have no registers left for zero points where results become codes
CODES = ("e4m3", "e5m2")


class Out(NamedTuple):
    """What outputs are."""

    kind: str = "float32"  # of floats, or a code
    along: bool = False  # codes: each column has a scale of its own

    @property
    def coded(self) -> bool:
        """Whether they are codes."""
        return self.kind not in SIZES

    def __str__(self) -> str:
        return self.kind + " by columns" * self.along


PLAIN = Out()
OUTS = tuple(map(Out, SIZES))
CODED = tuple(Out(code.name, along) for code in ALL_CODES.values() if can_be(code) for along in (False, True))


@dataclass(frozen=True)
class Job:
    """What a kernel is made for."""

    tile: BoxTile
    x: str  # codes, as instructions name them
    w: str
    out: Out = PLAIN
    boxed: bool = True  # outputs go through the copy engine; else element by element
    by_columns: bool = False  # floats: each column has a scale of w of its own
    zeros: bool = False  # integers

    def __str__(self) -> str:
        ends = ["" if self.boxed else ", one by one", ", a scale a column" * self.by_columns]
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
    def room(self) -> Room:
        """Its shared memory."""
        return Room(self.tile, x_scales=not self.integer, w_scales=self.by_columns)

    @property
    def granule(self) -> int:
        """Columns that share a scale of w."""
        return gcd(self.tile.columns, BLOCK)

    @property
    def parts(self) -> int:
        """Of a tile's columns; 0: see ``float_products``."""
        return 0 if self.by_columns else self.tile.columns // self.granule

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * (self.tile.groups + 1)


def float_jobs() -> list[tuple[Job]]:
    """Every tile, kind of codes and of outputs; one by one only the widest."""
    found = [Job(wave.tile, a, b, out) for wave, a, b, out in combined(FLOATS, CODES, CODES, OUTS)]
    found += [
        Job(BY_COLUMNS[0].tile, a, b, out, by_columns=True) for a, b, out in combined(CODES, CODES, OUTS)
    ]
    found += [Job(FLOATS[0].tile, "e4m3", "e4m3", out, boxed=False) for out in (*OUTS, *CODED)]
    return [(job,) for job in found]


def integer_jobs() -> list[tuple[Job]]:
    """Likewise, with zero points and without."""
    every = combined(WHOLE, INTEGERS, INTEGERS, OUTS, (False, True))
    found = [Job(wave.tile, a, b, out, zeros=zeros) for wave, a, b, out, zeros in every]
    found += [Job(WHOLE[0].tile, "s8", "s8", out, boxed=False) for out in (*OUTS, *CODED)]
    return [(job,) for job in found]
