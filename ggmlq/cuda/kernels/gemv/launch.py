"""Launches of the gemv kernel: which stage and split serve a product, and the grid of its blocks.

The kernels of cuda:gemv and cuda:gemv_int16 are rungs of ``linear`` and ``expert_linear``; an estimate
(cost/gemv.py) decides how many fragment rows a block has, and how blocks split the columns of a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from ....arrays.array import QuantArray
from ....base.slots import rows_of
from ....dispatch.card import Card, older_than, too_small_for
from ....dispatch.epilogue import Epilogue
from ....dispatch.experts import refuses_scaled
from ....dispatch.problems import ExpertLinear, Linear
from ....formats import BlockFormat
from ...driver import device
from ...driver.launch import Kernel
from ...driver.recorded import decided
from ...layouts.codes import serves_bytes
from ...layouts.floats import aligned_floats, narrowed
from ...layouts.groups import IDS_PER_LANE, MOST_LISTED
from ...layouts.layout import ROWS, PackedLayout, layout_of
from ...layouts.pack import LONGEST, packed_weights
from ...layouts.x_tiles import readable_rows
from ..cost import gemv as cost
from ..epilogue.results import KIND_NUMBERS, residual_of, result_of
from .stages import (
    ALONE,
    FOUR,
    HOPPER,
    MIN_CAPABILITY,
    SPANS,
    TWO,
    USE_BLOCKS,
    USE_COLUMNS,
    ExpertStage,
    GemvStage,
    columns_for,
    spans,
    widths_of,
)

MAX_GRID_COLUMNS = 65535  # blocks of a grid along its second axis
MIN_WAVES_OF_FOUR = 4  # waves of blocks of two fragment rows, from which on four are faster


def refuses_bytes(fmt: Any) -> str | None:
    """The reason why kernels that multiply codes as bytes do not serve a format, or None."""
    if isinstance(fmt, BlockFormat) and not serves_bytes(layout_of(fmt)):
        return "multiplies codes as bytes, which floats of four bits are not"
    return None


# --- rows of x by the weights of a layer --------------------------------------------------------


def stage_for(
    layout: PackedLayout, m: int, small: bool = False, fragment_rows: int = TWO, narrow: bool = False
) -> GemvStage:
    """The stage of the kernel for ``m`` rows: the largest that this GPU has room for, if there is one."""
    return stage_in(layout, m, device.room(), device.older_than(HOPPER) is None, small, fragment_rows, narrow)


@cache
def stage_in(
    layout: PackedLayout,
    m: int,
    room: int | None,
    newer: bool,
    small: bool = False,
    fragment_rows: int = TWO,
    narrow: bool = False,
) -> GemvStage:
    """The same for a GPU with so much shared memory; ``newer``: Hopper or later."""
    columns = columns_for(m)
    wide, narrow = spans(layout, columns, newer), narrow and True in widths_of(columns)
    stages = [GemvStage(layout, columns, span, small, fragment_rows, narrow) for span in wide]
    return next((s for s in stages if room is None or s.blocks * s.shared <= room), stages[-1])


def refuses_rows(problem: Linear, most: int) -> str | None:
    """The reason why kernels for up to ``most`` rows do not serve a problem, or None."""
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > most:
        return f"takes up to {most} rows of activations"
    if problem.k > LONGEST:
        return f"takes up to {LONGEST} columns"
    card = problem.card
    newer = older_than(card, HOPPER) is None
    stage = stage_in(layout_of(problem.format), problem.m, card and card.shared, newer)
    return older_than(card, MIN_CAPABILITY) or too_small_for(card, stage.shared)


def split_for(layout: PackedLayout, count: int, k: int, m: int, card: Card | None = None) -> cost.GemvSplit:
    """The split that should take least time on Hopper; elsewhere lone blocks with two fragment rows."""
    card = card or device.card_of(device.current())
    if card.capability != HOPPER:
        return cost.GemvSplit(TWO, ALONE)
    shape = cost.GemvShape(layout, count, k, m, card.multiprocessors, card.memory)
    return cost.best_split(shape)[1]


class GemvPlan(NamedTuple):
    """The stage of a warp, and how blocks split a tile."""

    stage: GemvStage
    split: cost.GemvSplit

    def launch(self, kernel: Kernel, height: int, *arguments: Any) -> None:
        """Launch a kernel for all tiles of ``height`` fragment rows."""
        fragment_rows, (splits, most) = self.split
        assert splits <= self.stage.most_splits, "shared memory has no place for the sums of so many"
        grid = (-(-height // fragment_rows) * splits,)
        kernel(grid, (kernel.threads,), *arguments, cluster=splits, max_blocks=most)


def plan_for(
    m: int, card: Card, layout: PackedLayout, count: int, k: int, kind: str, split: cost.GemvSplit | None
) -> GemvPlan:  # fmt: skip
    """The plan for ``m`` rows of floats of a kind; ``count``: fragment rows; ``split``: not the best one."""
    split = split or split_for(layout, count, k, m, card)
    small = split.blocks != ALONE
    return GemvPlan(stage_for(layout, m, small, split.fragment_rows, kind != "float32"), split)


def multiply_rows(
    kernel: Callable[..., Kernel],
    x: Any,
    q: QuantArray,
    out: Any,
    split: cost.GemvSplit | None,
    end: Epilogue,
) -> None:
    """Multiply x by the weights into ``out``; ``split``: another split than the best by estimate."""
    m, (n, k) = rows_of(x), q.shape
    if not (m and n and k):
        out.fill(0)
        return
    assert isinstance(q.format, BlockFormat)
    w, card = packed_weights(q), device.card_of(device.current())
    (rows, kind), (height, steps, _) = readable_rows(x), w.fragments.shape
    plan = decided(plan_for, m, card, w.layout, height, k, kind, split)
    stage = plan.stage
    if kind == "float32" and not stage.floats:
        rows, kind = narrowed(rows, "bfloat16"), "bfloat16"
    make = kernel(
        w.layout, stage.columns, stage.span, stage.small, stage.fragment_rows, *(True,) * stage.narrow
    )
    plan.launch(
        make, height, w.fragments, rows, KIND_NUMBERS[kind], *result_of(out, end.bias), m, n, k,
        steps // stage.span, plan.split.blocks.splits, *residual_of(end.residual),
    )  # fmt: skip


# --- uses of experts by a few tokens -------------------------------------------------------------

UseFamily = Callable[[PackedLayout, int, int, int], Kernel]  # (layout, columns, fragment rows, ids of a lane)


def fragment_rows_for(uses: int, n: int, multiprocessors: int) -> int:
    """The fragment rows of a block: four on Hopper for fewer waves or where there are many, else two."""
    if device.capability() != HOPPER:
        return TWO
    two, four = (
        -(-uses * -(-n // (rows * ROWS)) // (multiprocessors * USE_BLOCKS[rows])) for rows in (TWO, FOUR)
    )
    return FOUR if four < two or two >= MIN_WAVES_OF_FOUR else TWO


def use_columns_for(tokens: int, uses: int, experts: int) -> tuple[int, int]:
    """The uses that a block serves, about twice the mean of an expert, and the ids that a lane reads."""
    if uses > 32 * IDS_PER_LANE[0]:
        return USE_COLUMNS[-1], IDS_PER_LANE[-1]
    if tokens == 1:
        return USE_COLUMNS[0], IDS_PER_LANE[0]
    return USE_COLUMNS[1] if uses <= experts else USE_COLUMNS[2], IDS_PER_LANE[0]


def refuses_uses(problem: ExpertLinear) -> str | None:
    """The reason why kernels for a few tokens do not serve a problem, or None."""
    if (refused := refuses_scaled(problem)) is not None:
        return refused
    if not isinstance(problem.weights, BlockFormat):
        return "is written for blocks"
    if problem.t * problem.u > MOST_LISTED:
        return f"takes up to {MOST_LISTED} uses of experts"
    if not problem.e:
        return "takes one expert or more"
    if problem.k > LONGEST or problem.n > MAX_GRID_COLUMNS * TWO * ROWS:
        return f"takes up to {LONGEST} columns and {MAX_GRID_COLUMNS * TWO * ROWS} rows"
    columns, _ = use_columns_for(problem.t, problem.t * problem.u, problem.e)
    stage = ExpertStage.of(layout_of(problem.weights), columns, TWO)
    return older_than(problem.card, MIN_CAPABILITY) or too_small_for(problem.card, stage.shared)


def multiply_uses(
    kernel: UseFamily, x: Any, q: QuantArray, ids: Any, out: Any, fragment_rows: int | None, which: int = 0,
    matrices: int = 1,
) -> None:  # fmt: skip
    """Multiply x by the experts of tokens into ``out``; ``fragment_rows`` of a block: another number than
    the best. ``which``: activation, by its place in GATES, of experts that are two matrices over each other.
    """
    assert isinstance(q.format, BlockFormat)
    w, x, (e, height, k) = packed_weights(q), aligned_floats(x), q.shape
    columns, ids_per_lane = use_columns_for(len(ids), ids.size, e)
    fragment_rows = fragment_rows or fragment_rows_for(ids.size, height, device.multiprocessors())
    make, (count, steps, _) = kernel(w.layout, columns, fragment_rows, ids_per_lane), w.fragments.shape
    n = height // matrices
    others = w.fragments[n // ROWS :] if matrices > 1 else w.fragments
    make(
        (ids.size, -(-height // (fragment_rows * ROWS))), (make.threads,), w.fragments, others, x, ids, out,
        which, ids.size, ids.size // len(x), e, count // e, n, k, steps // SPANS[0],
    )  # fmt: skip
