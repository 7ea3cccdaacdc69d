"""Persistent blocks with producer and consumer warps, and registers moved to where they count.

Changed: Hopper's copy engine lays codes in shared memory as ``wgmma`` reads them (chapters c2 and c8), into
a ring that producer warps keep full (c3). One block a multiprocessor takes tile after tile, so that the
stages of the next tile arrive while the outputs of this one are written. The producer warpgroup gives its
registers (``setmaxnreg``) to the two consumers, which make 128 × 128 outputs each: 192 sums a thread, where
registers sufficed for 128. While the sums of one are promoted to float32, the tensor cores work for the
other; the wait for the next stage and its scales overlap products. Outputs go through shared memory and the
copy engine.

Integers need no promotion: their sums stay in the tensor cores to the end of K, and scales, zero points and
the rounding to the outputs' kind come once. Scales of floats: one for 128 rows of w, or for each row.

Why it helps: a third more products for each byte from the L2 than with 128 × 128 tiles; no start, no end,
no wait for stores between tiles.

Limited, in FP8, by promotion (one multiply-add an output and 128 columns, a quarter of the tensor cores'
time, half hidden) and by the power that random data draws; in int8 by power alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ....arrays.scaled import ScaledArray
from ....dispatch.epilogue import PLAIN, Epilogue
from ....dispatch.ladder import register
from ...driver import device
from ...driver.launch import Kernel, family
from ...kernels.codes8 import operands as operands8
from ...kernels.codes8.epilogue import tile_writer
from ...kernels.codes8.kernel import code_consumers, dense
from ...kernels.codes8.rows import refuses_persistent
from ...kernels.codes8.tiles import (
    CODED_ZERO_POINT_TILES,
    COLUMN_SCALE_TILES,
    FLOAT_TILES,
    INTEGER_TILES,
    PAIR_TILE,
    BoxTile,
    Variant,
    best_tile,
    float_variants,
    integer_variants,
)
from ...kernels.hopper import frame

MIN_OPERATIONS_OF_PAIRS = 3e11  # some 200 microseconds: pairs are faster from here on (bench/notes/codes8.md)


@family(float_variants() + integer_variants())
def kernel(variant: Variant) -> Kernel:
    """The kernel of blocks that stay on the card and take tile after tile."""
    consumers = code_consumers(variant)
    schedule = dense(variant, consumers)
    return frame.kernel(f"tma persistent {variant}", consumers, schedule, tile_writer(variant))


@register(
    __name__, __doc__, arithmetic="codes", accumulate="int32, float32 every 128", refuses=refuses_persistent,
    narrow=True, ends=True,
)  # fmt: skip
def launch(
    x: ScaledArray, w: ScaledArray, out: Any, tile: BoxTile | None = None, end: Epilogue = PLAIN
) -> None:
    """``out`` may be float16 or bfloat16, too; ``tile``: one to take in place of the best."""
    if not (out.size and w.shape[1]):
        out.fill(0)
        return
    (m, n), product, to = out.shape, operands8.CodesProduct.of(x, w), operands8.outputs(out, end)
    if product.integer:
        tiles = CODED_ZERO_POINT_TILES if product.zeros and end.code else INTEGER_TILES
    else:
        tiles = COLUMN_SCALE_TILES if product.column_scales else FLOAT_TILES
    if tile is None:
        tile = best_tile(tiles, m, n)
        if to.boxed and set(product.kinds) == {"e4m3"} and _gains_by_pairs(tile, m, n, x.shape[1]):
            tile = PAIR_TILE
    variant = Variant(tile, *product.kinds, to.out, to.boxed, product.column_scales, product.zeros)
    words = operands8.kernel_words(variant, product, to.at)
    kernel(variant)(
        _grid(tile, m, n), (variant.threads,), words.operands, words.sizes, operands8.epilogue_words(end),
        cluster=tile.blocks,
    )  # fmt: skip


def _gains_by_pairs(tile: BoxTile, m: int, n: int, k: int) -> bool:
    """True where the tile has pairs, and the product is so long that the card's power limits it."""
    return (
        replace(tile, pair=True) == PAIR_TILE
        and PAIR_TILE.divides(n)
        and 2 * m * n * k >= MIN_OPERATIONS_OF_PAIRS
    )


def _grid(tile: BoxTile, m: int, n: int) -> tuple[int]:
    return (min(tile.tiles(m, n), device.multiprocessors() // tile.blocks * tile.blocks),)
