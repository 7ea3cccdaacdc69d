"""Many rows as bytes: the codes of the file times codes of activations, by ``mma`` of 32 columns at a time.

Changed from mma_bf16: activations become codes of 8 bits with a scale for each 32, as llama.cpp makes them
(layouts/code_tiles.py). So ``mma`` does twice as much, on GeForce cards four times: their tensor cores
sum floats at half their speed. Stages are shorter, and a code needs less work: four or eight of four bits
become bytes with one instruction. Integer sums are exact. They begin as the bits of a large float, as in
mma_magic, and are scaled twice: by the weights' scale and by that of the activations.

It is the arithmetic ``q8``: results differ from those on activations of 16 bits by the rounding of
activations, so it is taken by its name or by ``arithmetic="q8"`` alone.

Limited by scaling, on an H200: eight multiply-adds, twelve where weights have offsets, beside each ``mma``.
Types with a scale for 16 columns need twice as many. On GeForce cards, by the tensor cores.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ....arrays.array import QuantArray
from ....dispatch.epilogue import PLAIN, Epilogue
from ....dispatch.ladder import register
from ....dispatch.problems import Linear
from ....formats import BlockFormat
from ...driver.launch import Kernel, family
from ...intrinsics.atoms import inlined
from ...intrinsics.integers import held
from ...intrinsics.lane import g_and_t
from ...intrinsics.language import cuda, float32, int32, uint32
from ...intrinsics.mma_runs import MAGIC_BITS, ByteForm, ByteProducts, byte_products
from ...kernels.cost.mma import BYTES, MmaSplit, tiles_of
from ...kernels.hopper.tiles import refuses_shape
from ...kernels.mma.copies import WARP_FRAGMENTS, CodeTile, code_fetcher, fetchers
from ...kernels.mma.frame import MmaParts, launch_tiles, plan_for, tile_kernel
from ...layouts.code_tiles import CODES, EIGHT, SCALES, code_tiles_of, eight_bytes, sum_run
from ...layouts.codes import buffer_sizes, byte_unit, serves_bytes, signed_unpacker, word_loader
from ...layouts.layout import FRAGMENT_ROWS, STEP, PackedLayout, layout_of, layouts
from ...layouts.pack import packed_weights
from ...layouts.scales import scale_loader

# A step of cuda:mma_q8: fragment rows of a warp times a stage of code tiles, added to a lane's totals.

LANE, PAIR = 16, 8  # bytes of a lane's codes of a row, and of a run's sums of two rows


def products_of(layout: PackedLayout, tile: CodeTile) -> ByteProducts:
    """The device functions for the products of a warp."""
    eights, apart = tile.columns // EIGHT, eight_bytes(sum_run(layout))
    return byte_products(ByteForm(WARP_FRAGMENTS, eights, layout.runs, layout.has_offset, apart))


@cache
def all_codes(layout: PackedLayout) -> Any:
    """The device function for the codes of a fragment row of a warp, as a tuple."""
    unpack = signed_unpacker(layout)

    @inlined
    def step_codes(words: Any, step: Any, opaque: Any) -> Any:
        a = cuda.local.array(2, int32)
        unpack(words, step, a, 0, opaque)
        return uint32(a[0]), uint32(a[1])

    @inlined
    def codes(words: Any, opaque: Any) -> Any:
        first = step_codes(words, 0, opaque) + step_codes(words, 1, opaque)
        return first + step_codes(words, 2, opaque) + step_codes(words, 3, opaque)

    return codes


@cache
def of_runs(layout: PackedLayout) -> Any:
    """The device function (f, first, times) for products of the scales, or offsets, of all runs."""
    scales, four = layout.scales, layout.runs == 4

    @inlined
    def of_run(f: Any, at: Any, times: Any) -> Any:
        return float32(f[at] * times), float32(f[scales + at] * times)

    @inlined
    def numbers(f: Any, first: Any, times: Any) -> Any:
        low = of_run(f, first, times) + of_run(f, first + 1, times)
        if four:
            return low + of_run(f, first + 2, times) + of_run(f, first + 3, times)
        return low

    return numbers


@inlined
def constants(lane: Any, opaque: Any) -> Any:
    """The four first values of integer sums; the opaque zero. The assembler must not know them."""
    first, keep = uint32(MAGIC_BITS + opaque), held
    second, third = uint32(first + (opaque >> 1)), uint32(first + (opaque >> 2))
    fourth = uint32(first + (opaque >> 3))
    return (keep(first, lane), keep(second, lane), keep(third, lane), keep(fourth, lane)), opaque


@cache
def multiplier(layout: PackedLayout, tile: CodeTile) -> Any:
    """The device function that adds one step to a lane's totals."""
    fragment_bytes, weights_at = layout.fragment_bytes, FRAGMENT_ROWS * layout.fragment_bytes
    (words_count, scales_count), runs, has_offset = buffer_sizes(layout), layout.runs, layout.has_offset
    load_words, load_scales, add = (
        word_loader(layout),
        scale_loader(layout),
        products_of(layout, tile).multiply,
    )
    share, pair_bytes = np.float32(1 / byte_unit(layout)), PAIR * runs
    codes_of, numbers_of = all_codes(layout), of_runs(layout)

    @inlined
    def offsets_of(f0: Any, f1: Any) -> Any:
        if has_offset:
            return numbers_of(f0, runs, float32(-1)) + numbers_of(f1, runs, float32(-1))
        return (float32(0),)

    @inlined
    def multiply(at: Any, behind: Any, warp: Any, lane: Any, totals: Any, constants: Any) -> Any:
        start, opaque = constants
        g, t = g_and_t(lane)
        w_at = uint32(at + warp * (WARP_FRAGMENTS * fragment_bytes))
        x_at = uint32(at + weights_at)
        codes_at = uint32(x_at + (g * STEP + t * LANE))
        scales_at = uint32(x_at + (CODES + t * LANE))
        sums_at = uint32(x_at + (CODES + SCALES + t * pair_bytes))
        w0, w1 = cuda.local.array(words_count, uint32), cuda.local.array(words_count, uint32)
        f0, f1 = cuda.local.array(scales_count, float32), cuda.local.array(scales_count, float32)
        load_words(w_at, lane, w0)
        load_words(uint32(w_at + fragment_bytes), lane, w1)
        load_scales(w_at, lane, f0)
        load_scales(uint32(w_at + fragment_bytes), lane, f1)
        codes, factors = codes_of(w0, opaque) + codes_of(w1, opaque), numbers_of(f0, 0, share)
        factors = factors + numbers_of(f1, 0, share)
        return add(totals, codes, factors, offsets_of(f0, f1), start, codes_at, scales_at, sums_at)

    return multiply


@inlined
def as_it_is(x: Any, m0: Any, m: Any, k: Any, lane: Any) -> Any:
    return x


@family(
    lambda: (
        (layout, tile) for layout in layouts() if serves_bytes(layout) for tile in tiles_of(layout, BYTES)
    )
)
def kernel(layout: PackedLayout, tile: CodeTile) -> Kernel:
    """The kernel for code tiles; its ``k`` is the number of their rows."""
    products, fetch = products_of(layout, tile), (fetchers(layout, tile)[0], code_fetcher(layout, tile))
    parts = MmaParts(as_it_is, fetch, products.zeros, constants, multiplier(layout, tile), products.fragment)
    return tile_kernel(f"mma_q8 of {layout.name}, {tile}", layout, tile, parts)


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
    plan = plan_for(out, w.fragments, w.layout, BYTES, split)
    tile = plan.tile
    assert isinstance(tile, CodeTile)
    tiles = code_tiles_of(x, w.fragments.shape[1], tile.columns, sum_run(w.layout))
    height = EIGHT * tiles.shape[1]
    launch_tiles(kernel(w.layout, tile), plan, w.fragments, tiles, height, out, end)
