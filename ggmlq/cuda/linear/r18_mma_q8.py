"""Many rows as bytes: what llama.cpp multiplies, from the packed bits, by ``mma`` of bytes.

"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.epilogue import PLAIN, Epilogue
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ...formats import BlockFormat
from ..activations.code_tiles import CODES, SCALES, code_tiles_of, eight_bytes
from ..cost.mma import MmaSplit, best_split
from ..epilogue.results import bias_loader, result_of
from ..epilogue.split_sums import FOUR, add_partials
from ..epilogue.thread_sums import thread_sums
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.byte_runs import MAGIC_BITS, ByteForm, ByteProducts, byte_products
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine import device
from ..machine.launch import Kernel, family
from ..machine.recorded import between
from ..packed.byte_codes import byte_unit, serves, signed_unpacker
from ..packed.codes import buffer_sizes, word_loader
from ..packed.layout import FRAGMENT_ROWS, ROWS, TILE_ROWS, PackedLayout, layout_of, layouts
from ..packed.pack import packed_weights
from ..packed.scales import scale_loader
from ..rings.code_copies import CODE_TILES, CodeTile, code_fetcher, sum_run
from ..rings.mma_copies import fetchers, sources
from ..rings.mma_tile import WARP_FRAGMENTS
from ..rings.ring import offset_advancer, prologue, refiller
from ..warp_specialized.problems import LEAST, refuses_shape


def products_of(layout: PackedLayout, tile: CodeTile) -> ByteProducts:
    """The device functions for the products of a warp."""
    apart = eight_bytes(sum_run(layout))
    return byte_products(ByteForm(WARP_FRAGMENTS, tile.warp_columns // 8, layout.runs, layout.has_offset, apart))


@inlined
def magic_start(lane: Any) -> Any:
    """The four first values of integer sums, in registers that stay: the assembler cannot know them."""
    above = (ptx.shared_base() + lane * uint32(16)) >> uint32(16)
    first, second = uint32(above & uint32(0x8000)), uint32(above & uint32(0x4000))
    third, fourth = uint32(above & uint32(0x2000)), uint32(above & uint32(0x1000))
    start = uint32(MAGIC_BITS)
    return uint32(first + start), uint32(second + start), uint32(third + start), uint32(fourth + start)


@cache
def multiplier(layout: PackedLayout, tile: CodeTile) -> Any:
    """The device function that adds one step to a lane's totals."""
    fragment_bytes, weights_at = layout.fragment_bytes, FRAGMENT_ROWS * layout.fragment_bytes
    words_count, scales_count = buffer_sizes(layout)
    load_words, load_scales, unpack = word_loader(layout), scale_loader(layout), signed_unpacker(layout)
    add, runs, scales, unit = products_of(layout, tile).multiply, layout.runs, layout.scales, byte_unit(layout)
    share, four = np.float32(1 / unit), layout.runs == 4
    has_offset, pair_bytes = layout.has_offset, 8 * layout.runs
    down, part_bytes = FRAGMENT_ROWS // WARP_FRAGMENTS, tile.warp_columns // 8 * eight_bytes(sum_run(layout))

    @inlined
    def step_codes(words: Any, step: Any, opaque: Any) -> Any:
        a = cuda.local.array(2, int32)
        unpack(words, step, a, 0, opaque)
        return uint32(a[0]), uint32(a[1])

    @inlined
    def all_codes(words: Any, opaque: Any) -> Any:
        first = step_codes(words, 0, opaque) + step_codes(words, 1, opaque)
        return first + step_codes(words, 2, opaque) + step_codes(words, 3, opaque)

    @inlined
    def of_run(f: Any, at: Any, times: Any) -> Any:
        return float32(f[at] * times), float32(f[scales + at] * times)

    @inlined
    def of_runs(f: Any, first: Any, times: Any) -> Any:
        numbers = of_run(f, first, times) + of_run(f, first + 1, times)
        if four:
            return numbers + of_run(f, first + 2, times) + of_run(f, first + 3, times)
        return numbers

    @inlined
    def offsets_of(f0: Any, f1: Any) -> Any:
        if has_offset:
            return of_runs(f0, runs, float32(-1)) + of_runs(f1, runs, float32(-1))
        return (float32(0),)

    @inlined
    def multiply(at: Any, warp: Any, lane: Any, totals: Any, start: Any, opaque: Any) -> Any:
        g, t = g_and_t(lane)
        w_at = uint32(at + warp % uint32(down) * uint32(WARP_FRAGMENTS * fragment_bytes))
        x_at = uint32(at + uint32(weights_at) + warp // uint32(down) * uint32(part_bytes))
        codes_at = uint32(x_at + (g * uint32(64) + t * uint32(16)))
        scales_at = uint32(x_at + (uint32(CODES) + t * uint32(16)))
        sums_at = uint32(x_at + (uint32(CODES + SCALES) + t * uint32(pair_bytes)))
        w0, w1 = cuda.local.array(words_count, uint32), cuda.local.array(words_count, uint32)
        f0, f1 = cuda.local.array(scales_count, float32), cuda.local.array(scales_count, float32)
        load_words(w_at, lane, w0)
        load_words(uint32(w_at + uint32(fragment_bytes)), lane, w1)
        load_scales(w_at, lane, f0)
        load_scales(uint32(w_at + uint32(fragment_bytes)), lane, f1)
        codes = all_codes(w0, opaque) + all_codes(w1, opaque)
        factors = of_runs(f0, 0, share) + of_runs(f1, 0, share)
        return add(totals, codes, factors, offsets_of(f0, f1), start, codes_at, scales_at, sums_at)

    return multiply


@cache
def storer(layout: PackedLayout, tile: CodeTile) -> Any:
    """The device function that writes a lane's results, or its partial sums."""
    ends, load_bias = thread_sums(tile.warp_columns), bias_loader()
    write, write16 = ends.write, ends.write16
    first_fragment, second_fragment = products_of(layout, tile).fragment

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


@family(lambda: ((layout, tile) for layout in layouts() if serves(layout) for tile in CODE_TILES))
def kernel(layout: PackedLayout, tile: CodeTile) -> Kernel:
    """The kernel: block (row of tiles, tile of activations, part of the columns)."""
    length, stages, fragment_bytes = tile.stage(layout), tile.stages(layout), layout.fragment_bytes
    ahead, end = stages - 1, (stages - 1) * length
    fetch = fetchers(layout, tile)[0], code_fetcher(layout, tile)
    of_weights = sources(layout, tile).weights
    start, after = prologue(fetch, ahead, length), offset_advancer(stages, length)
    refill = refiller(fetch, ptx.wait_for_all_but(stages - 2))
    multiply, store, zeros = multiplier(layout, tile), storer(layout, tile), products_of(layout, tile).zeros
    base, let_successor_start, columns = ptx.shared_base, dependent_launch.let_successor_start, tile.columns
    down, warp_columns = FRAGMENT_ROWS // WARP_FRAGMENTS, tile.warp_columns

    def product(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        x: Any,  # code tiles [steps, height / 8, bytes of eight rows]
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [splits, m, n]: epilogue/results.py
        m: Any, n: Any, height: Any, steps: Any,
    ) -> None:  # fmt: skip
        (warp, lane), part, splits = warp_and_lane(), uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
        m0 = uint32(cuda.blockIdx.y) * uint32(columns)
        apart = uint64(steps) * uint64(fragment_bytes)
        first = uint32(uint32(part * steps) // splits)
        last = uint32(uint32((part + uint32(1)) * steps) // splits)
        w_at = of_weights(fragments, uint32(cuda.blockIdx.x) * uint32(FRAGMENT_ROWS), steps, warp, lane)
        opaque, totals = (base() + lane * uint32(16)) >> uint32(16) & uint32(0x8000), zeros()
        magic = magic_start(lane)
        start(base(), w_at, apart, x, m0, first, last, height, steps)
        here, step = uint32(0), uint32(first)
        while step < last:
            to = uint32(end) if here == uint32(0) else uint32(here - uint32(length))
            refill(uint32(base() + to), w_at, apart, x, m0, uint32(step + uint32(ahead)), last, height, steps)
            totals = multiply(uint32(base() + here), warp, lane, totals, magic, opaque)
            here, step = after(here), uint32(step + uint32(1))
        let_successor_start()  # not before: its blocks would come between those of this one
        g, t = g_and_t(lane)
        row = uint32(cuda.blockIdx.x) * uint32(TILE_ROWS) + warp % uint32(down) * uint32(WARP_FRAGMENTS * ROWS)
        column = m0 + warp // uint32(down) * uint32(warp_columns) + t * uint32(2)
        result = y + uint64(part) * uint64(m) * uint64(n) * uint64(4), y_kind, bias, bias_kind
        store(totals, result, uint32(column), uint32(row + g), m, n)

    parameters = (uint64,) * 3 + (uint32, uint64) + (uint32,) * 5
    return Kernel(
        f"mma_q8 of {layout.name}, {tile}", product, *parameters,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout), least=LEAST, early=True,
    )  # fmt: skip


def refuses(problem: Linear) -> str | None:
    if isinstance(problem.format, BlockFormat):
        layout = layout_of(problem.format)
        if not serves(layout):
            return "takes codes that are integers, not floats of four bits"
        if layout.scale == "single":
            return "takes scales made of halves, not of float32"
    return refuses_shape(problem)


@register(
    __name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses, narrow=True, repeats=True,
    ends=True,
)  # fmt: skip
def launch(
    x: Any, q: QuantArray, out: Any, split: MmaSplit | None = None, end: Epilogue = PLAIN
) -> None:  # fmt: skip
    """Multiply x by the weights into ``out``; ``split``: another tile and split than the best by estimate."""
    if not (x.size and out.size):
        out.fill(0)
        return
    w, (m, n) = packed_weights(q), out.shape
    steps = w.fragments.shape[1]
    tile, splits = split or best_split(device.card_of(device.current()), w.layout, "int8", m, n, steps)
    assert isinstance(tile, CodeTile)
    tiles = code_tiles_of(x, steps, tile.columns, sum_run(w.layout))
    height = tiles.shape[1] * 8
    grid, make = (-(-n // TILE_ROWS), -(-m // tile.columns), splits), kernel(w.layout, tile)
    result = result_of(out, end.bias)
    if splits == 1:
        make(grid, (tile.threads,), w.fragments, tiles, *result, m, n, height, steps)
        return
    wide = -(-n // FOUR) * FOUR
    partials = between((splits, m, wide), np.float32)
    make(grid, (tile.threads,), w.fragments, tiles, *result_of(partials, None), m, wide, height, steps)
    add_partials(partials, result, m, n)
