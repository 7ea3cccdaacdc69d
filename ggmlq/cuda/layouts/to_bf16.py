"""Packed weights as a matrix of bfloat16, for cuBLAS: the same bits as decoding the file's bytes, sooner.

A warp takes two fragments, side by side, and has their codes and scales with a few wide loads, where
decoding blocks of a K type looks single bytes up. Product and difference are rounded one after the other, as
``dequantize`` rounds them. Values go through shared memory, from where whole lines of 128 bytes are written.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...formats import BlockFormat
from ..driver import device, served
from ..driver.launch import Kernel, family
from ..intrinsics import hopper, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import DTYPES, LEAST, PAIRS
from ..intrinsics.lane import address, g_and_t, opaque_zero, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from .codes import buffer_sizes, sixteen_unpacker, word_loader
from .layout import ROWS, STEP, PackedLayout, layout_of, layouts
from .pack import PackedWeights, packed_weights
from .scales import scale_loader

WARPS, PAIR = 8, 2  # of a block; fragments of a warp, side by side in a row of fragments
LINE = 2 * STEP + 32  # bytes between rows of values in shared memory, by which no two lanes meet in a bank


def rounder(layout: PackedLayout, kind: str) -> Any:
    """The device function that makes two words of four neighbours of a row, in ``kind``: codes times a scale,
    less an offset.
    """
    has_offset, narrowed = layout.has_offset, PAIRS[kind].narrowed
    mul, sub, float_of = ptx.mul, ptx.sub, ptx.float_of

    @inlined
    def value(bits: Any, scale: Any, offset: Any) -> Any:
        product = mul(scale, float_of(bits))
        return sub(product, offset) if has_offset else product

    @inlined
    def pair(codes: Any, scale: Any, offset: Any) -> Any:
        low, high = codes << 16, codes & 0xFFFF0000
        return float_of(narrowed(value(low, scale, offset), value(high, scale, offset)))

    return pair


@cache
def pair_fetcher(layout: PackedLayout) -> Any:
    """The device function that fetches a warp's two fragments to shared memory, and waits for them.

    The kernel before may still read the memory that is written next, so it waits for that one, too.
    """
    fragment_bytes, chunks = layout.fragment_bytes, PAIR * layout.fragment_bytes // 16
    copy16, commit, wait = ptx.copy16, ptx.commit, ptx.wait_for_all_but(0)
    let_successor_start, wait_for_predecessor = hopper.let_successor_start, hopper.wait_for_predecessor

    @inlined
    def fetch(fragments: Any, fragment_row: Any, steps: Any, step: Any, warp_at: Any, lane: Any) -> None:
        let_successor_start()
        if step < steps:
            source = address(fragments, fragment_row, steps, step, fragment_bytes)
            for first in range(0, chunks, 32):
                c = lane + uint32(first)
                if c < chunks:
                    copy16(warp_at + c * 16, source + uint64(c * 16))
        commit()
        wait()
        cuda.syncwarp()
        wait_for_predecessor()

    return fetch


@cache
def line_storer() -> Any:
    """The device function that writes a warp's values from shared memory to their rows, 16 bytes a lane."""
    take16, store16 = ptx.take16, ptx.store16

    @inlined
    def store_lines(
        values_at: Any, out: Any, first_row: Any, first_column: Any, rows: Any, columns: Any, lane: Any
    ) -> None:
        side, part = uint32(lane >> 3), uint32(lane & 7)
        column = uint32(first_column + part * 8)
        for four in range(0, ROWS, 4):
            row = uint32(side + uint32(four))
            a, b, c, d = take16(values_at + row * LINE + part * 16)
            row = uint32(row + first_row)
            if row < rows and column < columns:
                store16(address(out, row, columns, column, 2), uint32(a), uint32(b), uint32(c), uint32(d))

    return store_lines


@family(lambda: ((layout,) for layout in layouts()))
def decoder(layout: PackedLayout) -> Kernel:
    """The kernel that decodes: block (fragment row, eight pairs of its fragments)."""
    fragment_bytes, (words_count, values) = layout.fragment_bytes, buffer_sizes(layout)
    load_words, load_scales = word_loader(layout), scale_loader(layout)
    unpack_sixteen = sixteen_unpacker(layout)
    runs, scales, offsets = layout.runs, layout.scales, layout.runs * layout.has_offset
    fetch, pair, base, put_pair = (
        pair_fetcher(layout),
        rounder(layout, "bfloat16"),
        ptx.shared_base,
        ptx.put_pair,
    )
    store_lines = line_storer()

    def decode(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        out: Any,  # bfloat16 [rows, columns]
        rows: Any, columns: Any, steps: Any,
    ) -> None:  # fmt: skip
        (warp, lane), fragment_row = warp_and_lane(), uint32(cuda.blockIdx.x)
        step = uint32((uint32(cuda.blockIdx.y) * WARPS + warp) * PAIR)
        warp_at = uint32(base() + warp * (PAIR * fragment_bytes))
        fetch(fragments, fragment_row, steps, step, warp_at, lane)
        if step < steps:
            g, t = g_and_t(lane)
            words, codes = cuda.local.array(words_count, uint32), cuda.local.array(4, uint32)
            f = cuda.local.array(values, float32)
            opaque, row = opaque_zero(steps), uint32(fragment_row * ROWS)
            values_at = base() + WARPS * PAIR * fragment_bytes + warp * (ROWS * LINE)
            upper = uint32(values_at + g * LINE + t * 8)
            for part in range(PAIR):
                load_words(warp_at + uint32(part * fragment_bytes), lane, words)
                load_scales(warp_at + uint32(part * fragment_bytes), lane, f)
                for s in range(4):
                    unpack_sixteen(words, s, codes, opaque)
                    i, at = s * runs // 4, uint32(upper + uint32(32 * s))
                    a, b = pair(codes[0], f[i], f[i + offsets]), pair(codes[2], f[i], f[i + offsets])
                    put_pair(at, a, b)
                    i += scales
                    a, b = pair(codes[1], f[i], f[i + offsets]), pair(codes[3], f[i], f[i + offsets])
                    put_pair(at + ROWS // 2 * LINE, a, b)
                cuda.syncwarp()
                store_lines(values_at, out, row, (step + uint32(part)) * STEP, rows, columns, lane)
                cuda.syncwarp()

    parameters = (uint64, uint64, uint32, uint32, uint32)
    sizes: dict[str, Any] = {
        "threads": 32 * WARPS,
        "shared": WARPS * (PAIR * fragment_bytes + ROWS * LINE),
        "least": LEAST["bfloat16"],
    }
    return Kernel(f"packed weights of {layout.name} to bfloat16", decode, *parameters, early=True, **sizes)


def is_to_be_had(fmt: BlockFormat) -> bool:
    """True where the kernel for packed weights of a type comes with the package, or can be compiled.

    That takes the key of the kernel, 0.4 ms: callers remember it.
    """
    kernel, capability = decoder(layout_of(fmt)), device.capability()
    assert kernel.origin is not None
    return capability is not None and served.is_to_be_had(kernel.origin, capability, kernel.exact)


def decoded_rows(q: QuantArray, first: int, last: int) -> Any:
    """Rows of an array that has packed weights as bfloat16, their bits; ``first`` is a multiple of 16."""
    values = device.cupy().empty((last - first, q.shape[1]), DTYPES["bfloat16"])
    decode_packed(packed_weights(q), first, values)
    return values


def decode_packed(w: PackedWeights, first: int, out: Any) -> None:
    """Decode rows of weights from ``first`` on, a multiple of 16, to bfloat16 [rows, K]."""
    rows, columns = out.shape
    fragments, steps = w.fragments[first // ROWS :], w.fragments.shape[1]
    grid = (-(-rows // ROWS), -(-steps // (PAIR * WARPS)))
    decoder(w.layout)(grid, (32 * WARPS,), fragments, out, rows, columns, steps)


# Packed weights as a matrix of float16, times a power of two that keeps them in its range, for cuBLAS.
#
# As to_bf16.py, with three bits more for each weight. The power is that of the largest weight of the array,
# so that it stands below 2**15; a product is multiplied by its inverse.

LARGEST, BIAS, MOST_POWER = 14, 127, 100  # exponent of the largest weight; of a bfloat16; either way
SLAB_OF_HALVES = 1 << 26  # bytes of weights that are examined at a time


@family(lambda: ((layout,) for layout in layouts()))
def half_decoder(layout: PackedLayout) -> Kernel:
    """The kernel that decodes: block (fragment row, eight pairs of its fragments)."""
    fragment_bytes, (words_count, values) = layout.fragment_bytes, buffer_sizes(layout)
    load_words, load_scales = word_loader(layout), scale_loader(layout)
    unpack_sixteen = sixteen_unpacker(layout)
    runs, scales, offsets = layout.runs, layout.scales, layout.runs * layout.has_offset
    fetch, pair, base = pair_fetcher(layout), rounder(layout, "float16"), ptx.shared_base
    store_pair_if = ptx.store_pair_if
    mul, float_of = ptx.mul, ptx.float_of

    def decode(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        out: Any,  # float16 [rows, columns]
        rows: Any, columns: Any, steps: Any,
        factor: Any,  # bits of a float
    ) -> None:  # fmt: skip
        (warp, lane), fragment_row = warp_and_lane(), uint32(cuda.blockIdx.x)
        step = uint32((uint32(cuda.blockIdx.y) * WARPS + warp) * PAIR)
        warp_at = uint32(base() + warp * (PAIR * fragment_bytes))
        fetch(fragments, fragment_row, steps, step, warp_at, lane)
        if step < steps:
            g, t = g_and_t(lane)
            words, codes = cuda.local.array(words_count, uint32), cuda.local.array(4, uint32)
            f, power = cuda.local.array(values, float32), float_of(factor)
            opaque, row = opaque_zero(steps), uint32(fragment_row * ROWS + g)
            column = uint32(step * STEP + t * 4)
            upper = address(out, row, columns, column, 2)
            lower = upper + uint64(columns) * (2 * ROWS // 2)
            has_upper, has_lower = row < rows, uint32(row + ROWS // 2) < rows
            for part in range(PAIR):
                load_words(warp_at + uint32(part * fragment_bytes), lane, words)
                load_scales(warp_at + uint32(part * fragment_bytes), lane, f)
                for i in range(values):
                    f[i] = mul(f[i], power)
                for s in range(4):
                    unpack_sixteen(words, s, codes, opaque)
                    i, at = s * runs // 4, uint64(2 * STEP * part + 32 * s)
                    inside = uint32(column + uint32(STEP * part + 16 * s)) < columns
                    a, b = pair(codes[0], f[i], f[i + offsets]), pair(codes[2], f[i], f[i + offsets])
                    store_pair_if(upper + at, a, b, uint32(inside & has_upper))
                    i += scales
                    a, b = pair(codes[1], f[i], f[i + offsets]), pair(codes[3], f[i], f[i + offsets])
                    store_pair_if(lower + at, a, b, uint32(inside & has_lower))

    parameters = (uint64, uint64, uint32, uint32, uint32, uint32)
    sizes: dict[str, Any] = {"threads": 32 * WARPS, "shared": WARPS * PAIR * fragment_bytes, "least": (8, 0)}
    return Kernel(f"packed weights of {layout.name} to float16", decode, *parameters, early=True, **sizes)


def decode_halves(w: PackedWeights, first: int, out: Any, power: int) -> None:
    """Decode rows of weights from ``first`` on, a multiple of 16, times 2**power, to float16 [rows, K]."""
    rows, columns = out.shape
    fragments, steps = w.fragments[first // ROWS :], w.fragments.shape[1]
    grid, factor = (
        (-(-rows // ROWS), -(-steps // (PAIR * WARPS))),
        int(np.float32(2.0**power).view(np.uint32)),
    )
    half_decoder(w.layout)(grid, (32 * WARPS,), fragments, out, rows, columns, steps, factor)


def fitting_power(q: QuantArray) -> int | None:
    """The power of two that brings the largest packed weight near 2**15; None where one is not finite.

    It is examined once, which waits for the device.
    """
    w, xp, (n, k) = packed_weights(q), device.cupy(), q.shape
    step, largest = max(ROWS, SLAB_OF_HALVES // (2 * k) // ROWS * ROWS), 0
    for first in range(0, n, step):
        values = xp.empty((min(step, n - first), k), DTYPES["bfloat16"])
        decode_packed(w, first, values)
        largest = max(largest, int((values & np.uint16(0x7FFF)).max()))
    exponent = largest >> 7
    if exponent == 2 * BIAS + 1:
        return None
    return min(max(LARGEST + BIAS - exponent, -MOST_POWER), MOST_POWER)
