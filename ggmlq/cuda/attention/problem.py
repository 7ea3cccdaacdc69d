"""The rows of queries of a block, the positions that they see, and the part of them that it goes over."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import integers
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, int32, types, uint32, uint64

# Parameters. Addresses: q, k, v, y, parts, mask, lengths, sinks, slopes; 0 for what there is not.
ADDRESSES = types.UniTuple(uint64, 9)
# Bytes from one to the next: sequences, heads and positions of k, those of v, then [B, H, T, S] of the mask.
STRIDES = types.UniTuple(uint64, 10)
# Queries, heads of a group, positions, heads of keys, window, causal, kinds of q and of y, steps of a fixed
# part, columns of y, the first column of values in keys.
SIZES = types.UniTuple(uint32, 11)


@inlined
def limits(start: Any, last: Any, queries: Any, causal: Any, window: Any, length: Any) -> Any:
    """The first position that one of the rows ``start`` … ``last`` sees, that all see; likewise the ends."""
    first_query = uint32(start) % queries
    last_query = first_query + (last - start)
    if last_query >= queries:  # rows of two heads
        first_query, last_query = uint32(0), queries - uint32(1)
    behind = length - int32(queries)
    begin, begin_of_all, end_of_all, end = int32(0), int32(0), length, length
    if causal != uint32(0):
        end = max(int32(0), min(length, behind + int32(last_query) + int32(1)))
        end_of_all = behind + int32(first_query) + int32(1)
    if window != uint32(0):
        begin = max(int32(0), behind + int32(first_query) - int32(window) + int32(1))
        begin_of_all = behind + int32(last_query) - int32(window) + int32(1)
    return begin, begin_of_all, end_of_all, end


@inlined
def part_of(begin: Any, end: Any, step: Any, part: Any, parts: Any, fixed: Any) -> Any:
    """The steps of a part: an even share, or ``fixed`` steps counted from position 0."""
    first, last = begin // step, (end + step - int32(1)) // step
    if fixed != uint32(0):
        return max(first, int32(part * fixed)), min(last, int32((part + uint32(1)) * fixed))
    count = uint32(max(int32(0), last - first))
    start, stop = uint32(count * part) // parts, uint32(count * uint32(part + uint32(1))) // parts
    return first + int32(start), first + int32(stop)


@inlined
def seen_by(query: Any, queries: Any, causal: Any, window: Any, length: Any) -> Any:
    """The first position that a query sees, and the end of those; the last query is at the last position."""
    place, begin, end = length - int32(queries) + int32(query), int32(0), length
    if causal != uint32(0):
        end = min(length, place + int32(1))
    if window != uint32(0):
        begin = place - int32(window) + int32(1)
    return begin, end


@inlined
def length_of(addresses: Any, sizes: Any, unit: Any) -> Any:
    """The number of positions of the sequence of a unit, which is a head of keys of a sequence."""
    load8, length = integers.load8_l2, int32(sizes[2])
    if addresses[6] != uint64(0):
        at = addresses[6] + uint64(unit // sizes[3]) * uint64(8)
        length = max(int32(0), min(length, int32(load8(at)[0])))
    return length


@cache
def block_finder(rows_count: int, step: int) -> Any:
    """The device function that finds what a block of so many rows does, in steps of so many positions.

    ``start``: its first row. It gives their number, the first position that all see and the end of those,
    then the end of what one sees, the first step and the end of steps.
    """

    @inlined
    def find(sizes: Any, length: Any, start: Any) -> Any:
        rows = sizes[0] * sizes[1]
        count = min(uint32(rows_count), rows - start)
        begin, begin_of_all, end_of_all, end = limits(
            start, start + count - uint32(1), sizes[0], sizes[5], sizes[4], length
        )
        part, parts = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        first, last = part_of(begin, end, int32(step), part, parts, sizes[8])
        return count, (begin_of_all, min(end_of_all, end)), end, first, last

    return find


@cache
def placer(rows_count: int) -> Any:
    """The device function for a block's unit, first row and positions, where blocks are (part, rows, unit).

    Of rows the last ones, which see most, come first.
    """

    @inlined
    def place(addresses: Any, sizes: Any) -> Any:
        start = uint32(cuda.gridDim.y - cuda.blockIdx.y - 1) * uint32(rows_count)
        unit = uint32(cuda.blockIdx.z)
        return unit, start, length_of(addresses, sizes, unit)

    return place


@cache
def item_placer(rows_count: int) -> Any:
    """The device function for the unit and the first row of an item, those with most positions first.

    ``of_all``: units. Where no item has rows of two heads, the last queries of all heads come first.
    """

    @inlined
    def place(item: Any, of_all: Any, sizes: Any) -> Any:
        per_head = sizes[0] // uint32(rows_count)
        if per_head * uint32(rows_count) == sizes[0]:
            heads = of_all * sizes[1]
            turn = item // heads
            head = item - turn * heads
            unit = head // sizes[1]
            tile = (head - unit * sizes[1]) * per_head + per_head - uint32(1) - turn
        else:
            turn = item // of_all
            unit = item - turn * of_all
            tile = (sizes[0] * sizes[1] + uint32(rows_count - 1)) // uint32(rows_count) - uint32(1) - turn
        return unit, tile * uint32(rows_count)

    return place


@cache
def rows_finder(first: int) -> Any:
    """The device function for the address of a unit's keys or values, whose strides begin at ``first``."""
    second = first + 1

    @inlined
    def find(address: Any, strides: Any, sizes: Any, unit: Any) -> Any:
        sequence = unit // sizes[3]
        head = unit - sequence * sizes[3]
        return address + uint64(sequence) * strides[first] + uint64(head) * strides[second]

    return find


@inlined
def queries_of(addresses: Any, sizes: Any, start: Any, width: Any, unit: Any) -> Any:
    """The address of a unit's rows of queries from ``start`` on."""
    row = uint64(unit) * uint64(sizes[0] * sizes[1]) + uint64(start)
    return addresses[0] + row * uint64(width) * (uint64(4) if sizes[6] == uint32(0) else uint64(2))


@inlined
def look(begins: Any, ends: Any, row: Any, step: Any, sizes: Any, length: Any) -> None:
    """Find what the rows ``row``, ``row`` + ``step`` see; those beyond the last see what it sees."""
    for r in range(2):
        query = uint32(min(row + uint32(r) * uint32(step), sizes[0] * sizes[1] - uint32(1))) % sizes[0]
        begins[r], ends[r] = seen_by(query, sizes[0], sizes[5], sizes[4], length)
