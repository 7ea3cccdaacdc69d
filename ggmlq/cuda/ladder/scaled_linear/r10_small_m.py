"""Few rows: the weights stream through all multiprocessors, a cluster of blocks splits K.

Changed: operands change places. ``wgmma`` has 64 rows of its first operand; with one row of x 63 of them
would be wasted. So weights are the first operand and x, filled up to 8, 16, 32 or 64 rows, is the second
one. A tile is 64 rows of w and all of x; K is split among up to eight blocks, so that all multiprocessors
read weights at any N. The blocks are a cluster and send their sums into each other's shared memory, where
they are added in a fixed order: no second kernel, no atomic addition.

Why it helps: time is that of reading the weights once. Copies of 8 KB, into 8 or 12 stages of one block or
4 to 6 of each of two or three, keep 100 KB and more a multiprocessor in flight, three times what the
memory's latency needs, and the first of them start before the predecessor has ended.

Limited by the memory, and by the overhead around a stream of three microseconds: the launch, the first
copy, the exchange of sums.
"""

from __future__ import annotations

from itertools import product as combined
from typing import Any

from ....arrays.scaled import ScaledArray
from ....dispatch.epilogue import PLAIN, Epilogue
from ....dispatch.ladder import register
from ....dispatch.problems import ScaledLinear
from ...driver import device
from ...driver.launch import Kernel, family
from ...intrinsics.wgmma import INTEGERS, STEP
from ...kernels.codes8 import operands as operands8
from ...kernels.codes8.rows import refuses_persistent
from ...kernels.codes8.small_m import (
    SPLITS,
    TILES,
    SmallMTile,
    SmallMVariant,
    small_m,
    small_m_consumers,
    sum_exchanger,
)
from ...kernels.codes8.tiles import CODED_OUTPUTS, FLOAT_CODES, OUTPUTS
from ...kernels.cost import codes8
from ...kernels.hopper import frame

MAX_ROWS_OF_X = TILES[-1].columns


def variants() -> list[tuple[SmallMVariant]]:
    """The kernel's cases: all tiles, pairs of codes and kinds of outputs; for outputs as codes a few."""
    floats = [
        SmallMVariant(t, a, b, out) for t, a, b, out in combined(TILES, FLOAT_CODES, FLOAT_CODES, OUTPUTS)
    ]
    integers = [
        SmallMVariant(t, a, b, out, zeros)
        for t, a, b, out, zeros in combined(TILES, INTEGERS, INTEGERS, OUTPUTS, (False, True))
    ]
    coded = [
        SmallMVariant(TILES[-1], code, code, out) for code, out in combined(("s8", "e4m3"), CODED_OUTPUTS)
    ]
    return [(variant,) for variant in floats + integers + coded]


@family(variants())
def kernel(variant: SmallMVariant) -> Kernel:
    """The kernel: a block for each tile of rows of w and part of K; the blocks of a tile are a cluster.

    Two warpgroups multiply every other step of the ring; of two more warps one thread each fetches w, and x.
    The loop, its barriers and the exchange of sums: kernels/codes8/small_m.py.
    """
    consumers = small_m_consumers(variant)
    schedule = small_m(variant, consumers)
    return frame.kernel(f"tma few rows {variant}", consumers, schedule, sum_exchanger(variant))


def refuses(problem: ScaledLinear) -> str | None:
    if problem.m > MAX_ROWS_OF_X:
        return f"takes up to {MAX_ROWS_OF_X} rows of x"
    return refuses_persistent(problem)


@register(
    __name__, __doc__, arithmetic="codes", accumulate="int32, float32 every 128", refuses=refuses,
    narrow=True, ends=True,
)  # fmt: skip
def launch(
    x: ScaledArray, w: ScaledArray, out: Any, tile: SmallMTile | None = None, split: int = 0,
    end: Epilogue = PLAIN,
) -> None:  # fmt: skip
    """``out`` may be float16 or bfloat16, too; ``tile``, ``split``: choices to take in place of the best."""
    if not (out.size and w.shape[1]):
        out.fill(0)
        return
    operands8.prepare_stream(w)
    (m, n), product = out.shape, operands8.CodesProduct.of(x, w)
    shape = codes8.CodesShape.on(device.card_of(device.current()), m, n, product.k)
    tile, split, _ = codes8.small_m(shape, *codes8.named_choices(tile, split, TILES, SPLITS))
    variant = SmallMVariant(tile, *product.kinds, operands8.output_kind(out, end), product.zeros)
    words = operands8.small_m_words(variant, product, tile.columns, out)
    kernel(variant)(
        (-(-n // tile.rows) * split,), (variant.threads,), words.operands,
        (m, n, -(-product.k // STEP), split.bit_length() - 1, *words.sizes), operands8.epilogue_words(end),
        cluster=split,
    )  # fmt: skip
