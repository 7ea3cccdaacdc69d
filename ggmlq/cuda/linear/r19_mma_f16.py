"""Many rows with sums of halves: twice the rate on cards whose tensor cores sum floats slowly.

Changed from mma_bf16: ``mma`` adds the products of one run, 32 columns or 16, as halves. Each such sum
becomes float32 where it is scaled (intrinsics/half_runs.py), so no more than two roundings of a half are in
it. Tensor cores of a GeForce card sum in float32 at half their speed; this is the whole. So that no sum
overflows, each row of activations is multiplied with a power of two first (activations/half_rows.py), and
its results with the inverse.

The arithmetic is ``f16r``, with an error of about 1e-7 of the result, in squares (docs/cards.md).

Limited, on an H200, by the conversions: two beside each ``mma``, which is no faster there.
"""

from __future__ import annotations

import math
from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.epilogue import PLAIN, Epilogue
from ...dispatch.ladder import register
from ..activations.half_rows import half_rows_of
from ..cost.mma import HALF_SUMS, MmaSplit, best_split, tiles_of
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, uint32, uint64
from ..intrinsics.mma_runs import STEPS
from ..machine import device
from ..machine.launch import Kernel, family
from ..packed.layout import FRAGMENT_ROWS, ROWS, TILE_ROWS, PackedLayout, layouts
from ..packed.pack import packed_weights
from ..rings.mma_copies import fetchers, sources
from ..rings.mma_tile import WARP_FRAGMENTS, MmaTile
from ..rings.ring import offset_advancer, prologue, refiller
from ..warp_specialized.problems import LEAST, refuses_shape
from ._half_step import centred, multiplier, products_of
from ._mma_frame import launch_tiles, storer

MOST = 65504  # the largest half


@family(lambda: ((layout, tile) for layout in layouts() for tile in tiles_of(layout, HALF_SUMS)))
def kernel(layout: PackedLayout, tile: MmaTile) -> Kernel:
    """The kernel: block (row of tiles, tile of activations, part of the columns), as _mma_frame.py has it."""
    length, stages, fragment_bytes = tile.stage(layout), tile.stages(layout), layout.fragment_bytes
    ahead, end, columns, rows = stages - 1, (stages - 1) * length, tile.columns, WARP_FRAGMENTS * ROWS
    fetch, of_weights, of_activations = fetchers(layout, tile), *sources(layout, tile)
    start, after = prologue(fetch, ahead, length), offset_advancer(stages, length)
    refill, products = refiller(fetch, ptx.wait_for_all_but(stages - 2)), products_of(layout, tile)
    multiply, zeros, scaled = multiplier(layout, tile), products.zeros, products.scaled
    store, base = storer(columns, products.fragment), ptx.shared_base
    let_successor_start = dependent_launch.let_successor_start

    def product(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        x: Any, factors: Any,  # float16 [m, k], and float32 of each row
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [splits, m, n]: epilogue/results.py
        m: Any, n: Any, k: Any, steps: Any,
        residual: Any, residual_kind: Any,  # of y's shape, or 0: epilogue/residual.py
    ) -> None:  # fmt: skip
        (warp, lane), part, splits = warp_and_lane(), uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
        m0 = uint32(cuda.blockIdx.y) * uint32(columns)
        apart = uint64(steps) * uint64(fragment_bytes)
        first = uint32(uint32(part * steps) // splits)
        last = uint32(uint32((part + uint32(1)) * steps) // splits)
        w_at = of_weights(fragments, uint32(cuda.blockIdx.x) * uint32(FRAGMENT_ROWS), steps, warp, lane)
        x = of_activations(x, m0, m, k, lane)
        opaque, totals = (base() + lane * uint32(16)) >> uint32(16) & uint32(0x8000), zeros()
        start(base(), w_at, apart, x, m0, first, last, m, k)
        here, step, behind = uint32(0), uint32(first), uint32(base() + uint32(end + length))
        while step < last:
            to = uint32(end) if here == uint32(0) else uint32(here - uint32(length))
            refill(uint32(base() + to), w_at, apart, x, m0, uint32(step + uint32(ahead)), last, m, k)
            totals = multiply(uint32(base() + here), behind, warp, lane, totals, opaque)
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
        f"mma_f16 of {layout.name}, {tile}", product, *parameters,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout), least=LEAST, early=True,
        limits_blocks=True,
    )  # fmt: skip


def top_of(layout: PackedLayout) -> int:
    """The power of two below which activations are, so that no sum of a run reaches the largest half."""
    if layout.levels:
        code = max(map(abs, layout.levels))
    elif layout.low == 8:
        code = 128
    else:
        lowest = centred(layout).lowest
        code = max(-lowest, (1 << layout.bits) - 1 + lowest)
    return math.floor(math.log2(MOST / (ROWS * STEPS // layout.runs * code)))


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
    w, (m, n), k = packed_weights(q), out.shape, q.shape[1]
    card, steps = device.card_of(device.current()), w.fragments.shape[1]
    tile, splits = split or best_split(card, w.layout, HALF_SUMS, m, n, steps)
    rows, factors = half_rows_of(x, tile.columns, top_of(w.layout))
    run = kernel(w.layout, tile)

    def make(grid: Any, block: Any, fragments: Any, rows: Any, *more: Any, max_blocks: int) -> None:
        run(grid, block, fragments, rows, factors, *more, max_blocks=max_blocks)

    launch_tiles(make, tile, splits, w.fragments, rows, k, out, end)
