"""Many rows: tiles of activations that all warps of a block share, and a ring that four warps fill.

Changed from gemv: its warps read all activations again for each two fragment rows. Here four warps make 128
rows of outputs from one tile of up to 128 rows of activations, which all warps read in the same stages of
shared memory (kernels/mma/kernel.py), with one barrier a step. Activations of 16 bits are read as they lie,
and multiplied as what they are: codes are exact in float16 and in bfloat16. Where there are few tiles the
columns are split among blocks too, and a second, small kernel adds the partial sums in a fixed order
(kernels/epilogue/results.py).

A run is 16 or 32 columns that share a scale; its sum is scaled once: one multiply-add an output
(intrinsics/tensor_cores.py). The rest is exact: integer codes, sums in float32. Where weights have offsets,
each warp sums a part of the tile's activations for all. Codes of most K types are exact in float16 even times
their sub-scales: then 64 columns have one scale (layouts/codes.py).

Limited by ``mma.sync``, which reaches under two thirds of what Hopper's wgmma does, and by the multiply-adds
of scales: two beside each mma.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.epilogue import PLAIN, Epilogue
from ....dispatch.ladder import register
from ...driver.launch import Kernel, family
from ...kernels.cost.mma import MmaSplit, plan_for
from ...kernels.hopper.tiles import refuses_shape
from ...kernels.mma.kernel import MmaTile, launch_tiles, tile_kernel, tiles_of
from ...layouts.floats import narrowed
from ...layouts.layout import PackedLayout, layouts
from ...layouts.pack import packed_weights
from ...layouts.x_tiles import readable_rows

NARROW = "float16", "bfloat16"  # kinds of activations that are multiplied


@family(
    lambda: (
        (layout, tile, kind) for layout in layouts() for kind in NARROW for tile in tiles_of(layout, kind)
    )
)
def kernel(layout: PackedLayout, tile: MmaTile, kind: str) -> Kernel:
    """The kernel for activations of a kind, as they lie; its picture and barriers: kernels/mma/kernel.py."""
    return tile_kernel(f"mma_bf16 of {layout.name}, {tile}, {kind}", layout, tile, kind)


@register(
    __name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=refuses_shape, narrow=True,
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
    rows, kind = readable_rows(x)
    if kind not in NARROW:  # halves that do not lie as the kernel reads them stay halves
        kind = "float16" if x.dtype.char == "e" else "bfloat16"
        rows = narrowed(rows, kind)
    plan = plan_for(out, w, kind, split)
    launch_tiles(kernel(w.layout, plan.tile, kind), plan, w.fragments, (rows,), q.shape[1], out, end)
