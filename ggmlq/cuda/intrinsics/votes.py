"""Exchanges among the lanes of a warp: votes with a bit a lane, and values of other lanes."""

from __future__ import annotations

from typing import Any

from .assembly import instruction, only_on_a_gpu, u32
from .atoms import inlined
from .language import uint32


@instruction(
    "{.reg .pred same; setp.eq.u32 same, $1, $2; vote.sync.ballot.b32 $0, same, -1;}",
    u32, u32, u32, effect=True,
)  # fmt: skip
def lanes_where_equal(a: Any, b: Any) -> Any:
    """A bit for each lane of the warp: 1 where its own a and b are equal."""
    only_on_a_gpu()


@instruction("popc.b32 $0, $1;", u32, u32)
def count(bits: Any) -> Any:
    """The number of bits that are 1."""
    return int(bits).bit_count()


@instruction("atom.shared.add.u32 $0, [$1], $2;", u32, u32, u32, effect=True)
def add_shared(address: Any, number: Any) -> Any:
    """Add to a word of shared memory, atomically; returns its value before."""
    only_on_a_gpu()


@instruction("shfl.sync.idx.b32 $0, $1, $2, 31, -1;", u32, u32, u32, effect=True)
def from_lane(value: Any, lane: Any) -> Any:
    """The value of lane ``lane``; each lane may name another one."""
    only_on_a_gpu()


@instruction("shfl.sync.bfly.b32 $0, $1, 1, 31, -1;", u32, u32, effect=True)
def from_neighbour(value: Any) -> Any:
    """The value of the other lane of a pair, 0 and 1, 2 and 3, and so on."""
    only_on_a_gpu()


@instruction("shfl.sync.up.b32 $0, $1, $2, 0, -1;", u32, u32, u32, effect=True)
def from_lane_before(value: Any, by: Any) -> Any:
    """The value of the lane ``by`` places before; the first ones get their own."""
    only_on_a_gpu()


@inlined
def sum_up_to(value: Any, lane: Any) -> Any:
    """The sum of the values of the lanes up to this one."""
    total = uint32(value)
    for i in range(5):
        before = from_lane_before(total, uint32(1 << i))
        if lane >= uint32(1 << i):
            total = uint32(total + before)
    return total
