"""The gemv kernel from its first copy to its stores: up to 32 rows of x by packed weights.

Each warp streams weights for itself: it copies them into a ring of stages in shared memory, multiplies what
has arrived, and waits for no other warp until the end, where all add up their sums.

    kernels      parameters of cuda:gemv and cuda:gemv_int16, of the same with a gate, and of both for experts
    stream       the loop of a warp: fetch a stage, wait for an older one, unpack, ``mma``, scale
    multipliers  a stage's products: by rows of eight, by runs up to four rows, by digits for one row
    epilogues    sums of warps, then of the blocks of a cluster; bias, residual or gate; store
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ...driver.launch import Kernel
from ...intrinsics import hopper, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import address, g_and_t, opaque_zero, warp_and_lane
from ...intrinsics.language import cuda, float32, uint32, uint64
from ...layouts.groups import NAN, NO_EXPERT, finder
from ...layouts.layout import ROWS
from ..epilogue.results import Result, bias_loader, residual_loader, store_result
from ..layers import numbered_gate
from .products import Multiplier, multiplier_of
from .stages import HOPPER, MIN_CAPABILITY, TWO, ExpertStage, GemvStage

# Who computes what. A block has a tile of two or four *fragment rows*, 16 rows of weights each. A *span* is
# one or two fragments of each fragment row, and the columns of x that they meet. A warp takes every
# sixteenth span, or as many as there are warps:
#
#     columns of K →     span 0   span 1   …   span 15   span 16   …
#     fragment row 0     ┌──────┐ ┌──────┐     ┌───────┐ ┌───────┐
#     fragment row 1     └warp 0┘ └warp 1┘  …  └warp 15┘ └warp 0 ┘  …
#
# A small block has a multiprocessor not for itself, and may be one of a cluster that splits the columns of a
# tile, so that any N fills a card:
#
#     block of the cluster     0           1           …
#     warp                     0 … 3       0 … 3       …
#     spans                    0 … 3       4 … 7       …      and so on, round after round
#
# A warp's ring of three stages while it works on span s; each stage is weights, then rows of x:
#
#     │ weights, x of s │ weights, x of s + stride │ weights, x of s + 2 stride │
#       multiplied now    in flight                  copies start now
#
# Lane 4 g + t has the sums of rows g and g + 8 of each fragment row, in columns 2 t and 2 t + 1 of ``mma``.
# These are rows of x, or where there are few of them, rows of x in several runs (run_multiplier) or two bytes
# of one row in several runs (digit_multiplier); then lanes with the same g add up.


class WarpPlace(NamedTuple):
    """The work of a warp."""

    tile: Any
    rank: Any  # of its block among those that split the tile
    first: Any  # span
    stride: Any  # from span to span


class Weights(NamedTuple):
    """A tile's packed weights."""

    at: Any  # address of the first fragment row
    apart: Any  # bytes from a fragment row to the next
    beside: Any  # bytes from a gate's fragments to those of what it lets through


class XRows(NamedTuple):
    """Rows of activations that follow each other."""

    at: Any  # address of x [m, k]
    kind: Any  # of its floats, by its place in KINDS
    m: Any
    k: Any


class UseRows(NamedTuple):
    """Rows of activations that a list of uses of an expert names."""

    at: Any  # address of x, float32 [uses / uses_per_row, k]
    kind: Any  # 0: float32
    uses: Any  # address of the list in shared memory
    count: Any
    uses_per_row: Any
    k: Any


@cache
def warp_placer(stage: GemvStage) -> Any:
    """The device function for a warp's place among the blocks that split a tile."""
    warps, small = stage.warps, stage.small

    @inlined
    def place(warp: Any, splits: Any) -> Any:
        block = uint32(cuda.blockIdx.x)
        if not small:
            return WarpPlace(block, uint32(0), warp, uint32(warps))
        if splits > 1:
            # Nobody may write to the shared memory of a block that does not run yet: the epilogue waits for
            # this arrival of all blocks before it sends sums.
            hopper.arrive_at_cluster_relaxed()
        tile = uint32(block // splits)
        rank = uint32(block - uint32(tile * splits))
        return WarpPlace(tile, rank, uint32(warp + uint32(rank * warps)), uint32(splits * warps))

    return place


# --- fetch: a lane copies chunks of 16 bytes ----------------------------------------------------


@cache
def weight_fetcher(stage: GemvStage, matrices: int = 1) -> Any:
    """The device function that starts the copies of a stage's weights.

    With two matrices, the fragment rows are those of a gate and of what it lets through in turn: so a block
    has both sums of each of its outputs.
    """
    size, chunks, fragment_rows = stage.size, stage.size // 16, stage.fragment_rows

    @inlined
    def fetch(at: Any, lane: Any, w: Any, span: Any) -> None:
        offset = uint32(lane << 4)
        start, to = w.at + uint64(span) * size + offset, uint32(at + offset)
        for fragment_row in range(fragment_rows):
            source = start + uint64(fragment_row // matrices) * w.apart
            if fragment_row % matrices:
                source = source + w.beside
            for first in range(0, chunks, 32):
                if first + 32 <= chunks or lane < uint32(chunks - first):
                    place = uint32(to + uint32(fragment_row * size + 16 * first))
                    ptx.copy16(place, source + uint64(16 * first))

    return fetch


@cache
def x_fetcher(stage: GemvStage) -> Any:
    """The device function that starts the copies of a stage's activations as they lie."""
    floats, bits = stage.floats, stage.takes_bits
    fetch_floats, fetch_bits = row_fetcher(stage, 4), row_fetcher(stage, 2)

    @inlined
    def fetch(at: Any, lane: Any, x: Any, span: Any) -> None:
        if not bits:
            fetch_floats(at, lane, x, span)
        elif not floats:
            fetch_bits(at, lane, x, span)
        elif x.kind == 0:
            fetch_floats(at, lane, x, span)
        else:
            fetch_bits(at, lane, x, span)

    return fetch


@cache
def row_fetcher(stage: GemvStage, width: int) -> Any:
    """The device function that starts the copies of a stage's activations, ``width`` bytes each.

    Those of 16 bits fill half of the room where there is room for float32. Beyond m and k all is zeros: the
    lanes of ``mma`` that have no row or column there multiply them too.
    """
    columns, every, pitch, rows_at = stage.columns, stage.depth, stage.pitch, stage.x_at
    row_chunks, swaps = every * width // 16, stage.swaps
    shift = row_chunks.bit_length() - 1

    @inlined
    def fetch(at: Any, lane: Any, x: Any, span: Any) -> None:
        for first in range(0, row_chunks * columns, 32):
            c = uint32(lane + uint32(first))
            row, chunk = uint32(c >> shift), uint32(c & row_chunks - 1)
            column = uint32(uint32(span * every) + uint32(chunk * (16 // width)))
            if first + 32 <= row_chunks * columns or c < row_chunks * columns:
                there = row < x.m and column < x.k
                source = address(x.at, row, x.k, column, width) if there else x.at
                if swaps:  # against bank conflicts of loads: see activation_loader
                    chunk = uint32(chunk ^ uint32((row & 3) << 1))
                place = uint32(rows_at + uint32(row * pitch) + uint32(chunk << 4))
                ptx.copy16_or_zeros(uint32(at + place), source, uint32(16) if there else uint32(0))

    return fetch


@cache
def use_fetcher(stage: GemvStage) -> Any:
    """The device function that starts the copies of a stage's activations, from the rows of uses."""
    x_at, columns, pitch, every = stage.x_at, stage.columns, stage.pitch, stage.depth
    row_chunks = stage.row_bytes // 16
    assert stage.floats, "an earlier kernel would have to make bfloat16"
    assert row_chunks % 32 == 0, "a row is whole copies of a warp"

    @inlined
    def fetch(at: Any, lane: Any, x: Any, span: Any) -> None:
        for c in range(columns):
            for first in range(0, row_chunks, 32):
                chunk = lane + uint32(first)
                column = span * every + chunk * 4
                source, length = x.at, uint32(0)
                if uint32(c) < x.count and column < x.k:
                    row = ptx.take4(x.uses + uint32(4 * c)) // x.uses_per_row
                    source, length = address(x.at, row, x.k, column, 4), uint32(16)
                ptx.copy16_or_zeros(at + uint32(x_at + c * pitch) + chunk * 16, source, length)

    return fetch


# --- the loop of a warp -------------------------------------------------------------------------


@inlined
def as_it_comes(number: Any) -> Any:
    """A number in as many bits as arithmetic gave it."""
    return number


def streamer(
    stage: GemvStage,
    fetch_weights: Any,
    fetch_x: Any,
    multiplier: Multiplier,
    early: bool = True,
    word: Any = uint32,
) -> Any:
    """The device function that adds the products of a warp's spans to a lane's sums.

    ``early``: weights are fetched before the previous kernel has ended; else nobody needs to wait for it.
    ``word``: the type of spans and of offsets in shared memory. Kernels of experts leave them at 64 bits.
    """
    multiply, gather = multiplier
    length, count = stage.length, stage.count
    ahead, end, wait_for_oldest = count - 1, (count - 1) * length, ptx.wait_for_all_but(count - 2)

    @inlined
    def after(offset: Any) -> Any:
        return 0 if offset == end else uint32(offset + length)

    @inlined
    def stream(
        ring: Any,  # the warp's first stage in shared memory
        lane: Any, place: Any,
        last: Any,  # the end of all spans
        size: Any,  # any count of which an opaque zero is made
        w: Any, x: Any, sums: Any,
    ) -> None:  # fmt: skip
        for i in range(ahead):
            span = word(place.first + word(place.stride * uint32(i)))
            if span < last:
                fetch_weights(word(ring + uint32(i * length)), lane, w, span)
                if not early:
                    fetch_x(word(ring + uint32(i * length)), lane, x, span)
            if not early:
                ptx.commit()
        if early:
            # Weights do not change, so the copies above overlap with the previous kernel. It may have made x,
            # or read y: what follows must see that it has ended.
            hopper.wait_for_predecessor()
            for i in range(ahead):
                span = word(place.first + word(place.stride * uint32(i)))
                if span < last:
                    fetch_x(word(ring + uint32(i * length)), lane, x, span)
                ptx.commit()  # the first group has all weights: a stage is complete when its group is
        to, here, span = uint32(end), uint32(0), place.first
        while span < last:
            wait_for_oldest()
            # A lane has waited for its own copies alone: now the stage has arrived for all lanes, and none
            # reads the stage that is filled next.
            cuda.syncwarp()
            later = word(span + word(place.stride * ahead))
            if later < last:
                fetch_weights(word(ring + to), lane, w, later)
                fetch_x(word(ring + to), lane, x, later)
            ptx.commit()  # of nothing, too: waits count groups
            multiply(word(ring + here), lane, x.kind, sums, opaque_zero(size))
            to, here = after(to), after(here)
            span = word(span + place.stride)
        gather(sums)
        # Sums of all warps pass through the memory of the rings: no warp may multiply from them any more.
        cuda.syncthreads()

    return stream


# --- epilogues: sums of lanes, then of warps, then of blocks -------------------------------------


@cache
def sum_putter(stage: GemvStage) -> Any:
    """The device function that puts a warp's sums into shared memory, a column of ``mma`` after the other."""
    columns, tiles, stride, four_rows = stage.columns, stage.tiles, stage.sums, stage.fragment_rows > TWO

    @inlined
    def put_pair(sums: Any, pair: Any, warp: Any, g: Any, t: Any) -> None:
        for i in range(8 * tiles):  # rows g, g + 8 of a fragment row, columns 2 t, 2 t + 1 of a tile
            row = g + uint32(pair * TWO * ROWS + i // (4 * tiles) * ROWS + i // 2 % 2 * 8)
            column = uint32(i // 4 % tiles * 8 + i % 2) + t * 2
            if column < columns:
                at = (warp * columns + column) * stride + row
                ptx.put_float(ptx.shared_base() + at * 4, sums[pair * 8 * tiles + i])

    @inlined
    def put(sums: Any, warp: Any, lane: Any) -> None:
        g, t = g_and_t(lane)
        if t * 2 < columns:
            put_pair(sums, 0, warp, g, t)
            if four_rows:
                put_pair(sums, 1, warp, g, t)  # one loop over all would not be unrolled
        cuda.syncthreads()  # sums of other warps are read next

    return put


@cache
def column_putter(stage: GemvStage) -> Any:
    """The same for one row of activations, whose sums are the first column's."""
    stride, count = stage.sums, 2 * stage.fragment_rows

    @inlined
    def put(sums: Any, warp: Any, lane: Any) -> None:
        g, t = g_and_t(lane)
        if t == 0:
            for i in range(count):  # rows g, g + 8 of a fragment row
                at = uint32(warp * stride + uint32(8 * i) + g)
                ptx.put_float(ptx.shared_base() + uint32(at << 2), sums[2 * i])
        cuda.syncthreads()  # sums of other warps are read next

    return put


@cache
def warp_adder(stage: GemvStage, word: Any = uint32) -> Any:
    """The device function that adds up the sums of a column and a row of weights, the first warp first."""
    columns, warps, stride = stage.columns, stage.warps, stage.sums

    @inlined
    def add_up(column: Any, row: Any) -> Any:
        total = float32(0)
        for i in range(warps):
            at = word(word(uint32(i * columns) + column) * stride + row)
            total += ptx.take_float(ptx.shared_base() + word(at << 2))
        return total

    return add_up


@cache
def block_adder(stage: GemvStage) -> Any:
    """The device function that adds up what the blocks of a cluster sent to an address, in their order."""
    block_bytes = 4 * stage.columns * stage.rows

    @inlined
    def add_up(at: Any, splits: Any) -> Any:
        total, i = float32(0), uint32(0)
        while i < splits:
            total += ptx.take_float(at)
            at, i = uint32(at + block_bytes), uint32(i + 1)
        return total

    return add_up


class Residual(NamedTuple):
    """An array that is added to sums: kernels/epilogue/results.py."""

    at: Any  # address of an array of y's shape, or 0
    kind: Any  # of its floats


@cache
def residual_putter(stage: GemvStage) -> Any:
    """The device function that adds a residual to the sums of the first warp, in shared memory.

    Nobody needs to wait: a thread adds to the sums that it takes from there later.
    """
    columns, rows, stride, warps, load = (
        stage.columns, stage.rows, stage.sums, stage.warps, residual_loader()
    )  # fmt: skip

    @inlined
    def add(residual: Any, row0: Any, m: Any, n: Any) -> None:
        (warp, lane), last = warp_and_lane(), min(uint32(columns), m)
        column = warp
        while column < last:
            for below in range(0, rows, 32):
                row = uint32(lane + uint32(below))
                if uint32(row0 + row) < n:
                    at = uint32(ptx.shared_base() + uint32(uint32(column * stride + row) << 2))
                    ptx.put_float(
                        at,
                        ptx.take_float(at) + load(residual.at, residual.kind, column, uint32(row0 + row), n),
                    )
            column = uint32(column + warps)

    return add


@cache
def cluster_epilogue(stage: GemvStage) -> Any:
    """The device function that takes the sums of a block's warps from shared memory to results.

    Warp w of the block has columns w, w + warps, … In a cluster all blocks write: a column is written by the
    block of rank column % splits, to which all send their sums of it.
    """
    columns, warps, partials_at = stage.columns, stage.warps, stage.partials_at
    rows, line = stage.rows, 4 * stage.rows  # and bytes of a column of sums of another block
    add_warps, add_blocks, load_bias = warp_adder(stage), block_adder(stage), bias_loader()

    @inlined
    def share(result: Any, row0: Any, rank: Any, splits: Any, m: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        row, column, last = uint32(row0 + lane), warp, min(uint32(columns), m)
        if splits == 1:
            while column < last:
                for below in range(0, rows, 32):
                    total, r = add_warps(column, uint32(lane + uint32(below))), uint32(row + uint32(below))
                    if r < n:
                        store_result(result, column, r, n, total + load_bias(result, r, n))
                column = uint32(column + warps)
        else:
            hopper.wait_for_cluster()  # the shared memory of the other blocks can be written
            to = uint32(ptx.shared_base() + partials_at + uint32(lane << 2))
            while column < last:
                there = uint32(to + uint32(uint32(rank * columns) + column) * line)
                for below in range(0, rows, 32):
                    total = add_warps(column, uint32(lane + uint32(below)))
                    hopper.put_float_in_block(
                        uint32(there + uint32(4 * below)), uint32(column % splits), total
                    )
                column = uint32(column + warps)
            hopper.sync_cluster()  # all sums have arrived, and no block ends while another writes to it
            column = uint32(rank + uint32(splits * warp))
            while column < last:
                for below in range(0, rows, 32):
                    at = uint32(to + uint32(column * line) + uint32(4 * below))
                    total = add_blocks(at, splits)
                    r = uint32(row + uint32(below))
                    if r < n:
                        store_result(result, column, r, n, total + load_bias(result, r, n))
                column = uint32(column + uint32(splits * warps))

    return share


@inlined
def row_of_gate(output: Any) -> Any:
    """The row of a block's weights that is the gate of an output; its partner is 16 rows further."""
    return uint32(uint32(uint32(output >> 4) << 5) + uint32(output & 15))


@cache
def gated_epilogue(stage: GemvStage) -> Any:
    """The device function that stores ``act(gate) · up`` of one row, from sums in shared memory.

    ``gate``, ``up``: results whose biases are added before. The first block of a cluster writes.
    """
    rows, outputs, partials_at = stage.rows, stage.rows // 2, stage.partials_at
    add_warps, add_blocks, load_bias = warp_adder(stage), block_adder(stage), bias_loader()
    put = column_putter(stage)

    @inlined
    def write(gate: Any, up: Any, which: Any, row: Any, n: Any, g: Any, u: Any) -> None:
        if row < n:
            g, u = g + load_bias(gate, row, n), u + load_bias(up, row, n)
            store_result(gate, uint32(0), row, n, numbered_gate(which, g, u))

    @inlined
    def sum_of_blocks(row: Any, splits: Any) -> Any:
        return add_blocks(uint32(ptx.shared_base() + partials_at + uint32(row << 2)), splits)

    @inlined
    def finish(sums: Any, gate: Any, up: Any, which: Any, place: Any, splits: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        put(sums, warp, lane)
        row, at = uint32(uint32(place.tile * outputs) + lane), row_of_gate(lane)
        if splits == 1:
            if warp == 0 and lane < outputs:
                g, u = add_warps(uint32(0), at), add_warps(uint32(0), uint32(at + ROWS))
                write(gate, up, which, row, n, g, u)
        else:
            hopper.wait_for_cluster()  # the shared memory of the other blocks can be written
            part = uint32(uint32(warp << 5) + lane)
            if part < rows:
                slot = uint32(uint32(place.rank * rows) + part)
                to = uint32(ptx.shared_base() + partials_at + uint32(slot << 2))
                hopper.put_float_in_block(to, uint32(0), add_warps(uint32(0), part))
            hopper.sync_cluster()  # all sums have arrived, and no block ends while another writes to it
            if place.rank == 0 and warp == 0 and lane < outputs:
                g, u = sum_of_blocks(at, splits), sum_of_blocks(uint32(at + ROWS), splits)
                write(gate, up, which, row, n, g, u)

    return finish


@cache
def use_epilogue(stage: ExpertStage) -> Any:
    """The device function that adds up the sums of warps, and stores results of uses, float32.

    A warp stores 32 rows of weights for one use.
    """
    columns, groups = stage.columns, stage.rows // 32
    put, add_warps = sum_putter(stage), warp_adder(stage, as_it_comes)
    assert columns * groups <= stage.warps

    @inlined
    def finish(sums: Any, y: Any, which: Any, first: Any, x: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        put(sums, warp, lane)
        column, row_of_tile = warp // groups, warp % groups * 32 + lane
        row = first + row_of_tile
        if row < n and column < x.count:
            total = add_warps(column, row_of_tile)
            ptx.store_float(address(y, ptx.take4(x.uses + column * 4), n, row, 4), total)

    return finish


@cache
def gated_use_epilogue(stage: ExpertStage) -> Any:
    """The same for one use of two matrices: it stores ``act(which, gate, up)``."""
    outputs = stage.rows // 2
    put, add_warps = column_putter(stage), warp_adder(stage)
    assert stage.columns == 1

    @inlined
    def finish(sums: Any, y: Any, which: Any, first: Any, x: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        put(sums, warp, lane)
        row, at = first + lane, row_of_gate(lane)
        if warp == 0 and lane < uint32(outputs) and row < n:
            value = numbered_gate(which, add_warps(uint32(0), at), add_warps(uint32(0), uint32(at + ROWS)))
            ptx.store_float(address(y, ptx.take4(x.uses), n, row, 4), value)

    return finish


# --- kernels -------------------------------------------------------------------------------------


def tile_summer(stage: GemvStage, integers: bool, matrices: int = 1) -> Any:
    """The device function that adds up a warp's share of its tile: it gives the warp's place, and sums.

    ``others``: the second of two matrices, else ``fragments`` again.
    """
    ring, size, sum_count, place_of = (
        stage.count * stage.length, stage.size, stage.numbers, warp_placer(stage)
    )  # fmt: skip
    fragment_rows, fetch_weights = stage.fragment_rows // matrices, weight_fetcher(stage, matrices)
    stream = streamer(stage, fetch_weights, x_fetcher(stage), multiplier_of(stage, integers))

    @inlined
    def sum_up(fragments: Any, others: Any, x: Any, spans: Any, splits: Any) -> Any:
        warp, lane = warp_and_lane()
        place, apart, beside = place_of(warp, splits), uint64(spans) * size, others - fragments
        w = Weights(fragments + uint64(place.tile) * fragment_rows * apart, apart, beside)
        warp_at = uint32(ptx.shared_base() + uint32(warp * ring) + opaque_zero(spans))
        sums = cuda.local.array(sum_count, float32)
        for i in range(sum_count):
            sums[i] = float32(0)
        hopper.let_successor_start()
        stream(warp_at, lane, place, spans, spans, w, x, sums)
        return place, sums

    return sum_up


def gemv_kernel(word: str, stage: GemvStage, integers: bool = False) -> Kernel:
    """The kernel of a stage, named by ``word``: block (tile, rank among those that split it)."""
    sum_up, rows = tile_summer(stage, integers), stage.rows
    put, add_residual, share = sum_putter(stage), residual_putter(stage), cluster_epilogue(stage)

    def gemv(
        fragments: Any,  # uint8 [fragment rows, spans, fragments of a span, fragment]
        x: Any, x_kind: Any,  # [m, k], of a kind by its place in KINDS; no float32 from 9 rows on
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [m, n]: kernels/epilogue/results.py
        m: Any, n: Any, k: Any, spans: Any, splits: Any,
        residual: Any, residual_kind: Any,  # of y's shape, or 0: kernels/epilogue/results.py
    ) -> None:  # fmt: skip
        place, sums = sum_up(fragments, fragments, XRows(x, x_kind, m, k), spans, splits)
        result, row0 = Result(y, y_kind, bias, bias_kind), uint32(place.tile * rows)
        warp, lane = warp_and_lane()
        put(sums, warp, lane)
        if residual != 0 and place.rank == 0:
            add_residual(Residual(residual, residual_kind), row0, m, n)
        share(result, row0, place.rank, splits, m, n)

    parameters = (uint64, uint64, uint32, uint64, uint32, uint64, uint32) + (uint32,) * 5 + (uint64, uint32)
    layout, columns, span, small = stage.layout, stage.columns, stage.span, stage.small
    name = (
        f"{word} of {layout.name}, up to {columns} rows, {span} fragments a stage{', small blocks' * small}"
    )
    name += f", {rows} rows of weights" * (stage.fragment_rows > TWO) + ", floats of 16 bits" * stage.narrow
    newer = small or stage.fragment_rows > TWO or (columns > 16 and span > 1)
    return kernel_of(name, gemv, parameters, stage, HOPPER if newer else MIN_CAPABILITY)


def gated_kernel(stage: GemvStage) -> Kernel:
    """The kernel of one row times two matrices, and the gate: block (16 or 32 outputs, rank)."""
    sum_up, finish = tile_summer(stage, integers=True, matrices=2), gated_epilogue(stage)

    def gemv(
        fragments: Any,  # of the gate, uint8 [fragment rows, spans, fragments of a span, fragment]
        others: Any,  # of what it lets through
        x: Any, x_kind: Any,  # [k], of a kind by its place in KINDS
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [n] and the gate: kernels/epilogue/results.py
        other_bias: Any, other_kind: Any,
        which: Any,  # activation, by its place in GATES
        n: Any, k: Any, spans: Any, splits: Any,
    ) -> None:  # fmt: skip
        place, sums = sum_up(fragments, others, XRows(x, x_kind, uint32(1), k), spans, splits)
        gate, up = Result(y, y_kind, bias, bias_kind), Result(y, y_kind, other_bias, other_kind)
        finish(sums, gate, up, which, place, splits, n)

    parameters = (uint64, uint64, uint64, uint32, *(uint64, uint32) * 3) + (uint32,) * 5
    name = f"gated gemv_int16 of {stage.layout.name}{', small blocks' * stage.small}"
    name += f", {stage.rows} rows of weights"
    return kernel_of(name, gemv, parameters, stage, HOPPER)


def experts_kernel(
    word: str, stage: ExpertStage, ids_per_lane: int, integers: bool = False, matrices: int = 1
) -> Kernel:
    """The kernel of a stage: block (use, 32 or 64 rows of its expert); ``matrices``: 2 with a gate.

    A block serves a use of an expert, or a few uses of one, which each warp finds by itself.
    """
    ring, size, warps, columns = stage.count * stage.length, stage.size, stage.warps, stage.columns
    rows, fragment_rows = stage.rows // matrices, stage.fragment_rows // matrices
    find, uses_offset, sum_count = finder(columns, ids_per_lane), stage.uses, stage.numbers
    stream = streamer(
        stage,
        weight_fetcher(stage, matrices),
        use_fetcher(stage),
        multiplier_of(stage, integers),
        early=False,
        word=as_it_comes,
    )
    finish = use_epilogue(stage) if matrices == 1 else gated_use_epilogue(stage)

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
        hopper.take_turn()  # ids, which say where weights are, may come from the previous kernel
        warp_at = ptx.shared_base() + warp * ring
        uses_at = ptx.shared_base() + uses_offset + warp * (4 * columns)
        served, expert = find(uses_at, ids, use, uses, experts, lane)
        if expert == NO_EXPERT:
            row = warp * 32 + lane
            if row < rows and first + row < n:
                ptx.store4(address(y, use, n, first + row, 4), uint32(NAN))
            return
        if served == 0:
            return
        apart, beside = uint64(spans) * size, others - fragments
        tile_at = (uint64(expert) * height + uint64(cuda.blockIdx.y) * fragment_rows) * apart
        w = Weights(fragments + tile_at, apart, beside)
        rows_of_x = UseRows(x, uint32(0), uses_at, served, uses_per_row, k)
        sums = cuda.local.array(sum_count, float32)
        for i in range(sum_count):
            sums[i] = float32(0)
        place = WarpPlace(use, uint32(0), warp, uint64(warps))
        stream(warp_at, lane, place, spans, spans, w, rows_of_x, sums)
        finish(sums, y, which, first, rows_of_x, n)

    parameters = (uint64,) * 5 + (uint32,) * 8
    name = f"{word} of experts of {stage.layout.name}, {columns} of {32 * ids_per_lane} uses, {rows} rows"
    return kernel_of(name, gemv, parameters, stage, MIN_CAPABILITY, max_blocks=0)


def kernel_of(
    name: str, function: Any, parameters: Any, stage: GemvStage, least: Any, max_blocks: int | None = None
) -> Kernel:
    """The kernel of a stage: its threads, its shared memory, and its blocks on a multiprocessor."""
    return Kernel(
        name, function, *parameters, threads=32 * stage.warps, shared=stage.shared, blocks=stage.blocks,
        least=least, early=True, max_blocks=stage.blocks if max_blocks is None else max_blocks,
    )  # fmt: skip
