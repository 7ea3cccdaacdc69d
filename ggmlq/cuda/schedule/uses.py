"""Uses of experts, for products with few tokens: each block finds the uses that it serves, and their expert.

A *use* is a number t · U + u: token t is multiplied by the u-th of its U experts. cuda:gemv and
cuda:small_m_codes start a block for each use. It serves that use and the next ones of the same expert, up
to as many as the kernel has columns. Blocks whose use is served by an earlier block end at once. So every
block finds its work without the host, and an expert's weights are read once for a few tokens.

Every warp looks for itself: it reads all ids, up to 32 a lane.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import bf16x2, integers, ptx, votes
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32, uint64

IDS_PER_LANE = 2, 8  # ids that a lane reads: kernels for up to 64 and 256 uses
MOST_LISTED = 32 * IDS_PER_LANE[-1]
NO_EXPERT, NO_USE = 0xFFFFFFFF, 0xFFFFFFFE
NAN = 0x7FC00000  # bits of a float32


@cache
def expert_of(uncached: bool = False) -> Any:
    """The device function for the expert of a use, NO_EXPERT where its id, an int64, names none.

    ``uncached``: for blocks that start before the previous kernel ends, whose first cache may hold older ids.
    """
    load8 = integers.load8_l2 if uncached else bf16x2.load8

    @inlined
    def expert(ids: Any, use: Any, experts: Any) -> Any:
        words = load8(ids + uint64(use) * uint64(8))
        return words[0] if words[1] == uint32(0) and words[0] < experts else uint32(NO_EXPERT)

    return expert


@cache
def finder(columns: int, ids_per_lane: int) -> Any:
    """The device function that lists the uses of a warp at an address of shared memory.

    It returns how many uses there are, none if an earlier block serves them, and the expert.
    """
    expert_of_use, equal, ones, put = expert_of(), votes.lanes_where_equal, votes.count, ptx.put

    @inlined
    def find(at: Any, ids: Any, use: Any, uses: Any, experts: Any, lane: Any) -> Any:
        expert, others = expert_of_use(ids, use, experts), cuda.local.array(ids_per_lane, uint32)
        for i in range(ids_per_lane):
            others[i] = uint32(NO_USE)
            if lane + uint32(32 * i) < uses:
                others[i] = expert_of_use(ids, lane + uint32(32 * i), experts)
        until = uint32(uint32(uint32(1) << (use & uint32(31))) - uint32(1))
        below = uint32(uint32(uint32(1) << lane) - uint32(1))
        count = before = uint32(0)
        for i in range(ids_per_lane):
            here = equal(others[i], expert)
            if use >> uint32(5) == uint32(i):
                before = uint32(count + ones(here & until))
            place = uint32(uint32(count + ones(here & below)) - before)  # enormous for uses before this one
            if use >> uint32(5) <= uint32(i) and others[i] == expert and place < uint32(columns):
                put(at + place * uint32(4), lane + uint32(32 * i))
            count = uint32(count + ones(here))
        cuda.syncwarp()
        served = min(uint32(count - before), uint32(columns))
        return (served if before % uint32(columns) == uint32(0) else uint32(0)), expert

    return find
