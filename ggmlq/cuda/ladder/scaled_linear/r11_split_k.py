"""K split among the blocks of a cluster, where there are fewer tiles than multiprocessors.

Changed: with some hundred rows of x, and weights that are long but not many, the persistent rung has tiles
for half of the multiprocessors, and each goes along all of K. Here up to eight blocks share the steps of a
tile, as many as run at the same time. Then each adds up an equal part of the tile's rows, from the sums
that the others send into its shared memory.

Why it helps: all multiprocessors fetch and multiply, larger tiles read less from the L2, and copies of
weights start while the predecessor still runs.

Limited by the start, the first copy and the exchange, three to four microseconds in all; then by the L2, or
by the memory that weights come from.
"""

from __future__ import annotations

from typing import Any

from ....arrays.scaled import ScaledArray
from ....dispatch.epilogue import PLAIN, Epilogue
from ....dispatch.ladder import register
from ....dispatch.problems import ScaledLinear
from ...driver import device
from ...driver.launch import Kernel, family
from ...kernels.codes8 import operands as operands8
from ...kernels.codes8.kernel import code_consumers, split_k
from ...kernels.codes8.rows import refuses_persistent
from ...kernels.codes8.small_m import exchanger, row_split
from ...kernels.codes8.tiles import MAX_SPLITS, SPLIT_TILES, BoxTile, Variant, split_variants
from ...kernels.cost import codes8
from ...kernels.hopper import frame


@family(split_variants())
def kernel(variant: Variant) -> Kernel:
    """The kernel of blocks that make a part of the steps of one tile; those of a tile are a cluster."""
    consumers = code_consumers(variant)
    schedule = split_k(variant, consumers)
    return frame.kernel(f"tma divided {variant}", consumers, schedule, exchanger(variant))


def refuses(problem: ScaledLinear) -> str | None:
    if problem.integer:
        return "multiplies codes of floats"
    return refuses_persistent(problem)


@register(
    __name__, __doc__, arithmetic="codes", accumulate="float32 every 128", refuses=refuses,
    narrow=True, ends=True,
)  # fmt: skip
def launch(
    x: ScaledArray, w: ScaledArray, out: Any, tile: BoxTile | None = None, split: int = 0,
    end: Epilogue = PLAIN,
) -> None:  # fmt: skip
    """``out`` may be float16 or bfloat16, too; ``tile``, ``split``: choices to take in place of the best."""
    (m, n), k = out.shape, w.shape[1]
    if not (out.size and k):
        out.fill(0)
        return
    operands8.prepare_stream(w)
    product, to = operands8.CodesProduct.of(x, w), operands8.output_kind(out, end)
    shape = codes8.CodesShape.on(device.card_of(device.current()), m, n, k)
    choices = codes8.named_choices(tile, split, SPLIT_TILES, range(1, MAX_SPLITS + 1))
    tile, split, _ = codes8.split_k(shape, *choices)
    variant = Variant(tile, *product.kinds, to, False, product.column_scales)
    words = operands8.kernel_words(variant, product, out)
    kernel(variant)(
        (tile.tiles(m, n) * split,), (variant.threads,), words.operands,
        (*words.sizes, split, *row_split(tile, split)), operands8.epilogue_words(end), cluster=split,
    )  # fmt: skip
