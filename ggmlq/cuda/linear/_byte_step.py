"""A step of cuda:mma_q8: fragment rows of a warp times a stage of code tiles, added to a lane's totals."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..intrinsics.atoms import inlined
from ..intrinsics.byte_runs import MAGIC_BITS, ByteForm, ByteProducts, byte_products
from ..intrinsics.lane import g_and_t
from ..intrinsics.language import cuda, float32, int32, uint32
from ..intrinsics.wide import held
from ..packed.byte_codes import byte_unit, signed_unpacker
from ..packed.codes import buffer_sizes, word_loader
from ..packed.layout import FRAGMENT_ROWS, STEP, PackedLayout
from ..packed.scales import scale_loader
from ..rings.mma_tile import CODES, EIGHT, SCALES, WARP_FRAGMENTS, CodeTile, eight_bytes, sum_run

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
    first, keep = uint32(uint32(MAGIC_BITS) + opaque), held
    second, third = uint32(first + (opaque >> uint32(1))), uint32(first + (opaque >> uint32(2)))
    fourth = uint32(first + (opaque >> uint32(3)))
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
        w_at = uint32(at + warp * uint32(WARP_FRAGMENTS * fragment_bytes))
        x_at = uint32(at + uint32(weights_at))
        codes_at = uint32(x_at + (g * uint32(STEP) + t * uint32(LANE)))
        scales_at = uint32(x_at + (uint32(CODES) + t * uint32(LANE)))
        sums_at = uint32(x_at + (uint32(CODES + SCALES) + t * uint32(pair_bytes)))
        w0, w1 = cuda.local.array(words_count, uint32), cuda.local.array(words_count, uint32)
        f0, f1 = cuda.local.array(scales_count, float32), cuda.local.array(scales_count, float32)
        load_words(w_at, lane, w0)
        load_words(uint32(w_at + uint32(fragment_bytes)), lane, w1)
        load_scales(w_at, lane, f0)
        load_scales(uint32(w_at + uint32(fragment_bytes)), lane, f1)
        codes, factors = codes_of(w0, opaque) + codes_of(w1, opaque), numbers_of(f0, 0, share)
        factors = factors + numbers_of(f1, 0, share)
        return add(totals, codes, factors, offsets_of(f0, f1), start, codes_at, scales_at, sums_at)

    return multiply
