"""Parameters of attention's kernels, the K/V range of a block and the visible range of a query row.

A *unit* is a KV head of a sequence. All query heads of its group (GQA) and all their queries are its *rows*:
row = head in the group · queries + query, so one read of K and V serves them all. A block has some rows of a
unit and goes over one *split* of the positions that they see, in *steps* of as many as its plan says.

"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...intrinsics import ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.language import cuda, int32, types, uint32, uint64


class Addresses(NamedTuple):
    """Addresses of arrays, 0 for one that is not there."""

    q: Any  # [unit, row, column]
    k: Any
    v: Any
    y: Any  # [unit, row, column]
    partials: Any  # of split-KV: split_kv.py
    mask: Any  # float32 [B, H, T, S]
    lengths: Any  # int64 [B]
    sinks: Any  # float32 [H]
    slopes: Any  # float32 [H], ALiBi's


class Strides(NamedTuple):
    """Bytes from one to the next."""

    k_sequence: Any
    k_head: Any
    k_position: Any
    v_sequence: Any
    v_head: Any
    v_position: Any
    mask_sequence: Any
    mask_head: Any
    mask_query: Any
    mask_position: Any


class Sizes(NamedTuple):
    """Numbers of 32 bits."""

    queries: Any  # of a head
    group: Any  # query heads that share a KV head
    positions: Any
    kv_heads: Any
    window: Any  # positions that a query sees; 0 for no limit
    causal: Any  # 0 or 1
    q_kind: Any  # kv_tiles.py: KINDS
    y_kind: Any
    fixed_steps: Any  # of a split whose bits depend on no other row; 0 for even splits
    y_columns: Any
    v_column: Any  # first column of the values in the keys


class Arguments(NamedTuple):
    """The arguments of mma.py, swap_ab.py and hopper.py alike, beside the scale."""

    addresses: Any
    strides: Any
    sizes: Any


def words_of(word: Any, record: Any) -> Any:
    """The type of a kernel's parameter that has the words of a record."""
    return types.UniTuple(word, len(record._fields))


# The last two: the scale, and a cap, or the number of units.
PARAMETERS = words_of(uint64, Addresses), words_of(uint64, Strides), words_of(uint32, Sizes), uint32, uint32


@inlined
def arguments_of(addresses: Any, strides: Any, sizes: Any) -> Any:
    """The records of a kernel's words."""
    return Arguments(Addresses(*addresses), Strides(*strides), Sizes(*sizes))


#     positions   0 ───────────────────────────────────────────────── length
#     visible         begin ├──────────────────────────────┤ end           of one row at least
#                        │  common_begin ├────────┤ common_end  │          of all rows: no mask there
#     steps           ├──────┼──────┼──────┼──────┼──────┤
#     splits          ├── block x = 0 ─────┼── block x = 1 ┤               split-KV


class SeenRange(NamedTuple):
    """Positions that rows see."""

    begin: Any  # one of them at least
    common_begin: Any  # all of them
    common_end: Any
    end: Any


class KvRange(NamedTuple):
    """The rows of a block and the part of the positions that it goes over."""

    rows: Any  # that exist
    common_begin: Any  # positions that all rows see
    common_end: Any
    end: Any  # of the positions that a row sees
    first_step: Any  # of the block's split
    end_step: Any


class Place(NamedTuple):
    """Query rows that a block takes."""

    unit: Any
    units: Any  # of the launch
    first_row: Any
    length: Any  # positions of the sequence


class Work(NamedTuple):
    """The rows of a block, and the split of their positions that it goes over."""

    place: Any
    kv: Any  # KvRange
    keys: Any  # address of position 0 of the unit's keys
    values: Any


class RowRanges(NamedTuple):
    """Visible K/V range of two query rows of a lane: arrays of two numbers."""

    begins: Any
    ends: Any


@inlined
def seen_range(start: Any, last: Any, queries: Any, causal: Any, window: Any, length: Any) -> Any:
    """Positions that the rows ``start`` … ``last`` see."""
    first_query = uint32(start) % queries
    last_query = first_query + (last - start)
    if last_query >= queries:  # rows of two heads: any query may be among them
        first_query, last_query = uint32(0), queries - uint32(1)
    behind = length - int32(queries)
    begin, common_begin, common_end, end = int32(0), int32(0), length, length
    if causal != 0:
        end = max(int32(0), min(length, behind + int32(last_query) + int32(1)))
        common_end = behind + int32(first_query) + int32(1)
    if window != 0:
        begin = max(int32(0), behind + int32(first_query) - int32(window) + int32(1))
        common_begin = behind + int32(last_query) - int32(window) + int32(1)
    return SeenRange(begin, common_begin, common_end, end)


@inlined
def steps_of_split(begin: Any, end: Any, step: Any, split: Any, splits: Any, fixed: Any) -> Any:
    """The first step of a split and the end: an even share, or ``fixed`` steps counted from position 0.

    Even shares depend on how many splits fill the card. With ``fixed`` the split of a position, and so the
    order in which a row's partials are added, depends on that position alone.
    """
    first, last = begin // step, (end + step - int32(1)) // step
    if fixed != 0:
        return max(first, int32(split * fixed)), min(last, int32((split + 1) * fixed))
    count = uint32(max(int32(0), last - first))
    start, stop = uint32(count * split) // splits, uint32(count * uint32(split + 1)) // splits
    return first + int32(start), first + int32(stop)


@inlined
def kv_range(sizes: Any, length: Any, start: Any, rows: Any, step: Any) -> Any:
    """The K/V range of up to ``rows`` rows from ``start`` on, in steps of ``step`` positions.

    The split is blockIdx.x.
    """
    all_rows = sizes.queries * sizes.group
    count = min(uint32(rows), all_rows - start)
    seen = seen_range(start, start + count - 1, sizes.queries, sizes.causal, sizes.window, length)
    split, splits = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
    first, last = steps_of_split(seen.begin, seen.end, int32(step), split, splits, sizes.fixed_steps)
    return KvRange(count, seen.common_begin, min(seen.common_end, seen.end), seen.end, first, last)


@inlined
def length_of(addresses: Any, sizes: Any, unit: Any) -> Any:
    """The number of positions of the sequence of a unit.

    It is read past L1: with a dependent launch swap_ab.py reads it once before the kernel before has ended,
    which may write it (KV append), and again behind that. A line in L1 would still have the old length.
    """
    load8, length = ptx.load8_l2, int32(sizes.positions)
    if addresses.lengths != 0:
        at = addresses.lengths + uint64(unit // sizes.kv_heads) * 8
        length = max(int32(0), min(length, int32(load8(at)[0])))
    return length


@inlined
def head_address(address: Any, sequence_stride: Any, head_stride: Any, sizes: Any, unit: Any) -> Any:
    """The address of position 0 of a unit's keys, or values."""
    sequence = unit // sizes.kv_heads
    head = unit - sequence * sizes.kv_heads
    return address + sequence * sequence_stride + head * head_stride


@inlined
def block_place(arguments: Any, rows: Any) -> Any:
    """The place of a block where blocks are (split, rows, unit).

    The last rows see most positions under a causal mask, and come first: what starts last is then short.
    """
    start = uint32(cuda.gridDim.y - cuda.blockIdx.y - 1) * rows
    unit, units = uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
    return Place(unit, units, start, length_of(arguments.addresses, arguments.sizes, unit))


@inlined
def work_at(place: Any, arguments: Any, rows: Any, step: Any) -> Any:
    """The work of up to ``rows`` rows at a place, in steps of ``step`` positions."""
    addresses, strides, sizes = arguments
    kv = kv_range(sizes, place.length, place.first_row, rows, step)
    keys = head_address(addresses.k, strides.k_sequence, strides.k_head, sizes, place.unit)
    values = head_address(addresses.v, strides.v_sequence, strides.v_head, sizes, place.unit)
    return Work(place, kv, keys, values)


@inlined
def queries_of(arguments: Any, place: Any, width: Any) -> Any:
    """The address of the query rows at a place."""
    sizes = arguments.sizes
    row = uint64(place.unit) * uint64(sizes.queries * sizes.group) + place.first_row
    return arguments.addresses.q + row * width * (uint64(4) if sizes.q_kind == 0 else uint64(2))


@inlined
def seen_by_query(query: Any, queries: Any, causal: Any, window: Any, length: Any) -> Any:
    """The first position that a query sees, and the end of those; the last query is at the last position."""
    place, begin, end = length - int32(queries) + int32(query), int32(0), length
    if causal != 0:
        end = min(length, place + int32(1))
    if window != 0:
        begin = place - int32(window) + int32(1)
    return begin, end


@inlined
def find_row_ranges(seen: Any, row: Any, step: Any, sizes: Any, length: Any) -> None:
    """Visible K/V range of rows ``row``, ``row`` + ``step``; rows past the end are clamped to the last."""
    for r in range(2):
        all_rows = sizes.queries * sizes.group
        query = uint32(min(row + uint32(r) * uint32(step), all_rows - 1)) % sizes.queries
        seen.begins[r], seen.ends[r] = seen_by_query(query, sizes.queries, sizes.causal, sizes.window, length)


@inlined
def new_row_ranges() -> Any:
    """The arrays of ranges; :func:`find_row_ranges` sets them."""
    return RowRanges(cuda.local.array(2, int32), cuda.local.array(2, int32))
