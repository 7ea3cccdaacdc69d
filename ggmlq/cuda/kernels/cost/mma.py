"""The tile of a kernel of ``mma`` on packed weights and its split along K: the fastest by a count of clocks.

A step of a block is 128 rows of weights, a tile of activations and 64 columns. It takes a little longer than
the tensor cores need for it, or four schedulers to issue its instructions, or the L2 cache to bring it. The
blocks of a multiprocessor share all three, so its time is that of a step times their number. A lone block
waits for each stage and each barrier. What is split is written and read once more as float32, by a kernel
that must start.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

from ....base.slots import rows_of
from ....dispatch.card import Card
from ...driver import device
from ...driver.recorded import decided
from ...layouts.code_tiles import EIGHT
from ...layouts.layout import ROWS, STEP, TILE_ROWS, PackedLayout
from ...layouts.pack import PackedWeights
from ..mma.kernel import BYTES, HALF_SUMS, TILES, MmaPlan, MmaTile, folds, tiles_of
from . import roof
from .stage import SHARE, at_one_time

HOPPER = 9, 0
# Clocks of a scheduler there for an instruction of a kind, fitted to what products took: reading registers
# takes time, so a multiply-add takes two.
MMA_HALVES_CLOCKS, MMA_BYTES_CLOCKS, ADD_CLOCKS, OTHER_CLOCKS = 4.2, 3, 2, 1.5
MAX_TIME_SHARE = 0.9  # share of the time with sums of floats, below which those of halves are taken
CONVERT_CLOCKS = 1.2  # for the two floats of a register, half of its rate
KINDS = {"cuda:mma_bf16": "float16", "cuda:mma_q8": BYTES, "cuda:mma_f16": HALF_SUMS}  # by kernel
# Bytes that are read and written for an activation of 16 bits that becomes another number, where one does.
PREPARE_BYTES = {BYTES: 3.2, HALF_SUMS: 6.0}
USUAL_GHZ = 1.5  # GHz, where a card's is not known
MAX_SPLITS, MIN_STEPS = 16, 4  # parts of K, and steps of a part
MAX_TILES = 65535  # tiles of activations: blocks along the second axis of a grid
L2_BYTES = 32  # that a multiprocessor gets of the L2 in a clock
LONE_WAIT_CLOCKS = 400  # clocks of a step in which a lone block's warps wait: barrier, loads, first products
ENDS_CLOCKS = 3000  # clocks to fill the ring, and to write a tile
ADD_US = 2.5  # of the second kernel, beside its bytes
DECODE_INSTRUCTIONS = 24  # instructions for 16 columns of two fragment rows
COPY_INSTRUCTIONS = 48  # instructions of a step for copies, addresses, scales


class MmaSplit(NamedTuple):
    """A tile, and the number of parts of K."""

    tile: MmaTile
    splits: int


def step_clocks(card: Card, layout: PackedLayout, tile: MmaTile, kind: str) -> float:
    """Clocks of a multiprocessor for a step of a tile."""
    hopper, operations = card.capability == HOPPER, 2.0 * TILE_ROWS * tile.columns * STEP
    if kind == BYTES:
        issued, rate = _bytes_issued(layout, tile), float(roof.rate(card, "int8"))
        operations *= layout.runs // 2  # with runs of 16, half of an instruction is idle
    elif kind == HALF_SUMS:
        issued, rate = _half_sums_issued(layout, tile), float(roof.rate(card, "bfloat16"))
    else:
        issued, rate = _halves_issued(layout, tile, kind), float(roof.rate(card, "bfloat16"))
        rate /= 2 if roof.halved(card, "bfloat16") else 1
    products = 0 if hopper else operations / rate  # there it is the registers that limit
    return at_one_time(at_one_time(tile.warps / 4 * issued, products), tile.stage(layout) / L2_BYTES)


def gains_by_halves(card: Card, layout: PackedLayout) -> bool:
    """True where a step with sums of halves takes clearly less time: no card that gains has run one."""
    kinds = HALF_SUMS, KINDS["cuda:mma_bf16"]
    halves, floats = (step_clocks(card, layout, TILES[-1], kind) for kind in kinds)
    return halves < MAX_TIME_SHARE * floats


def _halves_issued(layout: PackedLayout, tile: MmaTile, kind: str) -> float:
    """Clocks of a scheduler for a warp's step of 16 bits."""
    folded = folds(layout, kind)
    eights, scales = tile.columns // EIGHT, 1 if folded else layout.runs
    sums = layout.has_offset * max(eights // tile.warps, 1)  # eights whose activations a warp sums
    offsets = layout.has_offset * layout.runs * eights
    others = (
        4 * eights
        + offsets
        + 4 * sums
        + 4 * DECODE_INSTRUCTIONS * (1 + folded / 2)
        + 8 * layout.scales
        + COPY_INSTRUCTIONS
    )
    return (
        MMA_HALVES_CLOCKS * (8 * eights + 4 * sums)
        + ADD_CLOCKS * 8 * (scales * eights + offsets)
        + OTHER_CLOCKS * others
    )


def _half_sums_issued(layout: PackedLayout, tile: MmaTile) -> float:
    """Clocks of a scheduler where sums are halves, of which each becomes a float before it is scaled."""
    return _halves_issued(layout, tile, HALF_SUMS) + CONVERT_CLOCKS * 8 * layout.runs * (
        tile.columns // EIGHT
    )


def _bytes_issued(layout: PackedLayout, tile: MmaTile) -> float:
    """Clocks of a scheduler for a warp's step of bytes; each sum takes two multiply-adds, or three."""
    eights = tile.columns // EIGHT
    products, sums = 2 * layout.runs * eights, layout.has_offset * layout.runs // 2 * eights
    others = 2 * eights + sums + DECODE_INSTRUCTIONS * layout.runs + 8 * layout.scales + COPY_INSTRUCTIONS
    return (
        MMA_BYTES_CLOCKS * products
        + ADD_CLOCKS * 4 * (2 + layout.has_offset) * products
        + OTHER_CLOCKS * others
    )


@lru_cache(1 << 10)
def best_split(card: Card, layout: PackedLayout, kind: str, m: int, n: int, steps: int) -> MmaSplit:
    """The tile and the split with the shortest estimate."""
    choices = _multiplying(card, layout, kind, -(-m // EIGHT) * EIGHT, n, steps)
    adding = [adding_us(card, splits, m, n) for splits in range(MAX_SPLITS + 1)]
    return min(choices, key=lambda choice: choice[1] + adding[choice[0].splits])[0]


@lru_cache(1 << 10)
def _multiplying(
    card: Card, layout: PackedLayout, kind: str, m: int, n: int, steps: int
) -> list[tuple[MmaSplit, float]]:
    """All tiles and splits, with microseconds of the kernel that multiplies: for eight rows the same."""
    splits = range(1, max(1, min(MAX_SPLITS, steps // MIN_STEPS)) + 1)
    tiles = [tile for tile in tiles_of(layout, kind) if -(-m // tile.columns) <= MAX_TILES]
    return [
        (MmaSplit(tile, parts), multiplying_us(card, layout, tile, step, parts, m, n, steps))
        for tile in tiles
        for step in (step_clocks(card, layout, tile, kind),)
        for parts in splits
    ]


def plan_tiles(
    m: int, card: Card, layout: PackedLayout, kind: str, n: int, steps: int, split: MmaSplit | None = None
) -> MmaPlan:  # fmt: skip
    """The plan of a product with activations of a kind; ``split``: another tile and split than the best."""
    tile, splits = split or best_split(card, layout, kind, m, n, steps)
    grid = -(-n // TILE_ROWS), -(-m // tile.columns), splits
    # A multiprocessor with room for more would take them from others, where there are few blocks.
    return MmaPlan(tile, grid, min(tile.blocks, -(-math.prod(grid) // device.multiprocessors())))


def plan_for(out: Any, w: PackedWeights, kind: str, split: MmaSplit | None) -> MmaPlan:
    """The plan of :func:`plan_tiles` for a result on the current device, decided for its rows."""
    card, facts = device.card_of(device.current()), (out.shape[1], w.fragments.shape[1])
    plan: MmaPlan = decided(plan_tiles, rows_of(out), card, w.layout, kind, *facts, split)
    return plan


def split_us(
    card: Card, layout: PackedLayout, kind: str, split: MmaSplit, m: int, n: int, steps: int
) -> float:  # fmt: skip
    """Estimated microseconds of a product, without what comes before."""
    tile, splits = split
    step = step_clocks(card, layout, tile, kind)
    us = multiplying_us(card, layout, tile, step, splits, m, n, steps)
    return us + adding_us(card, splits, m, n)


def adding_us(card: Card, splits: int, m: int, n: int) -> float:
    """Estimated microseconds of the kernel that adds up partial sums, if there are any."""
    return ADD_US + (2 * splits * 4 * m * n) / 1e6 / (2 * card.memory) if splits > 1 else 0.0


def multiplying_us(
    card: Card, layout: PackedLayout, tile: MmaTile, step: float, splits: int, m: int, n: int, steps: int
) -> float:  # fmt: skip
    """Estimated microseconds of the kernel that multiplies; ``step``: clocks of a step of the tile."""
    blocks = -(-n // TILE_ROWS) * -(-m // tile.columns) * splits
    each = -(-steps // splits)
    most = -(-blocks // card.multiprocessors)  # blocks of the busiest multiprocessor
    beside = min(tile.blocks, most)
    step = max(step * beside, step + LONE_WAIT_CLOCKS)
    clocks = -(-most // beside) * (each * step + ENDS_CLOCKS)
    us = clocks / (1e3 * (card.clock or USUAL_GHZ))
    wave = card.multiprocessors * tile.blocks
    passes = min(-(-m // tile.columns), -(-blocks // wave))  # over the weights, if no cache holds them
    return at_one_time(us, passes * n * steps * layout.fragment_bytes / ROWS / 1e6 / card.memory)


def estimate(card: Card, layout: PackedLayout, kernel: str, m: int, n: int, k: int) -> float:
    """Estimated microseconds of all that a product launches, for activations of 16 bits."""
    steps, kind = 2 * -(-k // (2 * STEP)), KINDS[kernel]
    split = best_split(card, layout, kind, m, n, steps)
    us = roof.START_US + split_us(card, layout, kind, split, m, n, steps)
    if kind in PREPARE_BYTES:
        us += 1 + PREPARE_BYTES[kind] * m * k / 1e6 / (SHARE * card.memory)
    return us
