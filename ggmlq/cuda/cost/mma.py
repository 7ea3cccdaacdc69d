"""The tile of cuda:mma_bf16 or cuda:mma_q8 and its split along K: the fastest pair by a count of clocks.

A step of a block is 128 rows of weights, a tile of activations and 64 columns. It takes a little longer than
the tensor cores need for it, or four schedulers to issue its instructions, or the L2 cache to bring it. The
blocks of a multiprocessor share all three, so its time is that of a step times their number. A lone block
waits for each stage and each barrier. What is split is written and read once more as float32, by a kernel
that must start.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from ...dispatch.card import Card
from ..packed.code_halves import can_fold
from ..packed.layout import ROWS, STEP, TILE_ROWS, PackedLayout
from ..rings.mma_tile import CODE_TILES, EIGHT, TILES, WIDE, CodeTile, MmaTile
from . import roof
from .stage import at_one_time

HOPPER, HOPPER_RATE = (9, 0), 2800  # operations a clock that mma.sync reaches there, of wgmma's 4096
# Clocks of a scheduler for an instruction of a product of bytes, as measured there: registers take time.
BYTES_MMA, BYTES_ADD, BYTES_OTHER, BYTES_AROUND = 3, 2, 1.5, 48
BYTES = "int8"  # the kind of activations of cuda:mma_q8
CLOCK = 1.5  # GHz, where a card's is not known
MOST_SPLITS, SHORTEST = 16, 4  # parts of K, and steps of a part
MOST_TILES = 65535  # tiles of activations: blocks along the second axis of a grid
L2_BYTES = 32  # that a multiprocessor gets of the L2 in a clock
EDGE = 400  # clocks of a step in which a lone block's warps wait: barrier, loads, first products
ENDS = 3000  # clocks to fill the ring, and to write a tile
ADD_US = 2.5  # of the second kernel, beside its bytes
DECODING = 24  # instructions for 16 columns of two fragment rows
AROUND = 120  # instructions of a step for copies, addresses, scales


class MmaSplit(NamedTuple):
    """A tile, and the number of parts of K."""

    tile: MmaTile
    splits: int


def step_clocks(card: Card, layout: PackedLayout, tile: MmaTile) -> float:
    """Clocks of a multiprocessor for a step of a tile."""
    if isinstance(tile, CodeTile):
        return byte_step_clocks(card, layout, tile)
    eights, warps = tile.columns // 8, tile.warps
    loads, scales = 4 * eights, 8 * layout.runs * eights
    sums = (layout.has_offset) * (4 * eights // 4 + layout.runs * eights)
    offsets = scales * layout.has_offset
    issued = warps / 4 * (8 * eights + loads + scales + offsets + sums + 4 * DECODING + AROUND)
    rate = roof.rate(card, "bfloat16") / (2 if roof.halved(card, "bfloat16") else 1)
    operations = 2 * TILE_ROWS * tile.columns * STEP
    products = operations / rate if card.capability != HOPPER else operations / HOPPER_RATE
    return at_one_time(at_one_time(issued, products), tile.stage(layout) / L2_BYTES)


def byte_step_clocks(card: Card, layout: PackedLayout, tile: CodeTile) -> float:
    """Clocks of a step of bytes, of which each integer sum takes two multiply-adds, or three."""
    eights = tile.columns // EIGHT
    products = 2 * layout.runs * eights
    loads, sums = 2 * eights, layout.has_offset * layout.runs // 2 * eights
    others = loads + sums + 2 * DECODING * layout.runs / 2 + 8 * layout.scales + BYTES_AROUND
    adds = 4 * (2 + layout.has_offset) * products
    issued = tile.warps / 4 * (BYTES_MMA * products + BYTES_ADD * adds + BYTES_OTHER * others)
    operations = 2 * TILE_ROWS * tile.columns * STEP * (layout.runs // 2)  # of runs of 16 half is idle
    rate = math.inf if card.capability == HOPPER else roof.rate(card, "int8")
    return at_one_time(at_one_time(issued, operations / rate), tile.stage(layout) / L2_BYTES)


def tiles_of(layout: PackedLayout, kind: str) -> tuple[MmaTile, ...]:
    """The tiles for weights of a layout and activations of a kind."""
    if kind == BYTES:
        return CODE_TILES
    wide = kind == "float16" and layout.has_offset and can_fold(layout) and layout.bit_planes == (4,)
    return (*TILES, WIDE) if wide else TILES


@lru_cache(1 << 10)
def best_split(card: Card, layout: PackedLayout, kind: str, m: int, n: int, steps: int) -> MmaSplit:
    """The tile and the split with the shortest estimate."""
    tiles = [tile for tile in tiles_of(layout, kind) if -(-m // tile.columns) <= MOST_TILES]
    choices = [MmaSplit(tile, splits) for tile in tiles for splits in _splits(steps)]
    return min(choices, key=lambda split: split_us(card, layout, split, m, n, steps))


def _splits(steps: int) -> range:
    return range(1, max(1, min(MOST_SPLITS, steps // SHORTEST)) + 1)


def split_us(card: Card, layout: PackedLayout, split: MmaSplit, m: int, n: int, steps: int) -> float:
    """Estimated microseconds of a product, without what comes before."""
    tile, splits = split
    blocks = -(-n // TILE_ROWS) * -(-m // tile.columns) * splits
    each = -(-steps // splits)
    most = -(-blocks // card.multiprocessors)  # blocks of the busiest multiprocessor
    beside = min(tile.blocks, most)
    step = max(step_clocks(card, layout, tile) * beside, step_clocks(card, layout, tile) + EDGE)
    clocks = -(-most // beside) * (each * step + ENDS)
    us = clocks / (1e3 * (card.clock or CLOCK))
    wave = card.multiprocessors * tile.blocks
    passes = min(-(-m // tile.columns), -(-blocks // wave))  # over the weights, if no cache holds them
    us = at_one_time(us, passes * n * steps * layout.fragment_bytes / ROWS / 1e6 / card.memory)
    if splits > 1:
        us += ADD_US + (2 * splits * 4 * m * n) / 1e6 / (2 * card.memory)
    return us
