"""A product by tiles: which tile serves a shape, and the arguments that all such kernels take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...arrays.scaled import ScaledArray
from ...dispatch.card import older_than
from ...dispatch.problems import ScaledLinear
from ..intrinsics.language import uint32, uint64
from ..machine import device
from ..rings.shape import MOST_SHARED, MOST_STAGES, ByteTile
from .rows import STEPS, Groups, Rows, groups_of, rows_of, too_short

# What a kernel takes: x, w, y · m, n, k, pitches, tiles down and across, tiles of a group of blocks ·
# scales: addresses, bytes from row to row and column to column · rows and steps that share one
PARAMETERS = (uint64,) * 3 + (uint32,) * 8 + (uint64,) * 6 + (uint32,) * 4
RASTER_HEIGHT = 8  # tiles that blocks run down before they go to the next column of tiles


class Wave(NamedTuple):
    """A tile, and how well its kernel keeps a multiprocessor busy, relative to others."""

    tile: ByteTile
    share: float


def refuses(problem: ScaledLinear, least: tuple[int, int]) -> str | None:
    """Why tiles of 8-bit codes do not serve a problem, or None."""
    if max(problem.m, problem.n, problem.k) >= 1 << 31:
        return "takes up to 2**31 - 1 rows and columns"
    return too_short(problem) or older_than(problem.card, least)


def fitting(tile: ByteTile, step: int, room: int) -> ByteTile | None:
    """A tile with another step, and with as many stages as a block's shared memory has room for."""
    made = replace(tile, step=step)
    stages = min(tile.stages * tile.step // step, MOST_STAGES, room // tile.blocks // made.stage)
    return replace(made, stages=stages) if stages >= 2 else None


def steps_of(waves: Sequence[Wave]) -> list[ByteTile]:
    """Tiles with every step, as on Hopper: for the lists of kernels."""
    made = [fitting(wave.tile, step, MOST_SHARED) for wave in waves for step in STEPS]
    return [tile for tile in made if tile is not None]


def small_enough(problem: ScaledLinear, waves: Sequence[Wave]) -> str | None:
    """Why none of these tiles fits on a problem's card, or None."""
    card = problem.card
    if card is None or any(fitting(wave.tile, wave.tile.step, card.shared) for wave in waves):
        return None
    return f"needs {2 * waves[-1].tile.stage >> 10} KB of shared memory for a block"


def best(waves: Sequence[Wave], step: int, m: int, n: int) -> ByteTile:
    """The tile with which the multiprocessors are done first."""
    room, count = device.most_shared(), device.multiprocessors()

    def time(wave: Wave) -> float:
        down, across = wave.tile.tiles(m, n)
        return -(-down * across // count) * wave.tile.rows * wave.tile.columns / wave.share

    tiles = [fitting(wave.tile, step, room) for wave in sorted(waves, key=time)]
    return next(tile for tile in tiles if tile is not None)


def is_wide(tile: Any) -> bool:
    """Whether it pays to tell apart that all columns of a warp share a scale."""
    return bool(tile.warp_columns >= 32)


class Given(NamedTuple):
    """Both operands of a product, as kernels read them."""

    x: Rows
    w: Rows
    groups: Groups

    def uniform(self, tile: ByteTile) -> bool:
        """Whether all columns of a warp share a scale."""
        rows = self.w.scales.rows
        return is_wide(tile) and (rows % tile.warp_columns == 0 or rows >= len(self.w.codes))

    def launch(
        self, kernel: Any, tile: ByteTile, out: Any, *more: Any, raster_height: int = RASTER_HEIGHT
    ) -> None:
        """Run a kernel with all that it takes; ``more`` comes behind."""
        (m, n), x, w = out.shape, self.x.scales, self.w.scales
        down, across = tile.tiles(m, n)
        k = min(self.x.columns, self.w.columns)
        kernel(
            (down * across,), (tile.threads,), self.x.codes, self.w.codes, out,
            m, n, k, self.x.pitch, self.w.pitch, down, across, raster_height,
            x.at, w.at, x.row, w.row, x.column, w.column, x.rows, w.rows, x.steps, w.steps, *more,
        )  # fmt: skip


def given(x: ScaledArray, w: ScaledArray, step: int | None = None) -> Given:
    """Both operands, with as much of a copy as they need."""
    groups = groups_of(w.shape[1], min(x.tiling.c, w.tiling.c), step)
    return Given(rows_of(x, groups), rows_of(w, groups, keep=True), groups)
