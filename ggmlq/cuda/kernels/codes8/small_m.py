"""Products with few rows of x: a block for a tile of rows of w and a part of K.

    small_m          one product; the blocks of a tile are a cluster
    small_m_experts  such blocks for each use of an expert, a number t · U + u: token t meets the u-th of its
                     experts (layouts/groups.py)

Of experts, one warp looks at all ids and leaves in shared memory, at the end of the block's layout,

    rows of x [columns] · uses [columns] · the number of uses · the expert

for producers, scale copiers and the epilogue. If an earlier block serves a block's use, it ends at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

from ...intrinsics import hopper, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from ...intrinsics.wgmma import INTEGERS, LOW, STEP, Form, float_products, unpromoted_products
from ...layouts.groups import NO_EXPERT, finder
from ..hopper.frame import Frame, Schedule, barrier_initializer, stage_advancer
from .epilogue import cluster_pusher, column_stager, quad_encoder, quad_scale_loader, quad_storer, row_stager
from .kernel import CodeConsumers, CodeJob, CodeMaps, CodeWords, encloser, ring_placer, tuples, two_producers
from .tiles import FLOAT32_OUTPUT, KILO, BoxTile, OutputKind, Variant

# Products of 8-bit codes with few rows of x: weights are the wide operand of ``wgmma``, a cluster splits K.
#
# Time is that of streaming the weights. Each is read once, by one to three blocks a multiprocessor, so that
# enough copies are in flight to fill the memory's bandwidth. A block makes 64 or 128 outputs of every row of
# x. Its first copies of weights start before the predecessor ends, if it knows which they are; x follows
# after that. The rest of a block is a chain in which each part waits for the one before, so the chain is
# short: asynchronous copies bring the scales, and with 64 rows each of two warpgroups takes every other step.
#
#     stage    codes of w [rows, 128] · codes of x [columns, 128]               swizzled
#     scales   of w [chunk steps, rows] · of x [chunk steps, columns]           floats
#              of w [rows] · of x [columns], both with their zero points        integers
#     sums     [sources, columns / split, rows], a column's rows side by side: sent here by other blocks
#     barriers full [stages] · empty [stages]
#     list     the rows of x: for ``cuda:small_m_codes`` alone
#
# The blocks of a cluster have neighbouring parts of K. Each finishes an equal part of the columns, and sends
# its sums of the other columns into the shared memory of the blocks that finish them. Few sums go straight
# from its registers. Many go through the free stages, 16 bytes at a time, for so many single words would take
# longer than the products. The block that finishes a column adds up its sums in the order of the parts.

CONSUMER_WARPGROUPS = 2  # beside them two warps fetch
CONSUMER_THREADS = 128 * CONSUMER_WARPGROUPS
THREADS = CONSUMER_THREADS + 64
SPLITS = (8, 4, 2, 1)  # blocks of a cluster that share K


@dataclass(frozen=True)
class SmallMTile:
    """Rows of w and of x, and a ring of stages: deep for one block, or short, so that several blocks fit."""

    rows: int  # 64: each warpgroup takes every other step; 128: each has its own rows
    columns: int
    stages: int  # a multiple of ``step_groups``: a barrier's parity tells only two phases apart
    blocks: int  # blocks that fit on a multiprocessor
    chunk: int = 32  # steps whose scales are in shared memory at a time

    groups = CONSUMER_WARPGROUPS

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}, {self.stages} stages"

    @property
    def step_groups(self) -> int:
        """Warpgroups that share the rows of the tile: each takes every so many-th step."""
        return 64 * CONSUMER_WARPGROUPS // self.rows

    @property
    def wide_exchange(self) -> bool:
        """True where sums go to other blocks 16 bytes at a time."""
        return self.step_groups == 1 or self.columns >= 64

    @property
    def pitch(self) -> int:
        """Bytes between columns of sums."""
        return 4 * (self.rows + 4)

    @property
    def stage(self) -> int:
        """Bytes of a stage."""
        return (self.rows + self.columns) * STEP

    @property
    def scales(self) -> int:
        """Offset of the scales; the sums follow them, then the barriers."""
        return self.stages * self.stage

    @property
    def scales_of_x(self) -> int:
        return self.scales + 4 * self.chunk * self.rows

    @property
    def sums(self) -> int:
        return self.scales_of_x + 4 * self.chunk * self.columns

    @property
    def barriers(self) -> int:
        return self.sums + self.step_groups * self.columns * self.pitch

    @property
    def row_list(self) -> int:
        """Offset of a list of rows of x."""
        return self.barriers + 16 * self.stages

    @property
    def list_bytes(self) -> int:
        """Bytes of a list of rows."""
        return 8 * self.columns + 8

    @property
    def shared(self) -> int:
        """Bytes of shared memory, without a list of rows."""
        return KILO + self.row_list


TILES = (
    SmallMTile(64, 8, 12, 1), SmallMTile(64, 8, 6, 3), SmallMTile(64, 16, 12, 1), SmallMTile(64, 16, 4, 3),
    SmallMTile(64, 32, 8, 1), SmallMTile(64, 32, 6, 2), SmallMTile(64, 64, 8, 1, 16),
)  # fmt: skip


@dataclass(frozen=True)
class SmallMVariant:
    """The facts that a kernel for few rows is compiled for."""

    tile: SmallMTile
    x: str
    w: str
    out: OutputKind = FLOAT32_OUTPUT
    zeros: bool = False  # integers
    listed: bool = False  # a list in shared memory names the rows of x

    threads = THREADS  # of a block

    def __str__(self) -> str:
        guarded = ", guarded" * hopper.GUARDED
        return f"{self.x} {self.w} to {self.out}, {self.tile}{', zeros' * self.zeros}{guarded}"

    @property
    def blocks(self) -> int:
        """Blocks that fit on a multiprocessor."""
        return self.tile.blocks

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.tile.shared + self.tile.list_bytes * self.listed

    @property
    def frame(self) -> Frame:
        """Its warps, and what a block takes."""
        return Frame(4 * self.tile.groups, self.threads, self.shared, self.blocks)

    @property
    def integer(self) -> bool:
        """True where codes are integers."""
        return self.x in INTEGERS

    @property
    def form(self) -> Form:
        """The ``wgmma`` products of one warpgroup; weights are their first operand."""
        return Form(self.tile.columns, self.w, self.x)


# The exchange of sums in a cluster whose blocks split K: each adds up and writes a part of the outputs.
#
# Schedule split_k: when the products are done, the stages of a block take up
#
#     sums     [rows, columns], this block's, when its stages are free
#     brought  [sources, rows / split, columns], behind them, when no block of the cluster multiplies any more
#
# Few rows: sums have their own place in shared memory. Sums are added in the order of the parts, so the
# result does not depend on timing. ---

# four neighbours of a row ------------------------------------------------------------------


class QuadEpilogue(NamedTuple):
    """Device functions for four neighbours of a row: load bias and scales; write those within the row."""

    load_beside: Any  # (out_args, row, column, m, n) -> bias, -0.0 without one, and scales
    write: Any  # (y, row, column, n, bias and scales, a, b, c, d)


@cache
def quad_epilogue(out: OutputKind) -> QuadEpilogue:
    """The device functions for four neighbours of a row of one kind of outputs."""
    put = quad_encoder(out) if out.coded else quad_storer(out.kind)
    scales = quad_scale_loader(out)

    @inlined
    def load_beside(out_args: Any, row: Any, column: Any, m: Any, n: Any) -> Any:
        none = float32(-0.0)
        e, f, g, h, last = none, none, none, none, uint32(n - 1)
        if out_args[0] != 0:
            e = ptx.load_float(out_args[0] + uint64(min(column, last)) * 4)
            f = ptx.load_float(out_args[0] + uint64(min(uint32(column + 1), last)) * 4)
            g = ptx.load_float(out_args[0] + uint64(min(uint32(column + 2), last)) * 4)
            h = ptx.load_float(out_args[0] + uint64(min(uint32(column + 3), last)) * 4)
        return (e, f, g, h), scales(out_args, min(row, uint32(m - 1)), column, last)

    @inlined
    def write(
        y: Any, row: Any, column: Any, n: Any, bias_and_scales: Any, a: Any, b: Any, c: Any, d: Any
    ) -> None:  # fmt: skip
        bias, scales = bias_and_scales
        a, b, c, d = ptx.add(a, bias[0]), ptx.add(b, bias[1]), ptx.add(c, bias[2]), ptx.add(d, bias[3])
        put(y, row, column, n, scales, a, b, c, d)

    return QuadEpilogue(load_beside, write)


# --- split_k ----------------------------------------------------------------------------------


def row_split(tile: BoxTile, split: int) -> Sequence[int]:
    """The rows that a block finishes, and a factor: ``row * factor >> 16`` is the block of a row."""
    rows = -(-tile.rows // split)
    return rows, (1 << 16) // rows + 1


def exchanger(variant: Variant) -> Any:
    """The device function that sends sums to the block that finishes them, adds them and writes them."""
    tile, fours = variant.tile, variant.tile.columns // 4
    pitch, log = 4 * tile.columns + 32, fours.bit_length() - 1  # no two rows g share a bank
    rows, stride = tile.rows, 128 * tile.groups // fours  # rows that all threads copy in one round
    stage, meet = row_stager(tile.columns, tile.halves, pitch), hopper.named_barrier(1, 128 * tile.groups)
    load_beside, write = quad_epilogue(variant.out)

    @inlined
    def exchange(
        totals: Any, place: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, finals: Any,
    ) -> None:  # fmt: skip
        lane, inner = place.lane, place.row
        rank, split, rows_per_block = finals.rank, finals.split, finals.rows_per_block
        alone = split == 1  # there is no cluster to wait for
        meet()  # the stages of this block are free
        if not alone:
            hopper.arrive_at_cluster_relaxed()
        row_index = uint32(inner + uint32(lane >> 2))
        stage(totals, uint32(ring + row_index * pitch + uint32(uint32(lane & 3) << 3)))
        meet()
        if not alone:
            hopper.wait_for_cluster()
        thread, received = uint32(cuda.threadIdx.x), uint32(ring + rows * pitch)
        r, at = uint32(thread >> log), uint32(uint32(thread & fours - 1) << 4)
        while r < rows:
            owner = uint32(uint32(r * finals.inverse) >> 16)
            if owner != rank:
                v = ptx.take16(uint32(ring + r * pitch + at))
                target = uint32(uint32(r - uint32(owner * rows_per_block)) + uint32(rank * rows_per_block))
                hopper.put16_in_block(uint32(received + target * pitch + at), owner, v[0], v[1], v[2], v[3])
            r = uint32(r + stride)
        if not alone:
            hopper.sync_cluster()  # all sums have arrived
        hopper.wait_for_predecessor()  # the predecessor may still read the outputs
        first, r = uint32(rank * rows_per_block), uint32(thread >> log)
        last = min(rows_per_block, uint32(rows - first))
        across = uint32(column + uint32(at >> 2))
        while r < last:
            e, f, g, h = float32(0), float32(0), float32(0), float32(0)
            below, source = uint32(row + first + r), uint32(0)
            bias_and_scales = load_beside(finals.results, below, across, m, n)
            while source < split:
                locate = uint32(received + uint32(source * rows_per_block + r) * pitch)
                if source == rank:
                    locate = uint32(ring + uint32(first + r) * pitch)
                v, source = ptx.take_floats(uint32(locate + at)), uint32(source + 1)
                e, f, g, h = e + v[0], f + v[1], g + v[2], h + v[3]
            if below < m:
                write(y, below, across, n, bias_and_scales, e, f, g, h)
            r = uint32(r + stride)

    return exchange


# --- few rows ---------------------------------------------------------------------------------


def sum_exchanger(variant: SmallMVariant) -> Any:
    """The device function that sends sums to the blocks that add them up."""
    tile = variant.tile
    columns, pitch, step_groups, sums_offset = tile.columns, tile.pitch, tile.step_groups, tile.sums
    log, fours, shift = columns.bit_length() - 1, tile.rows // 4, (tile.rows // 4).bit_length() - 1
    push, stage = (
        cluster_pusher(columns, variant.integer, pitch),
        column_stager(columns, variant.integer, pitch),
    )
    meet = hopper.named_barrier(1, CONSUMER_THREADS)

    @inlined
    def store(ring: Any, totals: Any, place: Any, rank: Any, halvings: Any) -> None:
        share = uint32(log - halvings)  # log2 of the columns that a block finishes
        source = uint32(uint32(uint32(rank * step_groups) + place.step_group) << share)
        if halvings != 0:
            hopper.wait_for_cluster()  # the shared memory of the others exists
        push(totals, uint32(ring + sums_offset + uint32(place.row << 2)), place.column, share, source)

    @inlined
    def exchange_wide(ring: Any, totals: Any, place: Any, rank: Any, halvings: Any) -> None:
        share = uint32(log - halvings)
        meet()  # the stages are free
        column_index = uint32(place.step_group * columns + place.column)
        stage(totals, uint32(ring + column_index * pitch + uint32(place.row << 2)))
        meet()
        if halvings != 0:
            hopper.wait_for_cluster()
        i = uint32(cuda.threadIdx.x)
        while i < step_groups * fours * columns:
            c, at = uint32(i >> shift), uint32(uint32(i & fours - 1) << 4)
            v = ptx.take16(uint32(ring + c * pitch + at))
            source = uint32(rank * step_groups + uint32(c >> log))
            c = uint32(c & columns - 1)
            owner = uint32(c >> share)
            target = uint32(uint32(c - uint32(owner << share)) + uint32(source << share))
            at = uint32(ring + sums_offset + target * pitch + at)
            hopper.put16_in_block(at, owner, v[0], v[1], v[2], v[3])
            i = uint32(i + CONSUMER_THREADS)

    return exchange_wide if tile.wide_exchange else store


def sum_reducer(variant: SmallMVariant) -> Any:
    """The device function that adds up a block's part of the outputs, four of a row at a time, and writes it.

    Where a list names the rows of x, a second list behind it names the row of y for each.
    """
    tile, log = variant.tile, variant.tile.columns.bit_length() - 1
    sums_offset, reduce = tile.sums, integer_reduction(variant) if variant.integer else float_reduction()
    (load_beside, write), pitch, step_groups = quad_epilogue(variant.out), tile.pitch, tile.step_groups
    fours, shift = tile.rows // 4, (tile.rows // 4).bit_length() - 1
    targets = tile.row_list + 4 * tile.columns if variant.listed else 0

    @inlined
    def add(
        ring: Any, rank: Any, halvings: Any, y: Any, row0: Any, m: Any, n: Any, out_args: Any
    ) -> None:  # fmt: skip
        share = uint32(log - halvings)  # log2 of the columns that a block finishes
        i, items = uint32(cuda.threadIdx.x), uint32(fours << share)
        apart, sources = uint32(pitch << share), uint32(step_groups << halvings)
        while i < items:
            c, q = uint32(i >> shift), uint32(uint32(i & fours - 1) << 2)
            at = uint32(ring + sums_offset + c * pitch + uint32(q << 2))
            c = uint32(c + uint32(rank << share))
            bias_and_scales = load_beside(out_args, c, uint32(row0 + q), m, n)
            e, f, g, h = reduce(at, apart, sources, ring, c, q)
            if c < m:
                to = ptx.take4(uint32(ring + targets + uint32(c << 2))) if targets else c
                write(y, to, uint32(row0 + q), n, bias_and_scales, e, f, g, h)
            i = uint32(i + CONSUMER_THREADS)

    return add


def float_reduction() -> Any:
    """The device function that adds up four sums of floats."""

    @inlined
    def reduce(at: Any, apart: Any, sources: Any, ring: Any, c: Any, q: Any) -> Any:
        v, source = ptx.take_floats(at), uint32(1)
        e, f, g, h = v[0], v[1], v[2], v[3]
        while source < sources:
            at = uint32(at + apart)
            v, source = ptx.take_floats(at), uint32(source + 1)
            e, f, g, h = e + v[0], f + v[1], g + v[2], h + v[3]
        return e, f, g, h

    return reduce


def integer_reduction(variant: SmallMVariant) -> Any:
    """The device function that adds up four sums of integers and applies scales and zero points."""
    zeros, w_scales, x_scales = variant.zeros, variant.tile.scales, variant.tile.scales_of_x
    rows, columns = variant.tile.rows, variant.tile.columns

    @inlined
    def one(total: Any, w_scales_at: Any, x_scales_at: Any) -> Any:
        """A sum as a float; addresses of the scales of its row of w and of its row of x."""
        if zeros:
            point_x, other_w = (
                ptx.take4(uint32(x_scales_at + 4 * columns)),
                ptx.take4(uint32(w_scales_at + 8 * rows)),
            )
            other_x, point_w = (
                ptx.take4(uint32(x_scales_at + 8 * columns)),
                ptx.take4(uint32(w_scales_at + 4 * rows)),
            )
            total = int32(total - int32(uint32(point_x * other_w) + uint32(other_x * point_w)))
        return ptx.fma(
            float32(total),
            ptx.mul(ptx.take_float(x_scales_at), ptx.take_float(w_scales_at)),
            float32(0),
        )

    @inlined
    def reduce(at: Any, apart: Any, sources: Any, ring: Any, c: Any, q: Any) -> Any:
        v, source = ptx.take16(at), uint32(1)
        a, b, d, e = int32(v[0]), int32(v[1]), int32(v[2]), int32(v[3])
        while source < sources:
            at = uint32(at + apart)
            v, source = ptx.take16(at), uint32(source + 1)
            a, b, d, e = int32(a + v[0]), int32(b + v[1]), int32(d + v[2]), int32(e + v[3])
        w = uint32(ring + w_scales + uint32(q << 2))
        x = uint32(ring + x_scales + uint32(c << 2))
        a, b = one(a, w, x), one(b, uint32(w + 4), x)
        return a, b, one(d, uint32(w + 8), x), one(e, uint32(w + 12), x)

    return reduce


# --- consumers: warps that multiply full stages ---------------------------------------------------
#
# With tiles of 64 rows the two warpgroups take every other step, with 128 each has its own rows.


class ScaleTerms(NamedTuple):
    """The scales of both operands."""

    x: Any  # address; likewise of w
    row_x: Any  # bytes from row to row; from column to column
    column_x: Any
    rows_x: Any  # rows that share one; steps
    span_x: Any
    w: Any
    row_w: Any
    column_w: Any
    rows_w: Any
    span_w: Any


class ZeroPoints(NamedTuple):
    """The factors for zero points of both operands: addresses of rows.ZeroTerms, int32."""

    points_x: Any
    others_x: Any
    points_w: Any
    others_w: Any


class SmallMTerms(NamedTuple):
    """The terms of CodeWords that consumers read."""

    scales: Any  # ScaleTerms
    zeros: Any  # ZeroPoints


class SmallMWork(NamedTuple):
    """The rows and the part of K of a block."""

    row_x: Any  # the first row of x, or the address of the list of rows
    rows: Any  # of x, to fetch
    row_w: Any  # the first row of w
    end_w: Any  # rows of w, or the end of those of the expert
    first: Any  # step
    last: Any  # the step after its last


class SmallMFinals(NamedTuple):
    """The facts that the end of a block needs beside sums."""

    rank: Any  # of the block in its cluster
    halvings: Any  # log2 of the blocks that share K
    row0: Any  # its first row of w: a column of y
    results: Any  # words of the epilogue


def row_finder(listed: bool) -> Any:
    """The device function that gives the i-th row of x or of w, at most the last; ``listed``: from a list."""

    @inlined
    def next_row(first: Any, i: Any, limit: Any) -> Any:
        return min(uint32(first + i), uint32(limit - 1))

    @inlined
    def listed_row(locate: Any, i: Any, count: Any) -> Any:
        return ptx.take4(uint32(locate + uint32(min(i, uint32(count - 1)) << 2)))

    return listed_row if listed else next_row


def scale_copier(count: int, listed: bool = False) -> Any:
    """The device function that starts to copy scales of ``count`` rows and some steps into shared memory."""
    find = row_finder(listed)
    shift, stride = count.bit_length() - 1, CONSUMER_THREADS // count

    @inlined
    def copy_scales(
        to: Any, scales: Any, row: Any, column: Any, rows: Any, span: Any,
        from_row: Any, limit: Any, first: Any, last: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        row_index = find(from_row, uint32(thread & count - 1), limit)
        at, to = scales + uint32(row_index // rows) * row, uint32(to + uint32(thread << 2))
        step = uint32(first + uint32(thread >> shift))
        while step < last:
            ptx.copy4(to, at + uint32(step // span) * column)
            to, step = uint32(to + 4 * CONSUMER_THREADS), uint32(step + stride)

    return copy_scales


def integer_scale_copier(zeros: bool, listed: bool = False) -> Any:
    """The device function that starts to copy a scale and zero-point terms for each row of integers."""
    find = row_finder(listed)

    @inlined
    def copy_scales(
        to: Any, count: Any, scales: Any, row: Any, rows: Any, points: Any, others: Any,
        from_row: Any, limit: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        if thread < count:
            row_index = find(from_row, thread, limit)
            at, to = uint64(row_index) * 4, uint32(to + uint32(thread << 2))
            ptx.copy4(to, scales + uint32(row_index // rows) * row)
            if zeros:
                ptx.copy4(uint32(to + uint32(count << 2)), points + at)
                ptx.copy4(uint32(to + uint32(count << 3)), others + at)

    return copy_scales


class SmallMPlace(NamedTuple):
    """The place of a consumer thread."""

    lane: Any
    row: Any  # of the thread's first sum, in the block's tile; likewise its column
    column: Any
    step_group: Any  # the first step that its warpgroup takes
    a: Any  # lower word of the descriptor of the first stage's w; likewise of x
    b: Any


def thread_placer(tile: SmallMTile) -> Any:
    """The device function for the SmallMPlace of a thread."""
    side_by_side, x_offset = tile.step_groups == 1, tile.rows * STEP

    @inlined
    def place_thread(ring: Any, group: Any) -> Any:
        thread = uint32(cuda.threadIdx.x)
        lane = uint32(thread & 31)
        below = uint32(group << uint32(6)) if side_by_side else 0
        step_group = uint32(0) if side_by_side else group
        warp = uint32(uint32(thread >> 5) & 3)
        row = uint32(below + uint32(warp << 4) + uint32(lane >> 2))
        a = uint32(LOW | uint32(uint32(ring + below * STEP) >> 4))
        b = uint32(LOW | uint32(uint32(ring + x_offset) >> 4))
        return SmallMPlace(lane, row, uint32(uint32(lane & 3) << 1), step_group, a, b)

    return place_thread


def scale_placer(variant: SmallMVariant) -> Any:
    """The device function for the addresses of scales of w, of scales of x, and of the list of rows or 0."""
    tile, listed = variant.tile, variant.tile.row_list if variant.listed else 0
    scales_offset, x_scales_offset = tile.scales, tile.scales_of_x

    @inlined
    def place_scales(ring: Any) -> Any:
        row_list = uint32(ring + listed) if listed else 0
        return uint32(ring + scales_offset), uint32(ring + x_scales_offset), row_list

    return place_scales


def stage_strider(tile: SmallMTile) -> Any:
    """The device function that gives the stage and the parity of a warpgroup's next step."""
    after, step_groups = stage_advancer(tile.stages), tile.step_groups

    @inlined
    def stride(stage: Any, phase: Any) -> Any:
        for _ in range(step_groups):
            stage, phase = after(stage, phase)
        return stage, phase

    return stride


def float_consumer(variant: SmallMVariant, schedule: Schedule, send: Any) -> Any:
    """The device function of consumer warps for floats: sums are promoted, then sent to the blocks that
    finish them.
    """
    tile = variant.tile
    stages, length, columns, chunk = tile.stages, tile.stage // 16, tile.columns, tile.chunk
    do = float_products(variant.form, 0)
    zeros, nothing, begin, first_products, unscaled = do.zeros, do.nothing, do.start, do.first, do.scales_of_w
    row_factors, promoted = do.factors[0], do.promote[0]
    rows, step_groups, place_thread, stride = (
        tile.rows,
        tile.step_groups,
        thread_placer(tile),
        stage_strider(tile),
    )
    copy_w_scales, copy_x_scales = scale_copier(rows), scale_copier(columns, variant.listed)
    place_scales, meet = scale_placer(variant), hopper.named_barrier(1, CONSUMER_THREADS)
    wait_for_copies = ptx.wait_for_all_but(0)

    @inlined
    def consume(ring: Any, full: Any, warp: Any, job: Any) -> None:
        of, work, m = job.words.terms.scales, job.work, job.words.m
        row0, n, first, last = work.row_w, work.end_w, work.first, work.last
        rank, halvings = job.finals.rank, job.finals.halvings
        place = place_thread(ring, uint32(warp >> 2))
        w_scales_at, x_scales_at, row_list = place_scales(ring)
        totals, sums, stage, phase = zeros(), nothing(), place.step_group, uint32(0)
        base, step = first, uint32(first + place.step_group)
        while base < last:
            stop = min(uint32(base + chunk), last)
            copy_w_scales(w_scales_at, of.w, of.row_w, of.column_w, of.rows_w, of.span_w, row0, n, base, stop)
            hopper.wait_for_predecessor()
            copy_x_scales(
                x_scales_at, of.x, of.row_x, of.column_x, of.rows_x, of.span_x, row_list, m, base, stop
            )
            ptx.commit()
            wait_for_copies()
            meet()
            ahead = uint32(uint32(step - base) << 2)
            w_scale_at = uint32(w_scales_at + ahead * rows + uint32(place.row << 2))
            across = uint32(x_scales_at + ahead * columns + uint32(place.column << 2))
            while step < stop:
                barrier, stage_offset = uint32(full + stage * 8), uint32(stage * length)
                hopper.wait(barrier, phase)
                sums = begin(sums, w_scale_at)
                factors_now = row_factors(sums, unscaled(of.w))
                sums = first_products(sums, uint32(place.a + stage_offset), uint32(place.b + stage_offset))
                if place.lane == 0:
                    hopper.arrive(uint32(barrier + 8 * stages))
                totals = promoted(totals, sums, factors_now, across)
                stage, phase = stride(stage, phase)
                w_scale_at = uint32(w_scale_at + 4 * step_groups * rows)
                across = uint32(across + 4 * step_groups * columns)
                step = uint32(step + step_groups)
            meet()  # nobody reads these scales any more
            base = stop
        hopper.wait_for_predecessor()  # even without a step: the predecessor may read the outputs
        send(ring, totals, place, rank, halvings)

    return consume


def integer_consumer(variant: SmallMVariant, schedule: Schedule, send: Any) -> Any:
    """The device function of consumer warps for integers, whose sums are exact."""
    tile = variant.tile
    stages, length, columns = tile.stages, tile.stage // 16, tile.columns
    products = unpromoted_products(variant.form)
    nothing, advance, drain = products.zeros, products.advance, products.drain
    rows, step_groups, place_thread, stride = (
        tile.rows,
        tile.step_groups,
        thread_placer(tile),
        stage_strider(tile),
    )
    copy_w_scales, copy_x_scales, place_scales = (
        integer_scale_copier(variant.zeros), integer_scale_copier(variant.zeros, variant.listed),
        scale_placer(variant),
    )  # fmt: skip
    wait_for_copies = ptx.wait_for_all_but(0)

    @inlined
    def consume(ring: Any, full: Any, warp: Any, job: Any) -> None:
        of, at_zero, work, m = job.words.terms.scales, job.words.terms.zeros, job.work, job.words.m
        row0, n, first, last = work.row_w, work.end_w, work.first, work.last
        rank, halvings = job.finals.rank, job.finals.halvings
        place = place_thread(ring, uint32(warp >> 2))
        totals, stage, phase, before = nothing(), place.step_group, uint32(0), uint32(0)
        w_scales_at, x_scales_at, row_list = place_scales(ring)
        copy_w_scales(
            w_scales_at, uint32(rows), of.w, of.row_w, of.rows_w, at_zero.points_w, at_zero.others_w, row0, n
        )
        hopper.wait_for_predecessor()
        copy_x_scales(
            x_scales_at, uint32(columns), of.x, of.row_x, of.rows_x, at_zero.points_x, at_zero.others_x,
            row_list, m,
        )  # fmt: skip
        ptx.commit()
        step = uint32(first + place.step_group)
        while step < last:
            barrier, stage_offset = uint32(full + stage * 8), uint32(stage * length)
            hopper.wait(barrier, phase)
            totals = advance(totals, uint32(place.a + stage_offset), uint32(place.b + stage_offset))
            # `advance` starts products and waits for those before: now nobody reads the stage before.
            if before != 0 and place.lane == 0:
                hopper.arrive(before)
            before = uint32(barrier + 8 * stages)
            stage, phase = stride(stage, phase)
            step = uint32(step + step_groups)
        totals = drain(totals)
        wait_for_copies()
        send(ring, totals, place, rank, halvings)

    return consume


# --- words of a kernel, and its consumers -----------------------------------------------------------


@inlined
def read_words(operands: Any, sizes: Any) -> Any:
    """The CodeWords of both operands."""
    x, w, y, x_scales, row_x, column_x, w_scales, row_w, column_w = operands[:9]
    m, n, steps, _, rows_x, span_x, rows_w, span_w = sizes
    points_x, others_x, points_w, others_w = operands[9:]
    scales = ScaleTerms(x_scales, row_x, column_x, rows_x, span_x, w_scales, row_w, column_w, rows_w, span_w)
    terms = SmallMTerms(scales, ZeroPoints(points_x, others_x, points_w, others_w))
    return CodeWords(CodeMaps(x, w, uint64(0), uint64(0), uint32(0)), terms, y, m, n, steps)


def small_m_consumers(variant: SmallMVariant) -> CodeConsumers:
    """The consumers of a variant's codes."""
    consumer = integer_consumer if variant.integer else float_consumer
    return CodeConsumers(variant.frame, partial(consumer, variant), 13, 8, read_words)


IDS_PER_LANE = 2, 8, 32  # kernels for up to 64, 256 and 1024 uses
MAX_USES = 32 * IDS_PER_LANE[-1]  # of experts
NAN = float("nan")


def producer(variant: SmallMVariant, is_w: bool) -> Any:
    """The device function of the thread that fetches an operand's steps of a SmallMWork.

    That of w announces the bytes of both operands, and may begin before the predecessor ends.
    """
    tile, listed = variant.tile, variant.listed
    stages, length, x_offset = tile.stages, tile.stage, tile.rows * STEP
    after = stage_advancer(stages)
    one_by_one, find = listed and not is_w, row_finder(True)

    @inlined
    def produce(ring: Any, full: Any, codes: Any, scales: Any, work: Any, span: Any) -> None:
        rows, last = work.rows, work.last
        row = work.row_w if is_w else work.row_x
        if not is_w:
            hopper.prefetch_map(codes)
            hopper.wait_for_predecessor()  # the predecessor may have made x
        step, stage, phase = work.first, uint32(0), uint32(1)
        while step < last:
            at, done = uint32(ring + stage * length), uint32(full + stage * 8)
            hopper.wait(uint32(done + 8 * stages), phase)
            column = uint32(step * STEP)
            if is_w:
                hopper.expect(done, uint32(x_offset + uint32(rows * STEP)))
                hopper.fetch(at, codes, column, row, done)
            elif one_by_one:
                for i in range(uint32(0), rows):
                    to = uint32(uint32(at + x_offset) + uint32(uint32(i) * STEP))
                    hopper.fetch(to, codes, column, find(row, uint32(i), rows), done)
            else:
                hopper.fetch(uint32(at + x_offset), codes, column, row, done)
            stage, phase = after(stage, phase)
            step = uint32(step + 1)

    return produce


@inlined
def part_of(rank: Any, steps: Any, halvings: Any) -> Any:
    """The first step of a block's part of K, and the one after its last."""
    first = uint32(uint32(rank * steps) >> halvings)
    return first, uint32(uint32(uint32(rank + 1) * steps) >> halvings)


def producers(variant: SmallMVariant, consumers: CodeConsumers) -> Any:
    """The device function of both producers."""
    of_w, of_x = (producer(variant, is_w) for is_w in (True, False))
    return two_producers(consumers, of_w, of_x, leave=leave)


@inlined
def leave(finals: Any) -> None:
    hopper.sync_warp()
    if finals.halvings != 0:
        hopper.wait_for_cluster()


def closer(variant: SmallMVariant) -> Any:
    """The device function that ends a block: it adds up its part of the sums."""
    add = sum_reducer(variant)

    @inlined
    def close(ring: Any, job: Any) -> None:
        words, finals = job.words, job.finals
        hopper.sync_cluster()  # all sums have arrived
        if uint32(cuda.threadIdx.x) < CONSUMER_THREADS:
            add(ring, finals.rank, finals.halvings, words.y, finals.row0, words.m, words.n, finals.results)

    return close


def small_m(variant: SmallMVariant, consumers: CodeConsumers) -> Schedule:
    """The schedule of one product.

    ``sizes``: m, n, steps, log2 of the blocks that share K; then those about scales.
    """
    tile, place_ring = variant.tile, ring_placer(variant.tile.barriers)
    start = barrier_initializer(tile.stages, 4 * tile.groups // tile.step_groups)
    rows, columns, read_words = tile.rows, tile.columns, consumers.read

    @inlined
    def open_block(operands: Any, sizes: Any) -> Any:
        _, _, steps, halvings = sizes[:4]
        hopper.let_successor_start()
        ring, full = place_ring()
        thread, rank = uint32(cuda.threadIdx.x), hopper.rank_in_cluster()
        if thread == 0:
            start(full)
        if halvings != 0:  # a single block has no cluster
            hopper.arrive_at_cluster()
        cuda.syncthreads()
        row0 = uint32(uint32(uint32(cuda.blockIdx.x) >> halvings) * rows)
        return ring, full, (rank, row0, part_of(rank, steps, halvings))

    @inlined
    def read(operands: Any, sizes: Any, results: Any, facts: Any) -> Any:
        words = read_words(operands, sizes)
        rank, row0, (first, last) = facts
        work = SmallMWork(uint32(0), uint32(columns), row0, words.n, first, last)
        return CodeJob(words, work, SmallMFinals(rank, sizes[3], row0, results))

    parameters, produce = tuples(consumers.operands, consumers.sizes, 4), producers(variant, consumers)
    return Schedule(parameters, encloser(open_block, read), produce, closer(variant))


# --- experts ----------------------------------------------------------------------------------


def small_m_experts(variant: SmallMVariant, consumers: CodeConsumers, ids_per_lane: int) -> Schedule:
    """The schedule of experts' uses.

    ``sizes``: uses, uses of a row of x, experts; then those of small_m without m.
    """
    tile, place_ring = variant.tile, ring_placer(variant.tile.barriers)
    start = barrier_initializer(tile.stages, 4 * tile.groups // tile.step_groups)
    rows, list_offset, read_words = tile.rows, tile.row_list, consumers.read
    write_list, write_nan = use_list_writer(tile, ids_per_lane), nan_writer(variant)
    end = tile.row_list + 8 * tile.columns  # of the list: how many uses a block serves, and their expert
    start_dependent = hopper.take_turn

    def enclose(run: Any) -> Any:
        def product(operands: Any, sizes: Any, results: Any) -> None:
            (y, ids), (uses, per, experts, n, steps, halvings) = operands[2:4], sizes[:6]
            start_dependent()
            ring, full = place_ring()
            thread, rank, use = uint32(cuda.threadIdx.x), hopper.rank_in_cluster(), uint32(cuda.blockIdx.y)
            if thread < 32:
                write_list(ring, ids, use, uses, per, experts, thread)
                if thread == 0:
                    start(full)
            cuda.syncthreads()
            served, expert = ptx.take4(uint32(ring + end)), ptx.take4(uint32(ring + (end + 4)))
            row0 = uint32(uint32(uint32(cuda.blockIdx.x) >> halvings) * rows)
            if expert == NO_EXPERT:
                if rank == 0:
                    write_nan(y, use, row0, n)
                return
            if served == 0:
                return
            if halvings != 0:  # a single block has no cluster
                hopper.arrive_at_cluster()
            below = uint32(expert * n)
            row_w, end_w = uint32(below + row0), uint32(below + n)
            first, last = part_of(rank, steps, halvings)
            row_list = uint32(ring + list_offset)
            warp = hopper.from_first_lane(uint32(thread >> 5))
            words = read_words(operands[:3] + operands[4:], (served, *sizes[3:]))
            work, none = SmallMWork(row_list, served, row_w, end_w, first, last), uint64(0)
            finals = SmallMFinals(rank, halvings, row0, (none, none, none, none))
            run(ring, full, warp, CodeJob(words, work, finals))

        return product

    parameters = tuples(consumers.operands + 1, consumers.sizes + 2, 0)
    return Schedule(parameters, enclose, producers(variant, consumers), closer(variant))


def use_list_writer(tile: SmallMTile, ids_per_lane: int) -> Any:
    """The device function by which one warp writes the list into shared memory."""
    find, columns = finder(tile.columns, ids_per_lane), tile.columns
    list_offset, uses_offset, end = tile.row_list, tile.row_list + 4 * columns, tile.row_list + 8 * columns

    @inlined
    def make(ring: Any, ids: Any, use: Any, uses: Any, per: Any, experts: Any, lane: Any) -> None:
        served, expert = find(uint32(ring + uses_offset), ids, use, uses, experts, lane)
        at = uint32(ring + uint32(lane << 2))
        if lane < served:
            ptx.put4(uint32(at + list_offset), uint32(ptx.take4(uint32(at + uses_offset)) // per))
        if lane == 0:
            ptx.put4(uint32(ring + end), served)
            ptx.put4(uint32(ring + (end + 4)), expert)

    return make


def nan_writer(variant: SmallMVariant) -> Any:
    """The device function that writes NaN to a tile's outputs of one use, because its id is no expert."""
    store, fours, none = quad_storer(variant.out.kind), variant.tile.rows // 4, (float32(0),) * 4

    @inlined
    def write_nan(y: Any, use: Any, row0: Any, n: Any) -> None:
        thread, nan = uint32(cuda.threadIdx.x), float32(NAN)
        if thread < fours:
            store(y, use, uint32(row0 + uint32(thread << 2)), n, none, nan, nan, nan, nan)

    return write_nan
