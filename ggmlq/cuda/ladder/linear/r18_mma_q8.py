"""Many rows as bytes: the codes of the file times codes of activations, by ``mma`` of 32 columns at a time.

Changed from mma_bf16: activations become codes of 8 bits with a scale for each 32, as llama.cpp makes them
(layouts/code_tiles.py). So ``mma`` does twice as much, on GeForce cards four times: their tensor cores
sum floats at half their speed. Stages are shorter, and a code needs less work: four or eight of four bits
become bytes with one instruction. Integer sums are exact, and floats already, so nothing is converted: they
begin at 0x4B400000, the bits of 1.5 * 2**23, whose units are 1. A run's sum is added to these bits, is far
from a carry into the exponent, and, if negative, borrows from the 1 on top of the fraction. So the bits are
the float MAGIC + sum, and ``f * d - MAGIC * d`` takes MAGIC off while it scales; MAGIC * d is exact for a
scale made of a half. A second multiply-add scales by the activations' scale.

It is the arithmetic ``q8``: results differ from those on activations of 16 bits by the rounding of
activations, so it is taken by its name or by ``arithmetic="q8"`` alone.

Limited by scaling, on an H200: eight multiply-adds, twelve where weights have offsets, beside each ``mma``.
Types with a scale for 16 columns need twice as many. On GeForce cards, by the tensor cores.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.epilogue import PLAIN, Epilogue
from ....dispatch.ladder import register
from ....dispatch.problems import Linear
from ....formats import BlockFormat
from ...driver.launch import Kernel, family
from ...kernels.cost.mma import MmaSplit, plan_for
from ...kernels.hopper.tiles import refuses_shape
from ...kernels.mma.kernel import BYTES, CodeTile, launch_tiles, tile_kernel, tiles_of
from ...layouts.code_tiles import EIGHT, code_tiles_of, sum_run
from ...layouts.codes import serves_bytes
from ...layouts.layout import PackedLayout, layout_of, layouts
from ...layouts.pack import packed_weights


@family(
    lambda: (
        (layout, tile) for layout in layouts() if serves_bytes(layout) for tile in tiles_of(layout, BYTES)
    )
)
def kernel(layout: PackedLayout, tile: CodeTile) -> Kernel:
    """The kernel for code tiles; its ``k`` is the number of their rows."""
    return tile_kernel(f"mma_q8 of {layout.name}, {tile}", layout, tile, BYTES)


def refuses(problem: Linear) -> str | None:
    if isinstance(problem.format, BlockFormat):
        layout = layout_of(problem.format)
        if not serves_bytes(layout):
            return "takes codes that are integers, not floats of four bits"
        if layout.scale == "single":
            return "takes scales made of halves, not of float32"
    return refuses_shape(problem)


@register(
    __name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses, narrow=True, repeats=True,
    ends=True, adds=True,
)  # fmt: skip
def launch(
    x: Any, q: QuantArray, out: Any, split: MmaSplit | None = None, end: Epilogue = PLAIN
) -> None:  # fmt: skip
    """Multiply x by the weights into ``out``; ``split``: another tile and split than the best by estimate."""
    if not (x.size and out.size):
        out.fill(0)
        return
    w = packed_weights(q)
    plan = plan_for(out, w, BYTES, split)
    tile = plan.tile
    assert isinstance(tile, CodeTile)
    tiles = code_tiles_of(x, w.fragments.shape[1], tile.columns, sum_run(w.layout))
    height = EIGHT * tiles.shape[1]
    launch_tiles(kernel(w.layout, tile), plan, w.fragments, (tiles,), height, out, end)
