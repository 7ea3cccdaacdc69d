"""A few tokens: one kernel, whose blocks read ids themselves and their experts' weights once.

Changed: no expert is a product of its own, and nothing is looked at on the host. The kernel is that of
cuda:gemv of linear, with a block for each use of an expert and 32 or 64 of its rows; tokens that share an
expert are served by one block (gemv/uses.py). So a projection of a mixture is one launch, and can be recorded
in a CUDA graph. Strips of all experts lie one below the other (packed/pack.py).

Blocks have 8 warps, and several of them share a multiprocessor: with eight experts there are more
blocks than multiprocessors, and while one waits for its ids another reads.

Limited by the way to the first weights, which nobody knows before the ids are there: start, ids,
weights, sums are four waits, and small experts are read in little more time than one.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.card import older_than, too_small_for
from ...dispatch.experts import of_arrays
from ...dispatch.ladder import register
from ...dispatch.problems import ExpertLinear
from ...formats import BLOCK_FORMATS, BlockFormat
from ..activations.floats import aligned_floats
from ..gemv import by_runs
from ..gemv.stages import BOTH, FOUR, fetchers
from ..gemv.uses import BESIDE, IDS_EACH, MOST, NAN, NO_EXPERT, ExpertStage, finder, finisher, gatherer
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.address import address
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..linear.r13_gemv import LEAST, WIDE
from ..machine import device
from ..machine.launch import Kernel, family
from ..packed.layout import ROWS, layout_of
from ..packed.pack import LONGEST
from ..packed.pack import strips as strips_of
from ..rings.ring import offset_advancer

COLUMNS = (1, 2, 4)  # uses of an expert that a block serves
SPAN = 2  # records of a stage
CASES = [  # columns, strips of a block, ids of a lane
    (columns, strips, ids_each)
    for columns in COLUMNS
    for strips in (BOTH, FOUR)
    for ids_each in (IDS_EACH if columns == COLUMNS[-1] else IDS_EACH[:1])
]
MANY = 4  # waves


@family((fmt, *case) for fmt in BLOCK_FORMATS for case in CASES)
def kernel(fmt: BlockFormat, columns: int, strips: int, ids_each: int) -> Kernel:
    """Block (use, 32 or 64 rows of its expert)."""
    of = stage_of(fmt, columns, strips)
    length, count, size, warps = of.length, of.count, of.size, of.warps
    ahead, end, ring, after = count - 1, (count - 1) * length, count * length, offset_advancer(count, length)
    multiply, gather, of_uses = by_runs.multiplier(of), by_runs.gatherer(of), of.uses
    (fetch_weights, _), fetch_activations, finish = fetchers(of), gatherer(of), finisher(of)
    find, take_turn, numbers, rows = (
        finder(columns, ids_each),
        dependent_launch.take_turn,
        of.numbers,
        of.rows,
    )
    base, commit, wait = ptx.shared_base, ptx.commit, ptx.wait_for_all_but(count - 2)
    store4 = ptx.store4

    def gemv(
        records: Any,  # uint8 [experts, strips, spans, records of a span, record]
        x: Any,  # float32 [uses / per, k]
        ids: Any,  # int64 [uses]
        y: Any,  # float32 [uses, n]
        uses: Any, per: Any, experts: Any,
        height: Any,  # strips of an expert
        n: Any, k: Any, spans: Any,
    ) -> None:  # fmt: skip
        warp, lane = warp_and_lane()
        use, first = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.y) * uint32(rows)
        take_turn()
        own, mine = base() + warp * uint32(ring), base() + uint32(of_uses) + warp * uint32(4 * columns)
        served, expert = find(mine, ids, use, uses, experts, lane)
        if expert == uint32(NO_EXPERT):
            row = first + warp * uint32(32) + lane
            if warp < uint32(rows // 32) and row < n:
                store4(address(y, use, n, row, 4), uint32(NAN))
            return
        if served == uint32(0):
            return
        apart = uint64(spans) * uint64(size)
        of_w = records + (uint64(expert) * uint64(height) + uint64(cuda.blockIdx.y) * uint64(strips)) * apart
        sums = cuda.local.array(numbers, float32)
        for i in range(numbers):
            sums[i] = float32(0)
        for i in range(ahead):
            span = warp + uint32(warps * i)
            if span < spans:
                fetch_weights(own + uint32(i * length), lane, of_w, apart, span)
                fetch_activations(own + uint32(i * length), lane, x, span, mine, served, per, k)
            commit()
        to, here, span = uint32(end), uint32(0), warp
        while span < spans:
            wait()
            cuda.syncwarp()  # the stage is there for all lanes, and all are done with the one to fill
            later = span + uint32(warps * ahead)
            if later < spans:
                fetch_weights(own + to, lane, of_w, apart, later)
                fetch_activations(own + to, lane, x, later, mine, served, per, k)
            commit()
            multiply(own + here, lane, sums, spans >> uint32(16) & uint32(0x8000))
            to, here = after(to), after(here)
            span += uint32(warps)
        gather(sums)
        cuda.syncthreads()  # the rings are free
        finish(sums, y, first, mine, served, n)

    parameters = (uint64,) * 4 + (uint32,) * 7
    return Kernel(
        f"gemv of experts of {fmt.name}, {columns} of {32 * ids_each} uses, {rows} rows", gemv, *parameters,
        threads=32 * warps, blocks=of.blocks, shared=of.shared, least=LEAST, early=True,
    )  # fmt: skip


def strips_for(uses: int, n: int, multiprocessors: int) -> int:
    """How many a block has: on Hopper four where that is fewer waves of blocks, or where there are many."""
    if device.capability() != WIDE:
        return BOTH
    waves = {
        strips: -(-uses * -(-n // (strips * ROWS)) // (multiprocessors * BESIDE[strips]))
        for strips in (BOTH, FOUR)
    }
    return FOUR if waves[FOUR] < waves[BOTH] or waves[BOTH] >= MANY else BOTH


def stage_of(fmt: BlockFormat, columns: int, strips: int) -> ExpertStage:
    """Of a kernel."""
    return ExpertStage(layout_of(fmt), columns, SPAN, strips=strips)


def columns_for(tokens: int, uses: int, experts: int) -> tuple[int, int]:
    """Uses that a block serves, about twice as many as an expert has on average; and ids of a lane."""
    if uses > 32 * IDS_EACH[0]:
        return COLUMNS[-1], IDS_EACH[-1]
    if tokens == 1:
        return COLUMNS[0], IDS_EACH[0]
    return COLUMNS[1] if uses <= experts else COLUMNS[2], IDS_EACH[0]


def refuses(problem: ExpertLinear) -> str | None:
    if (refused := of_arrays(problem)) is not None:
        return refused
    if not isinstance(problem.weights, BlockFormat):
        return "is written for blocks"
    if problem.t * problem.u > MOST:
        return f"takes up to {MOST} uses of experts"
    if not problem.e:
        return "takes one expert or more"
    if problem.k > LONGEST or problem.n > 65535 * BOTH * ROWS:
        return f"takes up to {LONGEST} columns and {65535 * BOTH * ROWS} rows"
    columns, _ = columns_for(problem.t, problem.t * problem.u, problem.e)
    stage = stage_of(problem.weights, columns, BOTH)
    return older_than(problem.card, LEAST) or too_small_for(problem.card, stage.shared)


@register(__name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=refuses)
def launch(x: Any, q: QuantArray, ids: Any, out: Any, strips: int | None = None) -> None:
    """``strips`` of a block: others than are thought best."""
    assert isinstance(q.format, BlockFormat)
    w, x, (e, n, k) = strips_of(q), aligned_floats(x), q.shape
    count, steps, _ = w.records.shape
    columns, ids_each = columns_for(len(ids), ids.size, e)
    strips = strips or strips_for(ids.size, n, device.multiprocessors())
    made = kernel(q.format, columns, strips, ids_each)
    sizes = (ids.size, ids.size // len(x), e, count // e, n, k, steps // SPAN)
    made((ids.size, -(-n // (strips * ROWS))), (made.threads,), w.records, x, ids, out, *sizes)
