"""The frame of the kernels for a few tokens through experts: cuda:gemv and cuda:gemv_int16.

A kernel is a stage and how it is multiplied. A block serves a use of an expert, or a few uses of one, and
makes 32 or 64 of the expert's rows; the frame finds these uses, keeps stages in flight, and adds up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.card import older_than, too_small_for
from ....dispatch.experts import refuses_scaled
from ....dispatch.problems import ExpertLinear
from ....formats import BlockFormat
from ...driver import device
from ...driver.launch import Kernel
from ...intrinsics import bf16x2, dependent_launch, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import address, g_and_t, opaque_zero, warp_and_lane
from ...intrinsics.language import cuda, float32, uint32, uint64
from ...layouts.floats import aligned_floats
from ...layouts.groups import IDS_PER_LANE, MOST_LISTED, NAN, NO_EXPERT, finder
from ...layouts.layout import ROWS, STEP, PackedLayout, layout_of
from ...layouts.pack import LONGEST, packed_weights
from ..gemv.gated import block_adder, pair_fetcher, row_of_gate, sum_putter
from ..gemv.stages import FOUR, LEAST, RESERVED, ROOMY, TWO, WIDE, GemvStage, fetchers
from ..mma.shape import offset_advancer

# The parts of cuda:gemv for experts: stages, loads of activations and an epilogue for the rows of uses.
#
# A list names the uses that a block serves (layouts/groups.py); the kernels' frame is
# ladder/expert_linear/_gemv.py.

BESIDE = {TWO: 3, FOUR: 2}  # blocks that a multiprocessor has registers for, by fragment rows


@dataclass(frozen=True)
class ExpertGemvStage(GemvStage):
    """A stage of a block of eight warps, which shares its multiprocessor with other blocks."""

    @property
    def warps(self) -> int:
        return 8

    @property
    def count(self) -> int:
        return 3 if self.columns == 1 and self.fragment_rows == TWO else 2

    @property
    def uses(self) -> int:
        """Offset of a warp's uses in shared memory, behind all else."""
        return super().shared

    @property
    def shared(self) -> int:
        return self.uses + 4 * self.warps * self.columns

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor has registers and shared memory for."""
        return max(1, min(BESIDE[self.fragment_rows], ROOMY // (self.shared + RESERVED)))


@cache
def expert_gatherer(stage: GemvStage) -> Any:
    """The device function that starts the copies of a stage's activations, from the rows of the uses."""
    x_at, columns, pitch = stage.fragment_rows * stage.size, stage.columns, stage.pitch
    row_chunks, every = stage.row_bytes // 16, stage.span * STEP
    copy16_or_zeros, take4 = bf16x2.copy16_or_zeros, bf16x2.take4
    assert stage.floats, "an earlier kernel would have to make bfloat16"
    assert row_chunks % 32 == 0, "a row is whole copies of a warp"

    @inlined
    def fetch(
        at: Any, lane: Any, x: Any, span: Any, uses: Any, count: Any, uses_per_row: Any, k: Any
    ) -> None:  # fmt: skip
        for c in range(columns):
            for first in range(0, row_chunks, 32):
                chunk = lane + uint32(first)
                column = span * every + chunk * 4
                source, length = x, uint32(0)
                if uint32(c) < count and column < k:
                    row = take4(uses + uint32(4 * c)) // uses_per_row
                    source, length = address(x, row, k, column, 4), uint32(16)
                copy16_or_zeros(at + uint32(x_at + c * pitch) + chunk * 16, source, length)

    return fetch


@cache
def weight_fetcher(stage: GemvStage, of_two: bool) -> Any:
    """The device function that starts the copies of a stage's weights, of one matrix or of two in turn."""
    if of_two:
        return pair_fetcher(stage)
    fetch_weights, _ = fetchers(stage)

    @inlined
    def fetch(at: Any, lane: Any, w_at: Any, apart: Any, beside: Any, span: Any) -> None:
        fetch_weights(at, lane, w_at, apart, span)

    return fetch


@cache
def gated_epilogue(stage: GemvStage, act: Any) -> Any:
    """The device function that adds up the sums of the warps, and stores ``act(which, gate, up)``."""
    put, add_up, row_of, outputs = sum_putter(stage), block_adder(stage), row_of_gate, stage.rows // 2
    take4, store_float = bf16x2.take4, ptx.store_float

    @inlined
    def finish(sums: Any, y: Any, which: Any, first: Any, uses: Any, count: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        put(sums, warp, lane)
        cuda.syncthreads()
        row, at = first + lane, row_of(lane)
        if warp == 0 and lane < outputs and row < n:
            value = act(which, add_up(at), add_up(uint32(at + ROWS)))
            store_float(address(y, take4(uses), n, row, 4), value)

    assert stage.columns == 1
    return finish


@cache
def expert_epilogue(stage: GemvStage) -> Any:
    """The device function that adds up the sums of the warps, in their order, and stores the results of uses.

    A warp stores the results of 32 rows of weights for one use.
    """
    columns, warps, stride, numbers = stage.columns, stage.warps, stage.sums, stage.numbers
    base, put_float, take_float, take4 = ptx.shared_base, bf16x2.put_float, bf16x2.take_float, bf16x2.take4
    store_float, groups = ptx.store_float, stage.rows // 32

    @inlined
    def finish(sums: Any, y: Any, which: Any, first: Any, uses: Any, count: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        if t * 2 < columns:
            for i in range(numbers):  # rows g, g + 8 of a fragment row, columns 2 t, 2 t + 1
                row = g + uint32(i // 4 * ROWS + i // 2 % 2 * 8)
                column = uint32(i % 2) + t * 2
                if column < columns:
                    at = (warp * columns + column) * stride + row
                    put_float(base() + at * 4, sums[i])
        cuda.syncthreads()
        column, row_of_tile = warp // groups, warp % groups * 32 + lane
        row = first + row_of_tile
        if row < n and column < count:
            total = float32(0)
            for i in range(warps):
                at = (uint32(i * columns) + column) * stride + row_of_tile
                total += take_float(base() + at * 4)
            store_float(address(y, take4(uses + column * 4), n, row, 4), total)

    assert columns * groups <= warps
    return finish


COLUMNS = (1, 2, 4)  # uses of an expert that a block serves
SPAN = 2  # fragments of a row in a stage
MANY = 4  # waves
Family = Callable[[PackedLayout, int, int, int], Kernel]  # (layout, columns, fragment rows, ids of a lane)


def experts_kernel(
    word: str, stage: ExpertGemvStage, ids_per_lane: int, multiply: Any, gather: Any, act: Any = None
) -> Kernel:
    """The kernel of a stage: block (use, 32 or 64 rows of its expert).

    ``gather`` adds up what lanes have of the same result. ``act``: rows are those of two matrices in turn,
    and results are ``act(which, gate, up)`` (kernels/gemv/gated.py).
    """
    length, count, size, warps = stage.length, stage.count, stage.size, stage.warps
    ahead, end, ring, after = count - 1, (count - 1) * length, count * length, offset_advancer(count, length)
    uses_offset, layout, columns = stage.uses, stage.layout, stage.columns
    fetch_weights, fetch_activations = weight_fetcher(stage, act is not None), expert_gatherer(stage)
    finish = expert_epilogue(stage) if act is None else gated_epilogue(stage, act)
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
        use, first = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.y) * rows
        take_turn()
        warp_at, uses_at = (
            base() + warp * ring,
            base() + uses_offset + warp * (4 * columns),
        )
        served, expert = find(uses_at, ids, use, uses, experts, lane)
        if expert == NO_EXPERT:
            row = warp * 32 + lane
            if row < rows and first + row < n:
                store4(address(y, use, n, first + row, 4), uint32(NAN))
            return
        if served == 0:
            return
        apart, beside = uint64(spans) * size, others - fragments
        w_at = fragments + (uint64(expert) * height + uint64(cuda.blockIdx.y) * fragment_rows) * apart
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
            later = span + warps * ahead
            if later < spans:
                fetch_weights(warp_at + to, lane, w_at, apart, beside, later)
                fetch_activations(warp_at + to, lane, x, later, uses_at, served, uses_per_row, k)
            commit()
            multiply(warp_at + here, lane, uint32(0), sums, opaque_zero(spans))
            to, here = after(to), after(here)
            span += warps
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
