"""The frame of cuda:mma_bf16 and cuda:mma_q8: a tile from the first stage to its results."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...dispatch.epilogue import Epilogue
from ..epilogue.results import (
    FOUR,
    NOTHING,
    add_partials,
    bias_loader,
    residual_adder,
    residual_of,
    result_of,
)
from ..epilogue.thread_sums import thread_sums
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, uint32, uint64
from ..machine import device
from ..machine.launch import Kernel
from ..machine.recorded import between
from ..packed.layout import FRAGMENT_ROWS, ROWS, TILE_ROWS, PackedLayout
from ..rings.mma_copies import WARP_FRAGMENTS, MmaTile, sources
from ..rings.ring import Fetchers, offset_advancer, prologue, refiller
from ..warp_specialized.tile import LEAST


class MmaParts(NamedTuple):
    """Device functions of a product."""

    place: Callable[..., Any]  # (x, m0, m, k, lane) -> the x of ``fetch``
    fetch: Fetchers
    zeros: Callable[..., Any]  # () -> totals
    constants: Callable[..., Any]  # (lane, an opaque zero) -> numbers that stay in registers
    multiply: Callable[..., Any]  # (stage, end of the stages, warp, lane, totals, constants) -> totals
    fragment: tuple[Callable[..., Any], ...]  # by fragment: (totals) -> its part of them


@cache
def storer(columns: int, fragment: tuple[Callable[..., Any], ...]) -> Any:
    """The device function that writes a lane's results, or its partial sums, of ``columns`` columns.

    ``more``: a residual and its kind, as epilogue/results.py has them.
    """
    ends, load_bias, add, nothing = (
        thread_sums(columns),
        bias_loader(),
        residual_adder(columns, False),
        NOTHING,
    )
    write, write16 = ends.write, ends.write16
    first_fragment, second_fragment = fragment

    @inlined
    def store_fragment(sums: Any, result: Any, more: Any, column: Any, row: Any, m: Any, n: Any) -> None:
        (y, y_kind, _, _), (residual, kind) = result, more
        low, high = load_bias(result, row, n), load_bias(result, uint32(row + uint32(ROWS // 2)), n)
        if residual != uint64(0):
            sums = add(sums, residual, kind, column, row, m, n, low, high)
            low, high = nothing, nothing
        if y_kind == uint32(0):
            write(sums, y, column, row, m, n, low, high)
        else:
            write16(sums, y, column, row, m, n, low, high, uint32(y_kind - uint32(1)))

    @inlined
    def store(totals: Any, result: Any, more: Any, column: Any, row: Any, m: Any, n: Any) -> None:
        store_fragment(first_fragment(totals), result, more, column, row, m, n)
        store_fragment(second_fragment(totals), result, more, column, uint32(row + uint32(ROWS)), m, n)

    return store


def tile_kernel(name: str, layout: PackedLayout, tile: MmaTile, parts: MmaParts) -> Kernel:
    """The kernel: block (row of tiles, tile of activations, part of the columns)."""
    length, stages, fragment_bytes = tile.stage(layout), tile.stages(layout), layout.fragment_bytes
    ahead, end, of_activations = stages - 1, (stages - 1) * length, parts.place
    of_weights = sources(layout, tile).weights
    start, after = prologue(parts.fetch, ahead, length), offset_advancer(stages, length)
    refill = refiller(parts.fetch, ptx.wait_for_all_but(stages - 2))
    multiply, zeros, constants_of = parts.multiply, parts.zeros, parts.constants
    store = storer(tile.columns, parts.fragment)
    base, let_successor_start = ptx.shared_base, dependent_launch.let_successor_start
    rows, columns = WARP_FRAGMENTS * ROWS, tile.columns

    def product(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        x: Any,  # activations, as ``parts`` take them
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [splits, m, n]: epilogue/results.py
        m: Any, n: Any, k: Any, steps: Any,
        residual: Any, residual_kind: Any,  # of y's shape, or 0: epilogue/results.py
    ) -> None:  # fmt: skip
        (warp, lane), part, splits = warp_and_lane(), uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
        m0 = uint32(cuda.blockIdx.y) * uint32(columns)
        apart = uint64(steps) * uint64(fragment_bytes)
        first = uint32(uint32(part * steps) // splits)
        last = uint32(uint32((part + uint32(1)) * steps) // splits)
        w_at = of_weights(fragments, uint32(cuda.blockIdx.x) * uint32(FRAGMENT_ROWS), steps, warp, lane)
        x = of_activations(x, m0, m, k, lane)
        opaque, totals = (base() + lane * uint32(16)) >> uint32(16) & uint32(0x8000), zeros()
        constants = constants_of(lane, opaque)
        start(base(), w_at, apart, x, m0, first, last, m, k)
        here, step, behind = uint32(0), uint32(first), uint32(base() + uint32(end + length))
        while step < last:
            to = uint32(end) if here == uint32(0) else uint32(here - uint32(length))
            refill(uint32(base() + to), w_at, apart, x, m0, uint32(step + uint32(ahead)), last, m, k)
            totals = multiply(uint32(base() + here), behind, warp, lane, totals, constants)
            here, step = after(here), uint32(step + uint32(1))
        let_successor_start()  # not before: its blocks would come between those of this one
        g, t = g_and_t(lane)
        row = uint32(cuda.blockIdx.x) * uint32(TILE_ROWS) + warp * uint32(rows)
        result = y + uint64(part) * uint64(m) * uint64(n) * uint64(4), y_kind, bias, bias_kind
        column, more = uint32(m0 + t * uint32(2)), (residual, residual_kind)
        store(totals, result, more, column, uint32(row + g), m, n)

    parameters = (uint64,) * 3 + (uint32, uint64) + (uint32,) * 5 + (uint64, uint32)
    return Kernel(
        name, product, *parameters,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout), least=LEAST,
        early=True, limits_blocks=True,
    )  # fmt: skip


def launch_tiles(
    make: Callable[..., Any], tile: MmaTile, splits: int, fragments: Any, x: Any, k: int, out: Any,
    end: Epilogue,
) -> None:  # fmt: skip
    """Launch the kernel of a tile, and add up partial sums; ``k``: as its parts take it."""
    (m, n), steps, result = out.shape, fragments.shape[1], result_of(out, end.bias)
    residual = residual_of(end.residual)
    grid, block = (-(-n // TILE_ROWS), -(-m // tile.columns), splits), (tile.threads,)
    # A multiprocessor with room for more would take them from others, where there are few blocks.
    beside = min(tile.blocks, -(-math.prod(grid) // device.multiprocessors()))
    if splits == 1:
        make(grid, block, fragments, x, *result, m, n, k, steps, *residual, max_blocks=beside)
        return
    wide = -(-n // FOUR) * FOUR
    partials = between((splits, m, wide), np.float32)
    sums, none = result_of(partials, None), residual_of(None)
    make(grid, block, fragments, x, *sums, m, wide, k, steps, *none, max_blocks=beside)
    add_partials(partials, result, m, n, residual)
