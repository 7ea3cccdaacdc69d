"""The frame of the kernels for a few tokens through experts: cuda:gemv and cuda:gemv_int16.

A kernel is a stage and how it is multiplied. A block serves a use of an expert, or a few uses of one, and
makes 32 or 64 of the expert's rows; the frame finds these uses, keeps stages in flight, and adds up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.card import older_than, too_small_for
from ...dispatch.experts import refuses_scaled
from ...dispatch.problems import ExpertLinear
from ...formats import BlockFormat
from ..activations.floats import aligned_floats
from ..gemv.experts import BESIDE, ExpertGemvStage, epilogue, gated_epilogue, gatherer, weight_fetcher
from ..gemv.stages import FOUR, LEAST, TWO, WIDE
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.address import address
from ..intrinsics.lane import opaque_zero, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine import device
from ..machine.launch import Kernel
from ..packed.layout import ROWS, PackedLayout, layout_of
from ..packed.pack import LONGEST, packed_weights
from ..rings.ring import offset_advancer
from ..schedule.uses import IDS_PER_LANE, MOST_LISTED, NAN, NO_EXPERT, finder

COLUMNS = (1, 2, 4)  # uses of an expert that a block serves
SPAN = 2  # fragments of a row in a stage
MANY = 4  # waves
Family = Callable[[PackedLayout, int, int, int], Kernel]  # (layout, columns, fragment rows, ids of a lane)


def experts_kernel(
    word: str, stage: ExpertGemvStage, ids_per_lane: int, multiply: Any, gather: Any, act: Any = None
) -> Kernel:
    """The kernel of a stage: block (use, 32 or 64 rows of its expert).

    ``gather`` adds up what lanes have of the same result. ``act``: rows are those of two matrices in turn,
    and results are ``act(which, gate, up)`` (gemv/gated.py).
    """
    length, count, size, warps = stage.length, stage.count, stage.size, stage.warps
    ahead, end, ring, after = count - 1, (count - 1) * length, count * length, offset_advancer(count, length)
    uses_offset, layout, columns = stage.uses, stage.layout, stage.columns
    fetch_weights, fetch_activations = weight_fetcher(stage, act is not None), gatherer(stage)
    finish = epilogue(stage) if act is None else gated_epilogue(stage, act)
    find, take_turn, numbers = finder(columns, ids_per_lane), dependent_launch.take_turn, stage.numbers
    shares = 1 if act is None else 2  # matrices that have a block's rows
    rows, fragment_rows = stage.rows // shares, stage.fragment_rows // shares
    base, commit, wait = ptx.shared_base, ptx.commit, ptx.wait_for_all_but(count - 2)
    store4 = ptx.store4

    def gemv(
        fragments: Any,  # uint8 [experts, fragment rows, spans, fragments of a span, fragment]
        others: Any,  # of the matrices that a gate lets through
        x: Any,  # float32 [uses / uses_per_row, k]
        ids: Any,  # int64 [uses]
        y: Any,  # float32 [uses, n]
        which: Any,  # activation, by its place in GATES
        uses: Any, uses_per_row: Any, experts: Any,
        height: Any,  # fragment rows of an expert
        n: Any, k: Any, spans: Any,
    ) -> None:  # fmt: skip
        warp, lane = warp_and_lane()
        use, first = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.y) * uint32(rows)
        take_turn()
        warp_at, uses_at = (
            base() + warp * uint32(ring),
            base() + uint32(uses_offset) + warp * uint32(4 * columns),
        )
        served, expert = find(uses_at, ids, use, uses, experts, lane)
        if expert == uint32(NO_EXPERT):
            row = warp * uint32(32) + lane
            if row < uint32(rows) and first + row < n:
                store4(address(y, use, n, first + row, 4), uint32(NAN))
            return
        if served == uint32(0):
            return
        apart, beside = uint64(spans) * uint64(size), others - fragments
        w_at = (
            fragments
            + (uint64(expert) * uint64(height) + uint64(cuda.blockIdx.y) * uint64(fragment_rows)) * apart
        )
        sums = cuda.local.array(numbers, float32)
        for i in range(numbers):
            sums[i] = float32(0)
        for i in range(ahead):
            span = warp + uint32(warps * i)
            if span < spans:
                fetch_weights(warp_at + uint32(i * length), lane, w_at, apart, beside, span)
                fetch_activations(
                    warp_at + uint32(i * length), lane, x, span, uses_at, served, uses_per_row, k
                )
            commit()
        to, here, span = uint32(end), uint32(0), warp
        while span < spans:
            wait()
            cuda.syncwarp()  # the stage has arrived for all lanes; none reads the one to fill
            later = span + uint32(warps * ahead)
            if later < spans:
                fetch_weights(warp_at + to, lane, w_at, apart, beside, later)
                fetch_activations(warp_at + to, lane, x, later, uses_at, served, uses_per_row, k)
            commit()
            multiply(warp_at + here, lane, uint32(0), sums, opaque_zero(spans))
            to, here = after(to), after(here)
            span += uint32(warps)
        gather(sums)
        cuda.syncthreads()  # the rings are free
        finish(sums, y, which, first, uses_at, served, n)

    parameters = (uint64,) * 5 + (uint32,) * 8
    return Kernel(
        f"{word} of experts of {layout.name}, {columns} of {32 * ids_per_lane} uses, {rows} rows",
        gemv, *parameters, threads=32 * warps, blocks=stage.blocks, shared=stage.shared, least=LEAST,
        early=True,
    )  # fmt: skip


def fragment_rows_for(uses: int, n: int, multiprocessors: int) -> int:
    """The fragment rows of a block: four on Hopper for fewer waves or where there are many, else two."""
    if device.capability() != WIDE:
        return TWO
    waves = {
        fragment_rows: -(-uses * -(-n // (fragment_rows * ROWS)) // (multiprocessors * BESIDE[fragment_rows]))
        for fragment_rows in (TWO, FOUR)
    }
    return FOUR if waves[FOUR] < waves[TWO] or waves[TWO] >= MANY else TWO


def stage_for(layout: PackedLayout, columns: int, fragment_rows: int) -> ExpertGemvStage:
    """The stage of a kernel."""
    return ExpertGemvStage(layout, columns, SPAN, fragment_rows=fragment_rows)


def columns_for(tokens: int, uses: int, experts: int) -> tuple[int, int]:
    """The uses that a block serves, about twice the mean of an expert, and the ids that a lane reads."""
    if uses > 32 * IDS_PER_LANE[0]:
        return COLUMNS[-1], IDS_PER_LANE[-1]
    if tokens == 1:
        return COLUMNS[0], IDS_PER_LANE[0]
    return COLUMNS[1] if uses <= experts else COLUMNS[2], IDS_PER_LANE[0]


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
    if problem.k > LONGEST or problem.n > 65535 * TWO * ROWS:
        return f"takes up to {LONGEST} columns and {65535 * TWO * ROWS} rows"
    columns, _ = columns_for(problem.t, problem.t * problem.u, problem.e)
    stage = stage_for(layout_of(problem.weights), columns, TWO)
    return older_than(problem.card, LEAST) or too_small_for(problem.card, stage.shared)


def multiply_uses(
    kernel: Family, x: Any, q: QuantArray, ids: Any, out: Any, fragment_rows: int | None
) -> None:  # fmt: skip
    """Multiply x by the experts of tokens into ``out``; ``fragment_rows`` of a block: another number than
    the best.
    """
    assert isinstance(q.format, BlockFormat)
    w, x, (e, n, k) = packed_weights(q), aligned_floats(x), q.shape
    count, steps, _ = w.fragments.shape
    columns, ids_per_lane = columns_for(len(ids), ids.size, e)
    fragment_rows = fragment_rows or fragment_rows_for(ids.size, n, device.multiprocessors())
    gemv_kernel = kernel(w.layout, columns, fragment_rows, ids_per_lane)
    sizes = (ids.size, ids.size // len(x), e, count // e, n, k, steps // SPAN)
    gemv_kernel(
        (ids.size, -(-n // (fragment_rows * ROWS))), (gemv_kernel.threads,), w.fragments, w.fragments, x, ids,
        out, 0, *sizes,
    )  # fmt: skip
