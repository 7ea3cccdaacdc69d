"""The layout of a panel: 16 rows of weights, run by run of 32 weights.

A run is: scales, offsets, then the codes in planes of bits, the highest bits first: so a tile, which
needs some of each plane before it can begin, reads almost in ascending order, and the memory's
prefetching follows it. Codes stand in fours of neighbours, so that one vector of 64 bytes holds
four j (weights 4 j … 4 j + 3 of the run) of all 16 rows. A plane of 4 bits has four j in the low
nibbles of its vector j and four j + 4 in the high ones; one of 2 bits has four j at bit 2 (j % 4)
of vector j // 4; one of 1 bit at bit j.

Scales are stored as the format has them. In formats with scales of scales, a *super* of 256
weights opens with 16 halves d (and 16 halves dmin), and each of its eight runs has 16 integers a
group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from ...formats import BlockFormat, Format
from ...formats.packing import RUN, packing
from ..machine.tables import Address
from ..machine.target import Target

ROWS = 16  # of a panel
SUPER = 8  # runs
TABLE = 16  # entries of the table of a vector look-up
NEARER = 4  # the prefetch into the first cache is this many times nearer than that into the second
ROWS_AT_ONCE = {32: 12, 8: 2, 4: 1}  # of activations, by the vector registers that the CPU has
FEWER = (8, 4, 2, 1)  # rows of the batches for what is left
FLOAT = 1.5 * 2**23  # integers up to 2**22 added to its bits are a float32, this plus the integer
LANE = 64  # weights of a vector, where rows are multiplied one by one
WIDTH = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1, "i4": 1}  # bytes of a scale


@dataclass(frozen=True)
class PanelLayout:
    """The layout of a panel, as far as tiles need it."""

    planes: tuple[int, ...] = (8,)  # bits of a code, lowest first
    zero: int = 0  # stored code = code + zero
    table: tuple[int, ...] = ()  # codes are indices into it
    scale: Literal["f32", "f16", "bf16", "i8", "i4"] = "f32"  # i4: scale and offset share a byte
    unit: float = 1  # that integer scales are multiples of, a power of two
    offset: bool = False
    group: Literal[16, 32] = 32  # weights that share a scale
    floats: bool = False  # sums of integers begin with the bits of FLOAT

    @property
    def groups(self) -> int:
        """The number of groups with a scale of their own in a run: 1 or 2."""
        return RUN // self.group

    @property
    def nested(self) -> bool:
        """True if scales are integers under a scale of 256 weights."""
        return self.scale in ("i8", "i4")

    @property
    def head(self) -> int:
        """Bytes before the first run of a super."""
        return 2 * ROWS * (1 + self.offset) if self.nested else 0

    @property
    def scales(self) -> int:
        """Bytes of the scales of a run; as many offsets follow."""
        return WIDTH[self.scale] * ROWS * self.groups

    @property
    def codes_at(self) -> int:
        """The place in a run where the codes begin."""
        return self.scales * (1 + (self.offset and self.scale != "i4"))

    @property
    def planes_at(self) -> tuple[int, ...]:
        """The place in a run where each plane begins."""
        return tuple(self.codes_at + 64 * sum(self.planes[i + 1 :]) for i in range(len(self.planes)))

    @property
    def run_bytes(self) -> int:
        """Bytes of a run."""
        return self.codes_at + 64 * sum(self.planes)

    def panel_bytes(self, runs: int) -> int:
        """Bytes of a panel with a number of runs."""
        return runs * self.run_bytes + (runs // SUPER * self.head if self.nested else 0)


PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2)}  # by the bits of a code


@cache
def layout_of(fmt: Format) -> PanelLayout | None:
    """The panels of a format, or None if it has none.

    Each code stands by itself: most types take little more than the bytes of their blocks, those with a code
    book up to 2.2 times these, for neighbours that share bits in the file do not here.
    """
    if not isinstance(fmt, BlockFormat) or fmt.block_size % RUN:
        return None
    facts = packing(fmt)
    levels = facts.levels
    planes = PLANES.get((len(levels) - 1).bit_length() if levels else facts.bits, (8,))
    scale = _scale(fmt)
    return PanelLayout(
        planes,
        zero=0 if levels else 128 if planes == (8,) else -facts.lowest,
        table=tuple(levels[i % len(levels)] for i in range(TABLE)) if levels else (),
        scale=scale,
        unit=fmt.scales.unit if scale in ("i8", "i4") else 1,
        offset=facts.has_offset,
        group=16 if facts.group == 16 else 32,
        floats=scale in ("i8", "i4"),
    )


def _scale(fmt: BlockFormat) -> Literal["f32", "f16", "bf16", "i8", "i4"]:
    """The narrowest way to keep a format's scales without rounding any."""
    facts, how = packing(fmt), fmt.scales
    if facts.scale == "power":
        return "bf16"
    if facts.scale == "small_float":
        return "f16"
    if facts.scale == "half" and fmt.block_size == SUPER * RUN and facts.integers:
        return "i4" if how.nibbles else "i8"
    return "f16" if facts.scale == "half" and how.sub is None else "f32"


def unpacked(fmt: BlockFormat, target: Target) -> PanelLayout:
    """The panels that any format is unpacked to in a product: bytes and float32."""
    zero = 128 if target.unsigned else 0
    return PanelLayout(zero=zero, offset=fmt.has_offset, group=16 if fmt.group == 16 else 32)


def remaining_zero(layout: PanelLayout, target: Target) -> int:
    """The zero that codes still have in the dot products; sums of the activations take it off."""
    if not target.unsigned:
        return 0  # reading a panel takes it off
    return 128 if layout.table else layout.zero


def start(layout: PanelLayout) -> int:
    """The first value of the sums of integers."""
    return int(np.float32(FLOAT).view(np.int32)) if layout.floats else 0


def expanded(layout: PanelLayout, target: Target) -> PanelLayout:
    """The layout that product.py makes of another: bytes and float32; the codes keep their zero."""
    zero = remaining_zero(layout, target)
    return PanelLayout(zero=zero, offset=layout.offset, group=layout.group, floats=layout.floats)


def x_run_bytes(layout: PanelLayout) -> int:
    """Bytes of a run of one row of activations."""
    return RUN + 4 + 4 * layout.groups * (1 + layout.offset)


def rows_at_once(layout: PanelLayout, target: Target) -> int:
    """Rows of activations in a tile: as many as there are registers for.

    A dot product waits up to six clocks for the one before it in its row: few rows leave units idle.
    """
    most = ROWS_AT_ONCE[target.registers]
    return min(most, 8) if layout.groups == 2 else most  # these sum three vectors a row instead of two


def batch(left: int, most: int) -> int:
    """The number of rows that are next multiplied together, of those that are left."""
    if left >= most:
        return most
    for fewer in FEWER:
        if fewer <= left:
            return fewer
    return left


# --- The arguments of kernels on panels: addresses and sizes of weights, activations and results ---


class Operands(NamedTuple):
    """Arguments of every kernel that multiplies, as addresses and sizes."""

    weights: Address  # uint8 [weight_rows, weight_bytes]: panels, or rows of a file's blocks
    weight_rows: int
    weight_bytes: int
    x_rows: Address  # m rows of activations in batches, see tile.py
    m: int
    row_bytes: int
    out: Address  # float32 [m, n]
    n: int
    runs: int  # of 32 columns: K / 32
    ahead: int = 0  # bytes ahead of which panels are prefetched, with few rows of activations; 0: not at all


class Activations(NamedTuple):
    """Arguments of a quantizer."""

    values: Address  # float32 [M, columns]
    x_rows: Address  # what they become, uint8 [rows, row_bytes]
    rows: int
    columns: int
    row_bytes: int
    most: int  # rows of a batch
    zero: int  # the number that the product has to take from every code of the weights
    start: int  # the first value of its sums of integers


class Laying(NamedTuple):
    """Arguments of the kernel that lays rows of blocks into panels."""

    raw: Address  # uint8 [rows, row_bytes]
    pitch: int  # bytes from a row to the next
    row_bytes: int
    rows: int
    columns: int
    panels: Address  # uint8 [panels, panel_bytes]
    panel_bytes: int
