"""The cut of K for 8-bit floats: groups of columns that share both scales, each in runs of whole steps.

A tile sums a run before it multiplies with the scales. Groups longer than ``LONG`` columns are
several runs. Columns that fill a run up are zeros on both sides, and add nothing.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ...dispatch.problems import ScaledLinear
from ..machine.tables import Address, joined

ROWS = 16  # of a panel of weights: a vector of sums has one of each
STEP = 16  # columns that are decoded at a time
MOST, FEW = 12, 6  # rows of activations of a tile; of a tile for the rows that are left
ALONG, BAND = 8, 16  # rows of activations up to which float_few.py serves; of weights that meet all of them
LONG = 512  # columns of a run
PORTION = 512 << 10  # bytes of weights that meet all rows before the next are decoded
LINE = 64  # bytes of a line of the caches
APART = LONG + LINE  # bytes from a row to the next while they are transposed


class Cut(NamedTuple):
    """K in groups and runs."""

    k: int
    group: int  # columns that share both scales
    groups: int
    run: int
    runs: int  # of a group
    width: int  # of a run, filled up

    @property
    def span(self) -> int:
        """Columns that are decoded at once: several runs, where no filling lies between them."""
        if self.groups > 1 and self.group != self.runs * self.width:
            return self.width
        return max(1, LONG // self.width) * self.width

    @property
    def pitch(self) -> int:
        """Bytes from a row of bfloat16 to the next: an odd number of lines.

        Rows that lie a power of two apart have one place of the first cache for all.
        """
        lines = -(-2 * self.width * self.runs * self.groups // LINE)
        return LINE * (lines | 1)

    @property
    def together(self) -> int:
        """Runs of a portion: all of K, where two panels of that fit."""
        return min(self.groups * self.runs, max(1, PORTION // (2 * self._panel)))

    @property
    def near(self) -> int:
        """Panels of a portion, an even number."""
        return max(2, PORTION // (self._panel * self.together) // 2 * 2)

    @property
    def _panel(self) -> int:
        """Bytes of a panel along a run."""
        return 2 * ROWS * self.width


@cache
def cut_of(problem: ScaledLinear) -> Cut:
    """The cut of a problem's K."""
    k, group = problem.k, problem.group
    runs = -(-group // LONG)
    run = group if runs == 1 else -(-group // runs // STEP) * STEP
    return Cut(k, group, -(-k // group), run, runs, -(-run // STEP) * STEP)


# --- The arguments of the kernels of 8-bit floats -------------------------------------------------


class Codes(NamedTuple):
    """Rows of codes with scales, and the tile that shares a scale."""

    codes: Address  # bytes [rows, k]
    pitch: int  # bytes from a row to the next
    r: int  # of a scale tile
    c: int
    scales: Address  # float32 [bands, tiles], of any strides
    scales_pitch: int  # bytes from a band to the next
    scales_step: int  # and from a tile to the next


class Product(NamedTuple):
    """The other operand and the result of a product, behind the codes of its weights."""

    x: Address  # bfloat16 [m, row]
    x_pitch: int
    x_scales: Address  # float32 [m, runs of all groups]
    m: int
    n: int
    out: Address  # float32 [m, n]
    span: int  # columns that are decoded at once
    together: int  # runs of a portion
    near: int  # panels of a portion


class TileProduct(NamedTuple):
    """The other operand and the result where the matrix unit multiplies."""

    tiles: int  # address of activations: chunks [blocks, steps, 2, 16, 64 bytes]
    blocks: int  # of 32 rows
    x_scales: int  # address of float32 [32 * blocks, runs of all groups]
    m: int
    n: int
    out: int  # address of float32 [m, n]
    span: int
    together: int  # runs of a chunk
    near: int  # pairs of panels that are decoded along a chunk


class Values(NamedTuple):
    """The results of decoding: rows of bfloat16."""

    values: Address  # bfloat16 [m, row]
    values_pitch: int
    by_run: Address  # float32 [m, runs of all groups]


Operands = joined("Operands", Cut, Codes, Product)
TileOperands = joined("TileOperands", Cut, Codes, TileProduct)
Decoding = joined("Decoding", Cut, Codes, Values)
