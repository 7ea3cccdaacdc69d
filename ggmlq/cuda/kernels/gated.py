"""One row times two matrices and the gate between them, in one launch: ``act(x @ gate.T) · (x @ up.T)``.

The frame of cuda:gemv_int16 with rows of both matrices in a block (gemv/gated.py). So the sums of the two
never go to memory, and no kernel waits for them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...arrays.array import QuantArray
from ...dispatch.card import Card
from ...formats import BlockFormat
from ..driver.device import cupy
from ..driver.launch import Kernel, family
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.lane import opaque_zero, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..layouts.codes import serves_bytes
from ..layouts.layout import ROWS, PackedLayout, layout_of, layouts
from ..layouts.pack import LONGEST, packed_weights
from ..layouts.x_tiles import readable_rows
from .cost.gemv import GemvSplit
from .epilogue.results import KIND_NUMBERS, Result, result_of
from .gemv import digits, gated
from .gemv.linear import split_for
from .gemv.stages import ALONE, FOUR, SPANS, TWO, WIDE, GemvStage, fetchers, kinds_of, warp_placer
from .layers import GATES, numbered_gating
from .mma.shape import offset_advancer


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
    stage = GemvStage(layout, 1, SPANS[0], small, fragment_rows)
    length, count, size, warps = stage.length, stage.count, stage.size, stage.warps
    ahead, end, ring, after = count - 1, (count - 1) * length, count * length, offset_advancer(count, length)
    multiply, gather, sum_count = digits.multiplier(stage), digits.gatherer(stage), stage.numbers
    fetch_weights, (_, fetch_activations) = gated.pair_fetcher(stage), fetchers(stage)
    finish, place = gated.epilogue(stage, numbered_gating()), warp_placer(stage)
    base, commit, wait = ptx.shared_base, ptx.commit, ptx.wait_for_all_but(count - 2)
    let_start, pairs = dependent_launch.let_successor_start, fragment_rows // 2
    wait_for_predecessor = dependent_launch.wait_for_predecessor

    def gemv(
        fragments: Any,  # of the gate, uint8 [fragment rows, spans, fragments of a span, fragment]
        others: Any,  # of what it lets through
        x: Any, x_kind: Any,  # [k], of a kind by its place in KINDS
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [n] and the gate: kernels/epilogue/results.py
        other_bias: Any, other_kind: Any,
        which: Any,  # activation, by its place in GATES
        n: Any, k: Any, spans: Any, splits: Any,
    ) -> None:  # fmt: skip
        warp, lane = warp_and_lane()
        tile, rank, first, stride = place(warp, splits)
        apart, beside = uint64(spans) * size, others - fragments
        w_at = fragments + uint64(tile) * pairs * apart
        warp_at = uint32(base() + uint32(warp * ring) + opaque_zero(spans))
        sums = cuda.local.array(sum_count, float32)
        for i in range(sum_count):
            sums[i] = float32(0)
        let_start()
        for i in range(ahead):
            span = uint32(first + uint32(stride * uint32(i)))
            if span < spans:
                fetch_weights(uint32(warp_at + uint32(i * length)), lane, w_at, apart, beside, span)
        wait_for_predecessor()  # it may have made x, or read y
        for i in range(ahead):
            span = uint32(first + uint32(stride * uint32(i)))
            if span < spans:
                fetch_activations(uint32(warp_at + uint32(i * length)), lane, x, x_kind, span, uint32(1), k)
            commit()
        to, here, span = uint32(end), uint32(0), first
        while span < spans:
            wait()
            cuda.syncwarp()  # the stage has arrived for all lanes; none reads the one to fill
            later = uint32(span + uint32(stride * ahead))
            if later < spans:
                fetch_weights(uint32(warp_at + to), lane, w_at, apart, beside, later)
                fetch_activations(uint32(warp_at + to), lane, x, x_kind, later, uint32(1), k)
            commit()
            multiply(uint32(warp_at + here), lane, x_kind, sums, opaque_zero(spans))
            to, here = after(to), after(here)
            span = uint32(span + stride)
        gather(sums)
        cuda.syncthreads()  # the rings are free
        gate, up = Result(y, y_kind, bias, bias_kind), Result(y, y_kind, other_bias, other_kind)
        finish(sums, gate, up, which, tile, rank, splits, n)

    parameters = (uint64, uint64, uint64, uint32, *(uint64, uint32) * 3) + (uint32,) * 5
    return Kernel(
        f"gated gemv_int16 of {layout.name}{', small blocks' * small}, {stage.rows} rows of weights", gemv,
        *parameters, threads=32 * warps, shared=stage.shared, least=WIDE, early=True, blocks=stage.blocks,
        max_blocks=stage.blocks,
    )  # fmt: skip


def refuses(card: Card | None, *matrices: QuantArray) -> str | None:
    """The reason why one launch does not serve matrices [N, K], or None."""
    fmt, (n, k) = matrices[0].format, matrices[0].shape
    if not isinstance(fmt, BlockFormat) or not serves_bytes(layout_of(fmt)):
        return "is written for blocks whose codes are bytes"
    if any(q.format is not fmt or q.scale is not None for q in matrices):
        return "takes matrices of one type, without a scale of their own"
    if not (n and 0 < k <= LONGEST):
        return f"takes 1 to {LONGEST} columns"
    if card is None or card.capability != WIDE:
        return "is written for cards of compute capability 9.0"
    return None


def pair_of(gate: QuantArray, up: QuantArray, biases: tuple[Any, Any]) -> Pair:
    """The operands of two matrices."""
    first, second = packed_weights(gate), packed_weights(up)
    return Pair(first.layout, first.fragments, second.fragments, biases, len(gate))


def pair_of_stack(q: QuantArray, bias: Any) -> Pair:
    """The operands of two matrices over each other in one array, of a multiple of 16 rows each."""
    w, n = packed_weights(q), len(q) // 2
    biases = (None, None) if bias is None else (bias[:n], bias[n:])
    return Pair(w.layout, w.fragments, w.fragments[n // ROWS :], biases, n)


def multiply(activation: str, x: Any, pair: Pair, out: Any, split: GemvSplit | None = None) -> None:
    """``out = act(x @ gate.T) · (x @ up.T)`` for one row x; ``split``: another than the best by estimate."""
    rows, kind = readable_rows(x)
    height, k, steps = -(-pair.n // ROWS), x.shape[-1], pair.gate.shape[1]
    fragment_rows, (splits, most) = split or split_for(pair.layout, 8 * -(-height // 4), k, 1)
    small = (splits, most) != ALONE
    make, tiles = kernel(pair.layout, small, fragment_rows), -(-2 * height // fragment_rows)
    (bias, other), which = pair.biases, GATES.index(activation)
    make(
        (tiles * splits,), (make.threads,), pair.gate, pair.up, rows, KIND_NUMBERS[kind],
        *result_of(out, bias), *result_of(out, other)[2:], which, pair.n, k, steps // SPANS[0], splits,
        cluster=splits, max_blocks=most,
    )  # fmt: skip


def of_stack(activation: str, x: Any, q: QuantArray, bias: Any, card: Card | None) -> Any:
    """The product [1, N] with two matrices over each other, or None where one launch does not serve it."""
    if q.ndim != 2 or len(q) % (2 * ROWS) or x.size != q.shape[1] or activation not in GATES:
        return None
    if refuses(card, q) is not None:
        return None
    out = cupy().empty((1, len(q) // 2), "f4")
    multiply(activation, x, pair_of_stack(q, bias), out)
    return out
