"""The positions that rows of queries see, and the part of them that a block goes over."""

from __future__ import annotations

from typing import Any

from ..intrinsics.atoms import inlined
from ..intrinsics.language import int32, uint32


@inlined
def limits(start: Any, last: Any, queries: Any, causal: Any, window: Any, length: Any) -> Any:
    """Of rows ``start`` … ``last``: the first position that one sees, and that all see; likewise the ends."""
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
