"""Many rows: tiles of activations that all warps of a block share, and a ring that four warps fill.

Changed from gemv: its warps read all activations again for each two fragment rows. Here four warps make
128 rows of outputs from one tile of up to 128 rows of activations, which all warps read in the same
stages of shared memory (rings/ring.py), with one barrier a step. Activations of 16 bits are read as they lie,
and multiplied as what they are: codes are exact in float16 and in bfloat16. Where there are few tiles the
columns are split among blocks too, and a second, small kernel adds the partial sums in a fixed order
(epilogue/split_sums.py).

A sum of one run is scaled once for 16 or 32 columns: one multiply-add an output (intrinsics/mma_runs.py).
The rest is exact: integer codes, sums in float32. Where weights have offsets, each warp sums a part of the
tile's activations for all. Codes of most K types are exact in float16 even times their sub-scales: then 64
columns have one scale (packed/code_halves.py).

Limited by ``mma.sync``, which reaches under two thirds of what Hopper's wgmma does, and by the multiply-adds
of scales: two beside each mma.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.epilogue import PLAIN, Epilogue
from ...dispatch.ladder import register
from ..activations.floats import narrowed
from ..activations.x_tiles import readable_rows
from ..cost.mma import MmaSplit, best_split, tiles_of
from ..epilogue.results import bias_loader, result_of
from ..epilogue.split_sums import FOUR, add_partials
from ..epilogue.thread_sums import thread_sums
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, uint32, uint64
from ..machine import device
from ..machine.launch import Kernel, family
from ..machine.recorded import between
from ..packed.layout import FRAGMENT_ROWS, ROWS, TILE_ROWS, PackedLayout, layouts
from ..packed.pack import packed_weights
from ..rings.mma_copies import fetchers, sources
from ..rings.mma_tile import WARP_FRAGMENTS, MmaTile
from ..rings.ring import offset_advancer, prologue, refiller
from ..warp_specialized.problems import LEAST, refuses_shape
from ._mma_step import multiplier, products_of

NARROW = "float16", "bfloat16"  # kinds of activations that are multiplied


@cache
def storer(layout: PackedLayout, tile: MmaTile, kind: str) -> Any:
    """The device function that writes a lane's results, or its partial sums."""
    ends, load_bias = thread_sums(tile.warp_columns), bias_loader()
    write, write16 = ends.write, ends.write16
    first_fragment, second_fragment = products_of(layout, tile, kind).fragment

    @inlined
    def store_fragment(sums: Any, result: Any, column: Any, row: Any, m: Any, n: Any) -> None:
        y, y_kind, _, _ = result
        low, high = load_bias(result, row, n), load_bias(result, uint32(row + uint32(ROWS // 2)), n)
        if y_kind == uint32(0):
            write(sums, y, column, row, m, n, low, high)
        else:
            write16(sums, y, column, row, m, n, low, high, uint32(y_kind - uint32(1)))

    @inlined
    def store(totals: Any, result: Any, column: Any, row: Any, m: Any, n: Any) -> None:
        store_fragment(first_fragment(totals), result, column, row, m, n)
        store_fragment(second_fragment(totals), result, column, uint32(row + uint32(ROWS)), m, n)

    return store


@family(
    lambda: (
        (layout, tile, kind) for layout in layouts() for kind in NARROW for tile in tiles_of(layout, kind)
    )
)
def kernel(layout: PackedLayout, tile: MmaTile, kind: str) -> Kernel:
    """The kernel: block (row of tiles, tile of activations, part of the columns)."""
    length, stages, fragment_bytes = tile.stage(layout), tile.stages(layout), layout.fragment_bytes
    ahead, end, fetch = stages - 1, (stages - 1) * length, fetchers(layout, tile)
    of_weights, of_activations = sources(layout, tile)
    start, after = prologue(fetch, ahead, length), offset_advancer(stages, length)
    refill = refiller(fetch, ptx.wait_for_all_but(stages - 2))
    multiply, store = multiplier(layout, tile, kind), storer(layout, tile, kind)
    zeros, base = products_of(layout, tile, kind).zeros, ptx.shared_base
    let_successor_start, warps_down = dependent_launch.let_successor_start, FRAGMENT_ROWS // WARP_FRAGMENTS
    rows, columns, warp_columns = WARP_FRAGMENTS * ROWS, tile.columns, tile.warp_columns

    def product(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        x: Any,  # of the kind [m, k]
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [splits, m, n]: epilogue/results.py
        m: Any, n: Any, k: Any, steps: Any,
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
        here, step, sums_at = uint32(0), uint32(first), uint32(base() + uint32(end + length))
        while step < last:
            to = uint32(end) if here == uint32(0) else uint32(here - uint32(length))
            refill(uint32(base() + to), w_at, apart, x, m0, uint32(step + uint32(ahead)), last, m, k)
            totals = multiply(uint32(base() + here), sums_at, warp, lane, totals, opaque)
            here, step = after(here), uint32(step + uint32(1))
        let_successor_start()  # not before: its blocks would come between those of this one
        g, t = g_and_t(lane)
        row = uint32(cuda.blockIdx.x) * uint32(FRAGMENT_ROWS * ROWS) + warp % uint32(warps_down) * uint32(
            rows
        )
        column = m0 + warp // uint32(warps_down) * uint32(warp_columns) + t * uint32(2)
        result = y + uint64(part) * uint64(m) * uint64(n) * uint64(4), y_kind, bias, bias_kind
        store(totals, result, uint32(column), uint32(row + g), m, n)

    parameters = (uint64,) * 3 + (uint32, uint64) + (uint32,) * 5
    return Kernel(
        f"mma_bf16 of {layout.name}, {tile}, {kind}", product, *parameters,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout), least=LEAST, early=True,
    )  # fmt: skip


@register(
    __name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=refuses_shape, narrow=True,
    repeats=True, ends=True, halves=True,
)  # fmt: skip
def launch(
    x: Any, q: QuantArray, out: Any, split: MmaSplit | None = None, end: Epilogue = PLAIN
) -> None:  # fmt: skip
    """Multiply x by the weights into ``out``; ``split``: another tile and split than the best by estimate."""
    if not (x.size and out.size):
        out.fill(0)
        return
    w, (m, n), k = packed_weights(q), out.shape, q.shape[1]
    rows, kind = readable_rows(x)
    if kind not in NARROW:  # halves that do not lie as the kernel reads them stay halves
        kind = "float16" if x.dtype.char == "e" else "bfloat16"
        rows = narrowed(rows, kind)
    steps = w.fragments.shape[1]
    tile, splits = split or best_split(device.card_of(device.current()), w.layout, kind, m, n, steps)
    grid, make = (-(-n // TILE_ROWS), -(-m // tile.columns), splits), kernel(w.layout, tile, kind)
    result = result_of(out, end.bias)
    if splits == 1:
        make(grid, (tile.threads,), w.fragments, rows, *result, m, n, k, steps)
        return
    wide = -(-n // FOUR) * FOUR
    partials = between((splits, m, wide), np.float32)
    make(grid, (tile.threads,), w.fragments, rows, *result_of(partials, None), m, wide, k, steps)
    add_partials(partials, result, m, n)
