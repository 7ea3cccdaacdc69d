"""Many tokens of 8-bit codes: sorted by expert on the device, boxes of codes for the tensor cores.

Changed: as cuda:grouped does for blocks, but for codes with scales. One block, or a few, give every use a row
of a tile (layouts/groups.py); rows of codes and their scales are copied there (layouts/code_tiles.py);
and the persistent blocks of scaled_linear's cuda:persistent take the tiles of all experts from the plan
(codes8/kernel.py). Results go straight to the rows of the uses. Where each row of x has one use and ids
are in order, rows are not copied but fetched from x. The host waits for nothing, and neither the number of
launches nor the size of a grid depends on the ids.

An expert's uses are the rows of tiles, 64 to 256 of them, and its last tile is filled in part. So the
height of tiles is chosen by the mean number of uses an expert has. Floats: scales of 128 columns of K, or
of a multiple; integers: scales that do not vary along K.

Limited, by estimate: with few uses an expert by empty rows, for 64 rows of x come from the L2 with 128 of w;
with many uses by the copy of the rows, each of which is read once and written once a use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ....arrays.scaled import ScaledArray
from ....dispatch.experts import refuses_blocks
from ....dispatch.ladder import register
from ....dispatch.problems import ExpertLinear, Operand, ScaledLinear
from ...driver import device
from ...driver.launch import Kernel, family
from ...kernels.codes8 import operands
from ...kernels.codes8.epilogue import row_writer
from ...kernels.codes8.kernel import code_consumers
from ...kernels.codes8.kernel import experts as expert_schedule
from ...kernels.codes8.rows import refuses_persistent
from ...kernels.codes8.tiles import (
    EXPERT_COLUMN_SCALE_TILES,
    EXPERT_FLOAT_TILES,
    EXPERT_INTEGER_TILES,
    EXPERT_ZERO_POINT_TILES,
    BoxTile,
    OutputKind,
    RatedTile,
    Variant,
    expert_variants,
)
from ...kernels.hopper import frame
from ...layouts import groups


@family(expert_variants())
def kernel(variant: Variant) -> Kernel:
    """The kernel of blocks that stay on the card and take the tiles of all experts."""
    consumers = code_consumers(variant, rows_are_sorted=True)
    schedule = expert_schedule(variant, consumers)
    return frame.kernel(f"tma for experts {variant}", consumers, schedule, row_writer(variant))


@lru_cache(4096)
def tile_for(
    shares: Sequence[RatedTile], tokens: int, used: int, experts: int, n: int, count: int
) -> BoxTile:
    """The tile with which ``count`` multiprocessors finish first, if uses are spread by chance."""

    def time(rated: RatedTile) -> float:
        slots = experts * groups.expected_slots(tokens, used, experts, rated.tile.rows)
        tiles = slots * -(-n // rated.tile.columns)
        return max(tiles / count, 1) * rated.tile.rows * rated.tile.columns / rated.efficiency

    return min(shares, key=time).tile


def refuses(problem: ExpertLinear) -> str | None:
    if (refused := refuses_blocks(problem)) is not None:
        return refused
    assert isinstance(problem.weights, Operand)
    assert problem.x is not None
    uses = problem.t * problem.u
    if not 0 < problem.e <= groups.MOST:
        return f"takes 1 to {groups.MOST} experts"
    if uses * max(problem.k, 16) >= 1 << 36:
        return "takes up to 2**36 codes of activations"
    rows = uses + min(uses, problem.e) * 256  # of a plan, at most
    operand_shape = problem.x, problem.weights, rows, problem.e * problem.n, problem.k
    return refuses_persistent(ScaledLinear(*operand_shape, device=problem.device, card=problem.card))


@register(
    __name__, __doc__, arithmetic="codes", accumulate="int32, float32 every 128", refuses=refuses,
    narrow=True,
)  # fmt: skip
def launch(x: ScaledArray, q: ScaledArray, ids: Any, out: Any, tile: BoxTile | None = None) -> None:
    """``tile``: one to take in place of the best."""
    (experts, n, _), product = q.shape, operands.CodesProduct.of(x, q)
    zeros, column_scales = product.zeros, product.column_scales
    if product.integer:
        tiles: tuple[RatedTile, ...] = EXPERT_ZERO_POINT_TILES if zeros else EXPERT_INTEGER_TILES
    else:
        tiles = EXPERT_COLUMN_SCALE_TILES if column_scales else EXPERT_FLOAT_TILES
    tile = tile or tile_for(tiles, *ids.shape, experts, n, device.multiprocessors())
    output = OutputKind(str(out.dtype))
    variant = Variant(tile, *product.kinds, output, False, column_scales, zeros)
    plan = groups.UsePlan(ids.size, experts, tile.rows)
    words = operands.expert_words(variant, product, ids, plan, out)
    grid = min(plan.slots * -(-n // tile.columns), device.multiprocessors())
    kernel(variant)((grid,), (variant.threads,), words.operands, words.sizes, ())
