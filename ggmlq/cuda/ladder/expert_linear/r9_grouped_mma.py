"""Many tokens without wgmma: a plan of uses by expert, and one launch of ``mma`` on the tiles of all experts.

Changed from grouped: its blocks need Hopper's copy engine and warpgroups. Here a block has one tile of the
plan (layouts/groups.py): 128 rows of an expert's weights × a slot of its uses. It multiplies as
cuda:mma_bf16 of linear does, in the same loop (kernels/mma/kernel.py). Rows of activations are not gathered:
each thread copies 16 bytes of the rows that the plan lists, from where they lie. Results go to the rows of
their uses. A small kernel writes NaN where an id names no expert.

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
from ...intrinsics import hopper, ptx
from ...intrinsics.lane import address
from ...intrinsics.language import cuda, uint32, uint64
from ...kernels.cost.mma import step_clocks
from ...kernels.hopper.tiles import refuses_shape
from ...kernels.mma.kernel import MmaTile, experts_kernel, tiles_of
from ...layouts import groups
from ...layouts.floats import narrowed
from ...layouts.groups import NAN
from ...layouts.layout import TILE_ROWS, PackedLayout, layouts
from ...layouts.pack import packed_weights

KIND = "bfloat16"  # of activations that are multiplied
THREADS, HOPPER, MAX_USES = 128, (9, 0), 1 << 19


@family()
def lost_rows() -> Kernel:
    """The kernel that writes NaN to the results of uses without an expert: block (use)."""
    load4, store4, take_turn = ptx.load4, ptx.store4, hopper.take_turn

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
    return experts_kernel(f"mma_bf16 of experts of {layout.name}, {tile}", layout, tile, KIND)


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
    if uses > MAX_USES:
        return f"takes up to {MAX_USES} uses: a grid has 65535 rows of blocks"
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
