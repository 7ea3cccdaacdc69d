"""Many rows with sums of halves: twice the rate on cards whose tensor cores sum floats slowly.

Changed from mma_bf16: ``mma`` adds the products of one run, 32 columns or 16, as halves. Each such sum
becomes float32 where it is scaled (intrinsics/tensor_cores.py), so no more than two roundings of a half are
in it. Tensor cores of a GeForce card sum in float32 at half their speed; this is the whole. So that no sum
overflows, each row of activations is multiplied with a power of two first (layouts/x_tiles.py), and
its results with the inverse.

The arithmetic is ``f16r``, with an error of about 1e-7 of the result, in squares (docs/device.md).

Limited, on an H200, by the conversions: two beside each ``mma``, which is no faster there.
"""

from __future__ import annotations

import math
from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.epilogue import PLAIN, Epilogue
from ....dispatch.ladder import register
from ...driver.launch import Kernel, family
from ...kernels.cost.mma import MmaSplit, plan_for
from ...kernels.hopper.tiles import refuses_shape
from ...kernels.mma.kernel import HALF_SUMS, MmaTile, centred, launch_tiles, tile_kernel, tiles_of
from ...layouts.layout import PackedLayout, layouts
from ...layouts.pack import packed_weights
from ...layouts.x_tiles import half_rows_of

MAX_HALF = 65504  # the largest half


@family(lambda: ((layout, tile) for layout in layouts() for tile in tiles_of(layout, HALF_SUMS)))
def kernel(layout: PackedLayout, tile: MmaTile) -> Kernel:
    """The kernel for halves whose rows have a factor each."""
    return tile_kernel(f"mma_f16 of {layout.name}, {tile}", layout, tile, HALF_SUMS)


def top_of(layout: PackedLayout) -> int:
    """The power of two below which activations are, so that no sum of a run reaches the largest half."""
    if layout.levels:
        code = max(map(abs, layout.levels))
    elif layout.low == 8:
        code = 128
    else:
        lowest = centred(layout).lowest
        code = max(-lowest, (1 << layout.bits) - 1 + lowest)
    return math.floor(math.log2(MAX_HALF / (layout.run * code)))


@register(
    __name__, __doc__, arithmetic="f16r", accumulate="f16", refuses=refuses_shape, narrow=True,
    repeats=True, ends=True, adds=True,
)  # fmt: skip
def launch(
    x: Any, q: QuantArray, out: Any, split: MmaSplit | None = None, end: Epilogue = PLAIN
) -> None:  # fmt: skip
    """Multiply x by the weights into ``out``; ``split``: another tile and split than the best by estimate."""
    if not (x.size and out.size):
        out.fill(0)
        return
    w = packed_weights(q)
    plan = plan_for(out, w, HALF_SUMS, split)
    rows = half_rows_of(x, plan.tile.columns, top_of(w.layout))
    launch_tiles(kernel(w.layout, plan.tile), plan, w.fragments, rows, q.shape[1], out, end)
