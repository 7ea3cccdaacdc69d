"""Many rows of mxfp4 by ``mma`` that multiplies the scales, too: 8-bit floats on both sides, on 12.x.

Changed from mma_q8: activations become floats e4m3 with a power of two for each 32
(activations/scaled_tiles.py), and the tensor cores of 12.0 and 12.1 take both powers with the operands. So a
sum is never scaled, and the first multiply-add beside ``mma`` is that of the epilogue. A weight becomes e4m3
by moving its bits: two instructions for a part of four weights, of which there are four. ``mma`` takes floats
of 4 bits in bytes as well, but one public measurement of such a card has them at half the rate.

It is the arithmetic ``mxf8``: activations keep 4 bits, which costs 1e-4 to 1e-3 of the result, in squares;
that is 20 times what bytes cost. So it is taken by its name or by ``arithmetic="mxf8"`` alone.

Limited, by the count of clocks, by the tensor cores. No card that has these instructions has run it.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.epilogue import PLAIN, Epilogue
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ...formats import BlockFormat
from ..activations.scaled_tiles import scaled_tiles_of
from ..cost.mma import SCALED_FLOATS, MmaSplit, best_split, tiles_of
from ..intrinsics.scaled_runs import E4M3
from ..machine import device
from ..machine.launch import Kernel, family
from ..packed.float_codes import serves
from ..packed.layout import PackedLayout, layout_of, layouts
from ..packed.pack import packed_weights
from ..rings.mma_copies import code_fetcher, fetchers
from ..rings.mma_tile import EIGHT, CodeTile
from ..warp_specialized.problems import refuses_shape
from ._mma_frame import MmaParts, launch_tiles, tile_kernel
from ._scaled_step import multiplier, no_constants, products_of
from .r18_mma_q8 import as_it_is

LEAST, POWERS = (12, 0), "power"  # the first capability with these instructions; scales of mxfp4


@family(
    lambda: (
        (layout, tile)
        for layout in layouts()
        if serves(layout) and layout.scale == POWERS
        for tile in tiles_of(layout, SCALED_FLOATS)
    )
)
def kernel(layout: PackedLayout, tile: CodeTile) -> Kernel:
    """The kernel for tiles of floats; its ``k`` is the number of their rows."""
    products, fetch = products_of(tile, E4M3), (fetchers(layout, tile)[0], code_fetcher(layout, tile))
    multiply = multiplier(layout, tile, E4M3)
    parts = MmaParts(as_it_is, fetch, products.zeros, no_constants, multiply, products.fragment)
    return tile_kernel(f"mma_mxf8 of {layout.name}, {tile}", layout, tile, parts, LEAST, exact=True)


def refuses_elsewhere(problem: Linear) -> str | None:
    """The reason why ``mma`` with scales does not serve a problem on its card, or None."""
    if problem.card is not None and problem.card.capability[0] != LEAST[0]:
        return "needs compute capability 12.x: other GPUs do not have these instructions"
    return None


def refuses(problem: Linear) -> str | None:
    if isinstance(problem.format, BlockFormat):
        layout = layout_of(problem.format)
        if not serves(layout) or layout.scale != POWERS:
            return "takes floats of four bits with powers of two, which are mxfp4"
    return refuses_elsewhere(problem) or refuses_shape(problem)


@register(
    __name__, __doc__, arithmetic="mxf8", accumulate="f32", refuses=refuses, narrow=True, repeats=True,
    ends=True, adds=True,
)  # fmt: skip
def launch(
    x: Any, q: QuantArray, out: Any, split: MmaSplit | None = None, end: Epilogue = PLAIN
) -> None:  # fmt: skip
    """Multiply x by the weights into ``out``; ``split``: another tile and split than the best by estimate."""
    if not (x.size and out.size):
        out.fill(0)
        return
    w, (m, n) = packed_weights(q), out.shape
    steps, card = w.fragments.shape[1], device.card_of(device.current())
    tile, splits = split or best_split(card, w.layout, SCALED_FLOATS, m, n, steps)
    assert isinstance(tile, CodeTile)
    tiles = scaled_tiles_of(x, steps, tile.columns)
    height = EIGHT * tiles.shape[1]
    launch_tiles(kernel(w.layout, tile), tile, splits, w.fragments, tiles, height, out, end)
