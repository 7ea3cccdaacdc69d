"""Problems that kernels on tiles of packed weights refuse: for their shape, the GPU or the driver."""

from __future__ import annotations

from ...dispatch.card import older_than
from ...dispatch.problems import Linear
from ...formats import BlockFormat
from ..machine import tensor_maps
from ..packed.pack import LONGEST

LEAST, HOPPER = (8, 0), (9, 0)
MOST = 65535 * 64  # rows of activations: a grid has 65535 rows of blocks


def refuses_shape(problem: Linear) -> str | None:
    """The reason why tiles of packed weights do not serve a problem on any GPU, or None."""
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > MOST or problem.k > LONGEST or problem.m * problem.k >= 1 << 32:
        return f"takes up to {MOST} rows, {LONGEST} columns and 2**32 elements of activations"
    return older_than(problem.card, LEAST)


def refuses_without_wgmma(problem: Linear) -> str | None:
    """The reason why kernels with Hopper's tensor instructions do not serve a problem, or None."""
    if problem.card is not None and problem.card.capability != HOPPER:
        return "needs compute capability 9.0: other GPUs do not have these instructions"
    return refuses_shape(problem)


def refuses(problem: Linear) -> str | None:
    """The reason why warp-specialised kernels do not serve a problem, or None; they need the copy engine,
    too.
    """
    return refuses_without_wgmma(problem) or tensor_maps.missing(problem.card)
