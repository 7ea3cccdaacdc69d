"""Estimates of the time of products of packed weights on Hopper: the two gemv against cuda:warp_specialized.

Constants are those of costs.json (bench/notes/choice.md); multiprocessors and memory are those of the card.
A bad estimate makes nothing wrong, only slower.
"""

from __future__ import annotations

from ....dispatch.problems import Linear
from ....formats import BlockFormat
from ...layouts import codes
from ...layouts.layout import FRAGMENT_ROWS, STEP, TILE_ROWS, layout_of
from ..gemv.stages import COLUMNS
from ..hopper.tiles import UNIT_FRAGMENTS
from .gemv import GemvShape, best_split
from .warp_specialized import WarpSpecializedShape, best_tile

INT16 = 0.92  # the time of cuda:gemv_int16 beside cuda:gemv: 0.86 to 0.97 (bench/notes/gemv.md)


def estimates(problem: Linear, every: bool = False) -> dict[str, float]:
    """Estimated microseconds of rungs that may be best for blocks, or of all, by name."""
    m, n, k, card = problem.m, problem.n, problem.k, problem.card
    assert card is not None
    assert isinstance(problem.format, BlockFormat)
    layout, us_of, one_row = layout_of(problem.format), dict[str, float](), 1.0
    if m <= COLUMNS[-1]:
        height = FRAGMENT_ROWS * -(-n // TILE_ROWS)
        gemv, _ = best_split(GemvShape(layout, height, k, m, card.multiprocessors, card.memory))
        if m == 1:  # the estimate is that of cuda:gemv_int16
            one_row = INT16
            if codes.serves_bytes(layout):
                us_of["cuda:gemv_int16"] = gemv
        us_of["cuda:gemv"] = gemv / one_row
    if every or "cuda:gemv_int16" not in us_of:
        stages = -(-k // (UNIT_FRAGMENTS * STEP))
        shape = WarpSpecializedShape.on(card, m, n, stages, layout, problem.narrow)
        us_of["cuda:warp_specialized"] = best_tile(shape).us
    return us_of
