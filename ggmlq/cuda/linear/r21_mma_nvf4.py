"""Many rows of nvfp4 by ``mma`` on floats of 4 bits with their scales, activations as two such digits.

Changed from mma_mxf8: a weight of nvfp4 has a float of 8 bits for 16 columns as its scale, which the tensor
cores of 12.0 and 12.1 take beside floats of 4 bits alone, 64 columns at a time, at twice the rate of bytes.
One such float for an activation costs 1e-3 to 1e-2 of the result, in squares. So an activation is the sum of
two, each with a scale for 16 (activations/digit_tiles.py), and two instructions multiply both by the same
weights: at the rate of bytes, with about their error. A lane needs weights of one run of 16, which two lanes
of mma_mxf8 have: it loads both lanes' words and takes a half of each.

It is the arithmetic ``nvf4x2``, with an error of 1e-5 to 1e-4; it is taken by its name or by
``arithmetic="nvf4x2"`` alone.

Limited, by the count of clocks, by the tensor cores. No card that has these instructions has run it.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.epilogue import PLAIN, Epilogue
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ...formats import BlockFormat
from ..activations.digit_tiles import digit_tiles_of
from ..cost.mma import SCALED_DIGITS, MmaSplit, best_split, tiles_of
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.half_runs import half_products
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, uint32, uint64
from ..intrinsics.mma_runs import RunForm
from ..intrinsics.scaled_runs import DIGITS
from ..machine import device
from ..machine.launch import Kernel, family
from ..packed.float_codes import serves
from ..packed.layout import FRAGMENT_ROWS, ROWS, TILE_ROWS, PackedLayout, layout_of, layouts
from ..packed.pack import packed_weights
from ..rings.mma_copies import code_fetcher, fetchers, sources
from ..rings.mma_tile import EIGHT, WARP_FRAGMENTS, CodeTile
from ..rings.ring import offset_advancer, prologue, refiller
from ..warp_specialized.problems import refuses_shape
from ._mma_frame import launch_tiles, storer
from ._scaled_step import multiplier, products_of
from .r20_mma_mxf8 import LEAST, refuses_elsewhere

FLOATS = "small_float"  # scales of nvfp4


@family(
    lambda: (
        (layout, tile)
        for layout in layouts()
        if serves(layout) and layout.scale == FLOATS
        for tile in tiles_of(layout, SCALED_DIGITS)
    )
)
def kernel(layout: PackedLayout, tile: CodeTile) -> Kernel:
    """The kernel: block (row of tiles, tile of activations, part of the columns), as _mma_frame.py has it."""
    length, stages, fragment_bytes = tile.stage(layout), tile.stages(layout), layout.fragment_bytes
    ahead, end, columns, rows = stages - 1, (stages - 1) * length, tile.columns, WARP_FRAGMENTS * ROWS
    fetch, of_weights = (fetchers(layout, tile)[0], code_fetcher(layout, tile)), sources(layout, tile).weights
    start, after = prologue(fetch, ahead, length), offset_advancer(stages, length)
    refill, products = refiller(fetch, ptx.wait_for_all_but(stages - 2)), products_of(tile, DIGITS)
    multiply, zeros, base = multiplier(layout, tile, DIGITS), products.zeros, ptx.shared_base
    form = RunForm("float16", WARP_FRAGMENTS, columns // EIGHT, 2, 0, tile.warps, columns)
    scaled, store = half_products(form).scaled, storer(columns, products.fragment)
    let_successor_start = dependent_launch.let_successor_start

    def product(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        x: Any, factors: Any,  # tiles of digits, and float32 of each row
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [splits, m, n]: epilogue/results.py
        m: Any, n: Any, height: Any, steps: Any,
        residual: Any, residual_kind: Any,  # of y's shape, or 0: epilogue/residual.py
    ) -> None:  # fmt: skip
        (warp, lane), part, splits = warp_and_lane(), uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
        m0 = uint32(cuda.blockIdx.y) * uint32(columns)
        apart = uint64(steps) * uint64(fragment_bytes)
        first = uint32(uint32(part * steps) // splits)
        last = uint32(uint32((part + uint32(1)) * steps) // splits)
        w_at = of_weights(fragments, uint32(cuda.blockIdx.x) * uint32(FRAGMENT_ROWS), steps, warp, lane)
        totals = zeros()
        start(base(), w_at, apart, x, m0, first, last, m, height)
        here, step, behind = uint32(0), uint32(first), uint32(base() + uint32(end + length))
        while step < last:
            to = uint32(end) if here == uint32(0) else uint32(here - uint32(length))
            refill(uint32(base() + to), w_at, apart, x, m0, uint32(step + uint32(ahead)), last, m, height)
            totals = multiply(uint32(base() + here), behind, warp, lane, totals, uint32(0))
            here, step = after(here), uint32(step + uint32(1))
        let_successor_start()  # not before: its blocks would come between those of this one
        g, t = g_and_t(lane)
        row = uint32(cuda.blockIdx.x) * uint32(TILE_ROWS) + warp * uint32(rows)
        column = uint32(m0 + t * uint32(2))
        totals = scaled(totals, factors + uint64(column) * uint64(4))
        result = y + uint64(part) * uint64(m) * uint64(n) * uint64(4), y_kind, bias, bias_kind
        store(totals, result, (residual, residual_kind), column, uint32(row + g), m, n)

    parameters = (uint64,) * 4 + (uint32, uint64) + (uint32,) * 5 + (uint64, uint32)
    return Kernel(
        f"mma_nvf4 of {layout.name}, {tile}", product, *parameters,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout), least=LEAST, exact=True,
        early=True, limits_blocks=True,
    )  # fmt: skip


def refuses(problem: Linear) -> str | None:
    if isinstance(problem.format, BlockFormat):
        layout = layout_of(problem.format)
        if not serves(layout) or layout.scale != FLOATS:
            return "takes floats of four bits with small floats as scales, which are nvfp4"
    return refuses_elsewhere(problem) or refuses_shape(problem)


@register(
    __name__, __doc__, arithmetic="nvf4x2", accumulate="f32", refuses=refuses, narrow=True, repeats=True,
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
    tile, splits = split or best_split(card, w.layout, SCALED_DIGITS, m, n, steps)
    assert isinstance(tile, CodeTile)
    tiles, factors = digit_tiles_of(x, steps, tile.columns)
    run = kernel(w.layout, tile)

    def make(grid: Any, block: Any, fragments: Any, tiles: Any, *more: Any, max_blocks: int) -> None:
        run(grid, block, fragments, tiles, factors, *more, max_blocks=max_blocks)

    launch_tiles(make, tile, splits, w.fragments, tiles, EIGHT * tiles.shape[1], out, end)
