"""Many tokens without wgmma: a plan of uses by expert, and one launch of ``mma`` on the tiles of all experts.

Changed from grouped: its blocks need Hopper's copy engine and warpgroups. Here a block has one tile of the
plan (layouts/groups.py): 128 rows of an expert's weights × a slot of its uses. It multiplies as
cuda:mma_bf16 of linear does, from the same ring of stages (mma/copies.py). Rows of activations are not
gathered: each thread copies 16 bytes of the rows that the plan lists, from where they lie. Results go to the
rows of their uses. A small kernel writes NaN where an id names no expert.

The grid has as many slots as there can be; blocks of slots that the plan does not have end at once. So
nothing depends on the values of ids, and a mixture's product can be recorded in a CUDA graph.

Limited as cuda:mma_bf16 is, and where experts have few uses by tiles that are filled in part.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.card import Card
from ....dispatch.experts import refuses_scaled
from ....dispatch.ladder import register
from ....dispatch.problems import ExpertLinear, Linear, Operand
from ....formats import BlockFormat
from ...driver import device
from ...driver.launch import Kernel, family
from ...intrinsics import codes, dependent_launch, ptx
from ...intrinsics.integers import load16_l2
from ...intrinsics.lane import address, g_and_t, warp_and_lane
from ...intrinsics.language import cuda, uint32, uint64
from ...kernels.cost.mma import step_clocks, tiles_of
from ...kernels.epilogue.results import holder, scatterer
from ...kernels.hopper.tiles import MIN_CAPABILITY, refuses_shape
from ...kernels.mma.copies import (
    WARP_FRAGMENTS,
    MmaTile,
    fetchers,
    listed_activations,
    offset_advancer,
    prologue,
    refiller,
    sources,
)
from ...kernels.mma.frame import multiplier, products_of
from ...layouts import groups
from ...layouts.floats import narrowed
from ...layouts.groups import NAN
from ...layouts.layout import FRAGMENT_ROWS, ROWS, TILE_ROWS, PackedLayout, layouts
from ...layouts.pack import packed_weights

KIND = "bfloat16"  # of activations that are multiplied
THREADS, HOPPER, MOST_USES = 128, (9, 0), 1 << 19


@family()
def lost_rows() -> Kernel:
    """The kernel that writes NaN to the results of uses without an expert: block (use)."""
    load4, store4, take_turn = codes.load4, ptx.store4, dependent_launch.take_turn

    def write(
        places: Any,  # uint32 [uses]: of a plan
        y: Any,  # float32 [uses, n]
        n: Any,
    ) -> None:
        take_turn()
        use = uint32(cuda.blockIdx.x)
        if load4(places + uint64(use) * 4) == uint32(groups.NOWHERE):
            for row in range(uint32(cuda.threadIdx.x), n, uint32(THREADS)):
                store4(address(y, use, n, uint32(row), 4), uint32(NAN))

    return Kernel(
        "rows of uses without an expert", write, uint64, uint64, uint32, threads=THREADS, early=True
    )


@family(lambda: ((layout, tile) for layout in layouts() for tile in tiles_of(layout, KIND)))
def kernel(layout: PackedLayout, tile: MmaTile) -> Kernel:
    """The kernel: block (row of tiles of an expert, slot)."""
    length, stages, fragment_bytes = tile.stage(layout), tile.stages(layout), layout.fragment_bytes
    ahead, end, columns = stages - 1, (stages - 1) * length, tile.columns
    fetch, of_weights = fetchers(layout, tile), sources(layout, tile).weights
    of_uses = listed_activations(tile, FRAGMENT_ROWS * fragment_bytes)
    start, after = prologue(fetch, ahead, length), offset_advancer(stages, length)
    refill, products = refiller(fetch, ptx.wait_for_all_but(stages - 2)), products_of(layout, tile, KIND)
    multiply, zeros, (first_rows, second_rows) = (
        multiplier(layout, tile, KIND), products.zeros, products.fragment,
    )  # fmt: skip
    hold, scatter, base, load_words = holder(columns), scatterer(columns), ptx.shared_base, load16_l2
    wait_for_predecessor, let_successor_start = (
        dependent_launch.wait_for_predecessor, dependent_launch.let_successor_start,
    )  # fmt: skip
    warp_rows, head = WARP_FRAGMENTS * ROWS, 4 * groups.HEAD

    def product(
        fragments: Any,  # uint8 [experts, fragment rows, steps, fragment]
        x: Any,  # bfloat16 [rows, k]
        plan: Any, uses_of_columns: Any,  # uint32: layouts/groups.py; the use of each column
        y: Any,  # float32 [uses, n]
        n: Any, k: Any, steps: Any, per_row: Any,  # per_row: uses of a row of x
    ) -> None:  # fmt: skip
        wait_for_predecessor()
        (warp, lane), slot = warp_and_lane(), uint32(cuda.blockIdx.y)
        if slot >= uint32(load_words(plan)[0]):
            return
        v = load_words(plan + head + uint64(slot) * 16)
        expert, first_slot, uses = uint32(v[0]), uint32(v[1]), uint32(v[3])
        count = min(uint32(columns), uint32(uses - uint32(slot - first_slot) * columns))
        listed = uses_of_columns + uint64(uint32(slot * columns)) * 4
        row = uint32(uint32(expert * uint32(cuda.gridDim.x)) + uint32(cuda.blockIdx.x))
        w_at = of_weights(fragments, uint32(row * FRAGMENT_ROWS), steps, warp, lane)
        x, apart = of_uses(x, listed, count, per_row, k, lane), uint64(steps) * fragment_bytes
        rows, totals = hold(listed, lane, count), zeros()
        opaque, nothing = (base() + lane * 16) >> 16 & 0x8000, uint32(0)
        start(base(), w_at, apart, x, nothing, nothing, steps, nothing, k)
        here, step, behind = uint32(0), uint32(0), uint32(base() + (end + length))
        while step < steps:
            to = end if here == 0 else uint32(here - length)
            refill(uint32(base() + to), w_at, apart, x, nothing, uint32(step + ahead), steps, nothing, k)
            totals = multiply(uint32(base() + here), behind, warp, lane, totals, opaque)
            here, step = after(here), uint32(step + 1)
        let_successor_start()
        g, t = g_and_t(lane)
        below = uint32(uint32(cuda.blockIdx.x) * TILE_ROWS + warp * warp_rows + g)
        scatter(first_rows(totals), y, rows, uint32(t * 2), below, n)
        scatter(second_rows(totals), y, rows, uint32(t * 2), uint32(below + ROWS), n)

    return Kernel(
        f"mma_bf16 of experts of {layout.name}, {tile}", product, *(uint64,) * 5, *(uint32,) * 4,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout), least=MIN_CAPABILITY,
        early=True,
    )  # fmt: skip


@lru_cache(4096)
def tile_for(card: Card, layout: PackedLayout, tokens: int, used: int, experts: int) -> MmaTile:
    """The tile with the fewest clocks for an expert's expected slots, if uses are spread by chance."""

    def clocks(tile: MmaTile) -> float:
        slots = groups.expected_slots(tokens, used, experts, tile.columns)
        return slots * step_clocks(card, layout, tile, KIND)

    return min(tiles_of(layout, KIND), key=clocks)


def refuses(problem: ExpertLinear) -> str | None:
    if (refused := refuses_scaled(problem)) is not None:
        return refused
    uses, weights = problem.t * problem.u, problem.weights
    if not 0 < problem.e <= groups.MOST:
        return f"takes 1 to {groups.MOST} experts"
    if uses > MOST_USES:
        return f"takes up to {MOST_USES} uses: a grid has 65535 rows of blocks"
    assert not isinstance(weights, Operand)
    return refuses_shape(
        Linear(weights, uses, problem.n, problem.k, device=problem.device, card=problem.card)
    )


@register(__name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=refuses)
def launch(x: Any, q: QuantArray, ids: Any, out: Any, tile: MmaTile | None = None) -> None:
    """``tile``: another tile than the best by estimate."""
    assert isinstance(q.format, BlockFormat)
    w, (e, n, k), card = packed_weights(q), q.shape, device.card_of(device.current())
    tile, rows = tile or tile_for(card, w.layout, *ids.shape, e), narrowed(x, KIND)
    shape = groups.UsePlan(ids.size, e, tile.columns, alone=card.capability < HOPPER)
    plan, places = groups.sorted_uses(ids, shape)
    lost_rows()((ids.size,), (THREADS,), places, out, n)
    operands = w.fragments, rows, plan, plan[groups.HEAD + 4 * shape.slots :], out
    sizes, grid = (n, k, w.fragments.shape[1], ids.size // len(x)), (-(-n // TILE_ROWS), shape.slots)
    kernel(w.layout, tile)(grid, (tile.threads,), *operands, *sizes)
