"""A thread's position: its warp, its lane, and its elements of the operands of ``mma``."""

from __future__ import annotations

from typing import Any

from . import ptx
from .assembly import gpu_only, instruction, u32
from .atoms import inlined
from .language import cuda, uint32, uint64

ALL_LANES = 0xFFFFFFFF  # the mask of lanes in an exchange within a warp


@inlined
def warp_and_lane() -> Any:
    """The warp and the lane of this thread in its block."""
    thread = uint32(cuda.threadIdx.x)
    return thread >> 5, thread & 31


@inlined
def g_and_t(lane: Any) -> Any:
    """The g and t of lane 4 g + t: it has rows g and g + 8 of the wide operand and sums, columns by t."""
    return lane >> 2, lane & 3


@inlined
def warp_origin(rows: Any, columns: Any, across: Any) -> Any:
    """The first row and column of a warp's outputs in its tile."""
    warp, _ = warp_and_lane()
    return warp // across * rows, warp % across * columns


@inlined
def four_into(array: Any, at: Any, four: Any) -> None:
    """Store the four results of one wide load as neighbours in a local array."""
    array[at], array[at + 1], array[at + 2], array[at + 3] = four[0], four[1], four[2], four[3]


@inlined
def opaque_zero(count: Any) -> Any:
    """A zero that the assembler cannot know, made of a count below 2**31.

    A constant mask combined with it stays in a register. Alone the assembler would make it anew, an
    instruction for every use.
    """
    return uint32(uint32(count >> 16) & 0x8000)


# The address of a matrix element in GPU memory, computed in 64 bits from sizes of 32.


@inlined
def address(base: Any, row: Any, pitch: Any, column: Any, size: Any) -> Any:
    """The address of element [row, column] of a matrix with ``pitch`` columns, ``size`` bytes each."""
    return base + (uint64(row) * uint64(pitch) + uint64(column)) * size


@inlined
def store_four(at: Any, place: Any, end: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    """Store four neighbours from ``place`` on, or those of them that come before ``end``."""
    store_float = ptx.store_float
    if place < end:
        store_float(at, a)
    if place + 1 < end:
        store_float(at + 4, b)
    if place + 2 < end:
        store_float(at + 8, c)
    if place + 3 < end:
        store_float(at + 12, d)


# Exchanges among the lanes of a warp: votes with a bit a lane, and values of other lanes.


# A bit for each lane of the warp: 1 where its own a and b are equal.
lanes_where_equal = gpu_only("lanes_where_equal",
    "{.reg .pred same; setp.eq.u32 same, $1, $2; vote.sync.ballot.b32 $0, same, -1;}",
    u32, u32, u32,
)  # fmt: skip


@instruction("popc.b32 $0, $1;", u32, u32)
def count(bits: Any) -> Any:
    """The number of bits that are 1."""
    return int(bits).bit_count()


# Add to a word of shared memory, atomically; returns its value before.
add_shared = gpu_only("add_shared", "atom.shared.add.u32 $0, [$1], $2;", u32, u32, u32)
# The value of lane ``lane``; each lane may name another one.
from_lane = gpu_only("from_lane", "shfl.sync.idx.b32 $0, $1, $2, 31, -1;", u32, u32, u32)
# The value of the other lane of a pair, 0 and 1, 2 and 3, and so on.
from_neighbour = gpu_only("from_neighbour", "shfl.sync.bfly.b32 $0, $1, 1, 31, -1;", u32, u32)
# The value of the lane ``by`` places before; the first ones get their own.
from_lane_before = gpu_only("from_lane_before", "shfl.sync.up.b32 $0, $1, $2, 0, -1;", u32, u32, u32)


@inlined
def sum_up_to(value: Any, lane: Any) -> Any:
    """The sum of the values of the lanes up to this one."""
    total = value
    for i in range(5):
        before = from_lane_before(total, uint32(1 << i))
        if lane >= uint32(1 << i):
            total = uint32(total + before)
    return total
