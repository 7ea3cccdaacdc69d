"""Tiles of kernels that multiply 8-bit codes by ``mma.sync``: the choice of one, and the launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...arrays.scaled import ScaledArray
from ...dispatch.card import older_than
from ...dispatch.problems import ScaledLinear
from ..epilogue.results import result_of
from ..epilogue.split_sums import FOUR, add_partials
from ..intrinsics.language import uint32, uint64
from ..machine import device
from ..machine.recorded import between
from ..rings.shape import MOST_SHARED, MOST_STAGES, ByteTile
from .checks import too_short
from .rows import STEPS, OperandPair, operand_pair

# What a kernel takes: x, w, y · m, n, k, pitches, tiles down and across, tiles of a group of blocks ·
# scales: addresses, bytes from row to row and column to column · rows and steps that share one
PARAMETERS = (uint64,) * 3 + (uint32,) * 8 + (uint64,) * 6 + (uint32,) * 4
FILL, SHORTEST, MOST_PARTS = 2, 4, 8  # blocks a multiprocessor; steps of a part; parts of K
RASTER_HEIGHT = 8  # tiles that blocks go down before they take the next column of tiles


class RatedTile(NamedTuple):
    """A tile, and how busy its kernel keeps a multiprocessor, relative to other tiles."""

    tile: ByteTile
    efficiency: float


def refuses(problem: ScaledLinear, least: tuple[int, int]) -> str | None:
    """The reason why tiles of 8-bit codes do not serve a problem, or None."""
    if max(problem.m, problem.n, problem.k) >= 1 << 31:
        return "takes up to 2**31 - 1 rows and columns"
    return too_short(problem) or older_than(problem.card, least)


def fitting(tile: ByteTile, step: int, shared: int) -> ByteTile | None:
    """The tile with another step and as many stages as ``shared`` bytes hold; None if fewer than two."""
    with_step = replace(tile, step=step)
    stages = min(tile.stages * tile.step // step, MOST_STAGES, shared // tile.blocks // with_step.stage)
    return replace(with_step, stages=stages) if stages >= 2 else None


def with_every_step(rated_tiles: Sequence[RatedTile]) -> list[ByteTile]:
    """The tiles with every step, and as many stages as fit on Hopper, for the lists of kernels."""
    tiles = [fitting(rated.tile, step, MOST_SHARED) for rated in rated_tiles for step in STEPS]
    return [tile for tile in tiles if tile is not None]


def too_large(problem: ScaledLinear, rated_tiles: Sequence[RatedTile]) -> str | None:
    """The reason why none of these tiles fits into the shared memory of a problem's card, or None."""
    card = problem.card
    if card is None or any(fitting(rated.tile, rated.tile.step, card.shared) for rated in rated_tiles):
        return None
    return f"needs {2 * rated_tiles[-1].tile.stage >> 10} KB of shared memory for a block"


def best_tile(rated_tiles: Sequence[RatedTile], step: int, m: int, n: int) -> ByteTile:
    """The tile with which the multiprocessors finish first, by an estimate from its size and efficiency."""
    shared, count = device.most_shared(), device.multiprocessors()

    def time(rated: RatedTile) -> float:
        down, across = rated.tile.tiles(m, n)
        return -(-down * across // count) * rated.tile.rows * rated.tile.columns / rated.efficiency

    tiles = [fitting(rated.tile, step, shared) for rated in sorted(rated_tiles, key=time)]
    return next(tile for tile in tiles if tile is not None)


def is_wide(tile: Any) -> bool:
    """True where a warp is wide enough to gain from one scale for all its columns."""
    return bool(tile.warp_columns >= 32)


def is_uniform(pair: OperandPair, tile: ByteTile) -> bool:
    """True where all columns of a warp share a scale."""
    rows = pair.w.scales.rows
    return is_wide(tile) and (rows % tile.warp_columns == 0 or rows >= len(pair.w.codes))


def launch(
    kernel: Any, tile: ByteTile, pair: OperandPair, out: Any, *more: Any, raster_height: int = RASTER_HEIGHT,
    parts: int = 1,
) -> None:  # fmt: skip
    """Launch a kernel with the arguments that all such kernels take; ``more`` follows them.

    ``parts``: of K, for kernels that take some; then ``out`` is [parts, m, n].
    """
    (m, n), x, w = out.shape[-2:], pair.x.scales, pair.w.scales
    down, across = tile.tiles(m, n)
    k = min(pair.x.columns, pair.w.columns)
    kernel(
        (down * across, parts)[: 1 + (parts > 1)], (tile.threads,), pair.x.codes, pair.w.codes, out,
        m, n, k, pair.x.pitch, pair.w.pitch, down, across, raster_height,
        x.at, w.at, x.row, w.row, x.column, w.column, x.rows, w.rows, x.steps, w.steps, *more,
    )  # fmt: skip


def launch_split(kernel: Any, tile: ByteTile, pair: OperandPair, out: Any, splits: int = 0) -> None:
    """Launch a kernel whose blocks may share K, then the one that adds their sums.

    ``splits``: parts of K, which are whole groups; 0 for the best number.
    """
    (m, n), steps = out.shape, -(-min(pair.x.columns, pair.w.columns) // tile.step)
    splits = splits or best_parts(tile, m, n, steps)
    span, parts = span_of(pair, steps, splits)
    if parts == 1 or n % FOUR:
        launch(kernel, tile, pair, out, steps)
        return
    partials = between((parts, m, n), np.float32)
    launch(kernel, tile, pair, partials, span, parts=parts)
    add_partials(partials, result_of(out, None), m, n)


def launch_floats(
    make: Callable[[ByteTile, OperandPair], Any], rated_tiles: Sequence[RatedTile], x: ScaledArray,
    w: ScaledArray, out: Any, splits: int,
) -> None:  # fmt: skip
    """Launch the kernel that ``make`` gives for a tile and operands; ``splits``: of :func:`launch_split`."""
    if not (out.size and w.shape[1]):
        out.fill(0)
        return
    operands = operand_pair(x, w)
    tile = best_tile(rated_tiles, operands.groups.step, *out.shape)
    launch_split(make(tile, operands), tile, operands, out, splits)


def span_of(pair: OperandPair, steps: int, splits: int) -> tuple[int, int]:
    """The steps of a part of K, whole groups that share scales, and the number of parts."""
    group = max((each for each in (pair.x.scales.steps, pair.w.scales.steps) if each < steps), default=1)
    span = -(-steps // (splits * group)) * group
    return span, -(-steps // span)


def best_parts(tile: ByteTile, m: int, n: int, steps: int) -> int:
    """The parts of K that fill the multiprocessors, where there are few tiles, and none is short."""
    down, across = tile.tiles(m, n)
    return max(1, min(device.multiprocessors() * FILL // (down * across), steps // SHORTEST, MOST_PARTS))
