"""Rows of uses: activations of experts that a product copies from where they lie, row by row.

A plan lists the uses of a tile (schedule/groups.py). Their rows of x lie anywhere, so no box brings them. The
warps beside the consumers copy them to the swizzled places of their chunks, two chunks a thread and row:

    row of a tile   0       1        2          3          4       5         …   8
    threads         0 … 3   8 … 11   16 … 19    24 … 27    4 … 7   12 … 15   …   0 … 3 again, of one warp
    chunks          0 … 3 of 16 bytes by one copy of these threads, 4 … 7 by the next

Eight neighbouring threads have rows r and r + 4, whose chunks lie in different banks.

A stage is full when the copy engine has brought its weights and each of these threads its chunks. Chunks of
rows beyond the last use, and of columns beyond K, become zeros without an access to memory.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, boxes
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32, uint64
from ..intrinsics.wide import wide_place
from ..packed.layout import STEP, PackedLayout
from ..rings.mma_copies import CHUNK, several
from .plain_rows import RowFetcher
from .producer import requester
from .tile import CONSUMER_THREADS, CONSUMER_WARPS, X_ROW_BYTES, WarpSpecializedTile

ROW_THREADS, HALF = 4, X_ROW_BYTES // 2  # threads that copy a row, half of its bytes at once
CHUNK_COLUMNS = STEP * CHUNK // X_ROW_BYTES


def copying_threads(tile: WarpSpecializedTile) -> int:
    """Threads of a block that copy: all beside the consumers."""
    return tile.threads - CONSUMER_THREADS


def rows_together(tile: WarpSpecializedTile) -> int:
    """Rows that these threads copy at once."""
    return copying_threads(tile) // ROW_THREADS


def barrier_maker(stages: int, copying: int) -> Any:
    """The device function by which one thread makes the barriers of stages that ``copying`` threads fill."""
    init, publish = barriers.init, barriers.publish_barriers

    @inlined
    def start(full: Any) -> None:
        for s in range(stages):
            init(uint32(full + uint32(8 * s)), uint32(1 + copying))
            init(uint32(full + uint32(8 * stages + 8 * s)), uint32(CONSUMER_WARPS))
        publish()

    return start


@cache
def row_finder(tile: WarpSpecializedTile) -> Any:
    """The device function for a thread's rows of a tile: the numbers of their chunks in x.

    Its facts: the list of uses, how many there are, uses of a row of x, chunks of such a row.
    """
    together, load = rows_together(tile), barriers.load_relaxed

    def row(i: int) -> Any:
        @inlined
        def first_chunk(facts: Any) -> Any:
            uses, count, per, chunks, first, chunk = facts
            place = min(uint32(first + uint32(i * together)), uint32(count - uint32(1)))
            use = uint32(load(uses + uint64(place) * uint64(4)))
            return (uint32(uint32(use // per) * chunks + chunk),)

        return first_chunk

    return several(row, -(-tile.columns // together))


@cache
def chunk_copier(tile: WarpSpecializedTile) -> Any:
    """The device function that starts a thread's copies of a stage.

    Its facts: the address of the stage's columns in x; the numbers of its rows' first chunks; its first row
    and the count of rows; places of its two chunks; its first column and the count of columns.
    """
    together, fragments, x_tile_bytes = rows_together(tile), tile.fragments, tile.x_tile_bytes
    copy16_inside, columns = bf16x2.copy16_inside, tile.columns

    def row(i: int) -> Any:
        @inlined
        def copy(facts: Any) -> Any:
            x, chunks, first, count, places, column, k = facts
            source, there = wide_place(chunks[i], uint32(CHUNK), x), uint32(first + uint32(i * together))
            for fragment in range(fragments):
                for half in range(2):
                    copy16_inside(
                        uint32(places[half] + uint32(i * together * X_ROW_BYTES + fragment * x_tile_bytes)),
                        source + uint64(fragment * X_ROW_BYTES + half * HALF), there, count,
                        uint32(column + uint32(fragment * STEP + half * STEP // 2)), k,
                    )  # fmt: skip
            return (count,)

        @inlined
        def copy_within(facts: Any) -> Any:
            if facts[2] < uint32(columns - i * together):  # the same in all lanes of a warp
                copy(facts)
            return (facts[3],)

        return copy if (i + 1) * together <= columns else copy_within

    return several(row, -(-tile.columns // together))


def use_fetcher(layout: PackedLayout, tile: WarpSpecializedTile) -> RowFetcher:
    """The functions of all threads beside the consumers, of which the first also fetches weights.

    x: its address, columns of a row, uses of a row. Its locator gives the list of a tile's uses, and how many
    there are from its first one on.
    """
    length, fragments, columns = tile.stage(layout), tile.fragments, tile.columns
    (fetch_weights, _), prefetch, arrive = (
        requester(layout, tile, brings_x=False), boxes.prefetch, barriers.arrive_when_copied,
    )  # fmt: skip
    find_rows, copy_chunks = row_finder(tile), chunk_copier(tile)

    @inlined
    def row_and_chunk() -> Any:
        thread = uint32(uint32(cuda.threadIdx.x) - uint32(CONSUMER_THREADS))
        of_eight = uint32((thread >> uint32(3) & uint32(3)) | uint32(thread & uint32(4)))
        first = uint32(uint32(thread >> uint32(5)) << uint32(3)) | of_eight
        return uint32(first), uint32(thread & uint32(ROW_THREADS - 1))

    @inlined
    def begin(fragments: Any, x: Any) -> None:
        if uint32(cuda.threadIdx.x) == uint32(CONSUMER_THREADS):
            prefetch(fragments)

    @inlined
    def rows(x: Any, listed: Any) -> Any:
        (_, k, per), (uses, count), (first, chunk) = x, listed, row_and_chunk()
        facts = uses, count, per, uint32(k // uint32(CHUNK_COLUMNS)), first, chunk
        return find_rows(facts), min(count, uint32(columns))

    @inlined
    def request_weights(ring: Any, full: Any, stage: Any, fragments: Any, i: Any, row: Any) -> None:
        if uint32(cuda.threadIdx.x) == uint32(CONSUMER_THREADS):
            fetch_weights(ring, full, stage, fragments, i, row)

    @inlined
    def request_x(ring: Any, full: Any, stage: Any, x: Any, i: Any, listed: Any) -> None:
        (x, k, _), (chunks, count), (first, chunk) = x, listed, row_and_chunk()
        place = uint32(uint32(ring + stage * uint32(length)) + uint32(first * uint32(X_ROW_BYTES)))
        place = uint32(place + uint32(uint32(chunk ^ (first & uint32(7))) << uint32(4)))
        step = uint32(i * uint32(fragments))
        column = uint32(uint32(step * uint32(STEP)) + uint32(chunk * uint32(CHUNK_COLUMNS)))
        source = wide_place(step, uint32(X_ROW_BYTES), x)
        places = place, uint32(place ^ uint32(HALF))
        copy_chunks((source, chunks, first, count, places, column, k))
        arrive(uint32(full + stage * uint32(8)))

    place = inlined(lambda listed: listed)
    return RowFetcher(begin, place, rows, request_weights, request_x)
