"""A few tokens of 8-bit codes: one kernel, whose blocks read ids themselves and stream an expert's weights.

Changed: nothing is sorted and no row is copied. The kernel is that of scaled_linear's cuda:small_m, with
blocks for each use of an expert: those of a use find the other uses of its expert among the ids
(kernels/codes8/small_m.py), serve up to eight of them, and end at once where an earlier use serves them
already. Rows of codes are fetched in place, a box a row, and so are their scales. So a projection of a
mixture is one launch, where cuda:grouped_codes has three kernels that wait for each other.

Limited by the latency of the first weights, which are unknown until the ids are read, and by the memory.
"""

from __future__ import annotations

from itertools import product as combined
from math import ceil
from typing import Any, NamedTuple

from ....arrays.scaled import ScaledArray
from ....dispatch.ladder import register
from ....dispatch.problems import ExpertLinear
from ...driver import device
from ...driver.launch import Kernel, family
from ...intrinsics.wgmma import INTEGERS, STEP
from ...kernels.codes8 import operands as operands8
from ...kernels.codes8 import small_m
from ...kernels.codes8.small_m import (
    IDS_PER_LANE,
    MAX_USES,
    SPLITS,
    SmallMTile,
    SmallMVariant,
    small_m_consumers,
    small_m_experts,
    sum_exchanger,
)
from ...kernels.codes8.tiles import FLOAT_CODES, OUTPUTS, OutputKind
from ...kernels.cost import codes8
from ...kernels.hopper import frame
from .r6_grouped_codes import refuses as refused

COLUMNS = small_m.TILES[0].columns  # uses that a block serves
TILES = tuple(tile for tile in small_m.TILES if tile.columns == COLUMNS)


def variants() -> list[tuple[SmallMVariant, int]]:
    """Every tile, pair of codes and kind of outputs, with the ids that a lane reads."""
    floats = [
        SmallMVariant(t, a, b, out, listed=True)
        for t, a, b, out in combined(TILES, FLOAT_CODES, FLOAT_CODES, OUTPUTS)
    ]
    integers = [
        SmallMVariant(t, a, b, out, zeros, listed=True)
        for t, a, b, out, zeros in combined(TILES, INTEGERS, INTEGERS, OUTPUTS, (False, True))
    ]
    return [(variant, ids_per_lane) for variant in floats + integers for ids_per_lane in IDS_PER_LANE]


@family(variants())
def kernel(variant: SmallMVariant, ids_per_lane: int) -> Kernel:
    """The kernel: block (tile of an expert's w, part of K; use); the blocks of a tile are a cluster."""
    consumers = small_m_consumers(variant)
    schedule = small_m_experts(variant, consumers, ids_per_lane)
    name = f"tma few rows of experts {variant}, {32 * ids_per_lane} uses"
    return frame.kernel(name, consumers, schedule, sum_exchanger(variant))


class Cut(NamedTuple):
    """A tile, and the number of blocks that share K."""

    tile: SmallMTile
    split: int


def cut_for(tokens: int, used: int, experts: int, n: int, k: int) -> Cut:
    """The cut with the lowest estimate for the weights of all used experts, if uses are spread by chance."""
    touched = max(experts * (1 - max(1 - used / experts, 0) ** tokens), tokens * used / COLUMNS)
    shape = codes8.CodesShape.on(device.card_of(device.current()), COLUMNS, n * ceil(touched), k)
    plan = codes8.small_m(shape, TILES, SPLITS)
    return Cut(plan.tile, plan.splits)


def refuses(problem: ExpertLinear) -> str | None:
    if (why := refused(problem)) is not None:
        return why
    if problem.t * problem.u > MAX_USES:
        return f"takes up to {MAX_USES} uses of experts"
    return None


@register(
    __name__, __doc__, arithmetic="codes", accumulate="int32, float32 every 128", refuses=refuses,
    narrow=True,
)  # fmt: skip
def launch(x: ScaledArray, q: ScaledArray, ids: Any, out: Any, cut: Cut | None = None) -> None:
    """``cut``: one to take in place of the best."""
    (experts, n, _), product, (tokens, used) = q.shape, operands8.CodesProduct.of(x, q), ids.shape
    k, both = product.k, product.both
    tile, split = cut or cut_for(tokens, used, experts, n, k)
    output = OutputKind(str(out.dtype))
    variant = SmallMVariant(tile, *product.kinds, output, product.zeros, listed=True)
    (x_map, w_map, y, *scales), sizes, _ = operands8.small_m_words(variant, product, 1, out)
    ids_per_lane = next(count for count in IDS_PER_LANE if ids.size <= 32 * count)
    kernel(variant, ids_per_lane)(
        (-(-n // tile.rows) * split, ids.size), (variant.threads,), (x_map, w_map, y, ids, *scales),
        (ids.size, ids.size // len(both.x.codes), experts, n, -(-k // STEP), split.bit_length() - 1, *sizes),
        (), cluster=split,
    )  # fmt: skip
