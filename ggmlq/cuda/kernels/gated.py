"""One row times two matrices and the gate between them, in one launch: ``act(x @ gate.T) · (x @ up.T)``.

The kernel of cuda:gemv_int16 with rows of both matrices in a block (gemv/kernel.py): of a layer, or of each
of a token's experts. So the sums of the two never go to memory, and no kernel waits for them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.card import Card
from ...formats import BlockFormat
from ..driver.device import cupy
from ..driver.launch import Kernel, family
from ..layouts.codes import serves_bytes
from ..layouts.groups import IDS_PER_LANE
from ..layouts.layout import ROWS, PackedLayout, layouts
from ..layouts.pack import LONGEST, packed_weights
from ..layouts.x_tiles import readable_rows
from .cost.gemv import GemvSplit
from .epilogue.results import KIND_NUMBERS, result_of
from .gemv.kernel import experts_kernel, gated_kernel
from .gemv.launch import GemvPlan, multiply_uses, refuses_bytes, split_for
from .gemv.stages import ALONE, FOUR, HOPPER, SPANS, TWO, ExpertStage, GemvStage, kinds_of
from .layers import GATES


class Pair(NamedTuple):
    """The fragments of the gate and of what it lets through, and their biases, which may be None."""

    layout: PackedLayout
    gate: Any
    up: Any
    biases: tuple[Any, Any]
    n: int


@family(
    lambda: (
        (layout, small, fragment_rows)
        for layout in layouts()
        if serves_bytes(layout)
        for fragment_rows in (TWO, FOUR)
        for small in kinds_of(fragment_rows, 1)
    )
)
def kernel(layout: PackedLayout, small: bool, fragment_rows: int) -> Kernel:
    """The kernel: block (16 or 32 outputs), of small blocks or of lone ones."""
    return gated_kernel(GemvStage(layout, 1, SPANS[0], small, fragment_rows))


@family(
    lambda: (
        (layout, fragment_rows)
        for layout in layouts()
        if serves_bytes(layout)
        for fragment_rows in (TWO, FOUR)
    )
)
def expert_gate_kernel(layout: PackedLayout, fragment_rows: int) -> Kernel:
    """The kernel: block (use, 16 or 32 outputs of its expert)."""
    stage = ExpertStage.of(layout, 1, fragment_rows)
    return experts_kernel("gated gemv_int16", stage, IDS_PER_LANE[0], integers=True, matrices=2)


def refuses(card: Card | None, *matrices: QuantArray) -> str | None:
    """The reason why one launch does not serve matrices [N, K], or [E, N, K] of experts; or None."""
    fmt, (n, k) = matrices[0].format, matrices[0].shape[-2:]
    if not isinstance(fmt, BlockFormat):
        return "is written for blocks"
    if any(q.format is not fmt or q.scale is not None for q in matrices):
        return "takes matrices of one type, without a scale of their own"
    if not (n and 0 < k <= LONGEST):
        return f"takes 1 to {LONGEST} columns"
    if card is None or card.capability != HOPPER:
        return "is written for cards of compute capability 9.0"
    return refuses_bytes(fmt)


def pair_of(gate: QuantArray, up: QuantArray, biases: tuple[Any, Any]) -> Pair:
    """The operands of two matrices."""
    first, second = packed_weights(gate), packed_weights(up)
    return Pair(first.layout, first.fragments, second.fragments, biases, len(gate))


def multiply(activation: str, x: Any, pair: Pair, out: Any, split: GemvSplit | None = None) -> None:
    """``out = act(x @ gate.T) · (x @ up.T)`` for one row x; ``split``: another than the best by estimate."""
    rows, kind = readable_rows(x)
    height, k, steps = -(-pair.n // ROWS), x.shape[-1], pair.gate.shape[1]
    split = split or split_for(pair.layout, 8 * -(-height // 4), k, 1)
    small, (bias, other) = split.blocks != ALONE, pair.biases
    stage = GemvStage(pair.layout, 1, SPANS[0], small, split.fragment_rows)
    GemvPlan(stage, split).launch(
        kernel(pair.layout, small, split.fragment_rows), 2 * height, pair.gate, pair.up, rows,
        KIND_NUMBERS[kind], *result_of(out, bias), *result_of(out, other)[2:], GATES.index(activation),
        pair.n, k, steps // stage.span, split.blocks.splits,
    )  # fmt: skip


def of_stack(activation: str, x: Any, q: QuantArray, bias: Any, card: Card | None) -> Any:
    """The product [1, N] with two matrices over each other, or None where one launch does not serve it."""
    if q.ndim != 2 or len(q) % (2 * ROWS) or x.size != q.shape[1] or activation not in GATES:
        return None
    if refuses(card, q) is not None:
        return None
    w, n = packed_weights(q), len(q) // 2
    biases = (None, None) if bias is None else (bias[:n], bias[n:])
    out = cupy().empty((1, n), np.float32)
    multiply(activation, x, Pair(w.layout, w.fragments, w.fragments[n // ROWS :], biases, n), out)
    return out


def of_expert_stack(
    activation: str, x: Any, q: QuantArray, ids: Any, card: Card | None, fragment_rows: int | None = None
) -> Any:
    """The products [1, U, N] of one token with experts [E, 2 N, K], gates over the others, then the gate.

    None where one launch does not serve them. ``fragment_rows`` of a block: another number than the best.
    """
    (e, both, k), (tokens, uses) = q.shape, ids.shape
    if refuses(card, q) is not None or not e or both % (2 * ROWS) or activation not in GATES:
        return None
    if tokens != 1 or not 0 < uses <= 32 * IDS_PER_LANE[0]:
        return None
    out = cupy().empty((1, uses, both // 2), np.float32)
    multiply_uses(
        lambda layout, _, rows, __: expert_gate_kernel(layout, rows), x.reshape(-1, k), q,
        cupy().ascontiguousarray(ids, np.int64), out, fragment_rows, GATES.index(activation), matrices=2,
    )  # fmt: skip
    return out
