"""cuda:gemv of experts: which uses of an expert a block serves, and rows from and to where they are.

A *use* is a number t · U + u: token t meets the u-th of its experts. A block is started for each use and
for 32 or 64 rows of its expert. It serves that use and the next ones of the same expert, up to as many as
the kernel has columns; those of them that would serve fewer, because an earlier use serves them already, end
at once. So each block finds out alone what to do, and an expert's weights are read once for a few tokens.

Every warp finds it out for itself: it looks at all ids, two a lane or eight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ..intrinsics import bf16x2, ptx, votes
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..packed.layout import ROWS, STEP
from .stages import BOTH, FOUR, RESERVED, ROOMY, Stage

IDS_EACH = 2, 8  # of a lane: kernels for up to 64 and 256 uses
MOST = 32 * IDS_EACH[-1]  # uses
BESIDE = {BOTH: 3, FOUR: 2}  # blocks that a multiprocessor has registers for, by their strips
NO_EXPERT, NO_USE = 0xFFFFFFFF, 0xFFFFFFFE
NAN = 0x7FC00000


@dataclass(frozen=True)
class ExpertStage(Stage):
    """A stage of a block that has other blocks beside it on a multiprocessor: fewer warps."""

    @property
    def warps(self) -> int:
        return 8

    @property
    def count(self) -> int:
        return 3 if self.columns == 1 and self.strips == BOTH else 2

    @property
    def uses(self) -> int:
        """Where in shared memory the uses of a warp are kept, behind all else."""
        return super().shared

    @property
    def shared(self) -> int:
        return self.uses + 4 * self.warps * self.columns

    @property
    def blocks(self) -> int:
        """That a multiprocessor has registers and shared memory for."""
        return max(1, min(BESIDE[self.strips], ROOMY // (self.shared + RESERVED)))


@cache
def expert_of() -> Any:
    """The device function for the expert of a use: ids are int64, most values of which are no expert."""
    load8 = bf16x2.load8

    @inlined
    def expert(ids: Any, use: Any, experts: Any) -> Any:
        v = load8(ids + uint64(use) * uint64(8))
        return v[0] if v[1] == uint32(0) and v[0] < experts else uint32(NO_EXPERT)

    return expert


@cache
def finder(columns: int, ids_each: int) -> Any:
    """The device function that lists the uses of a warp, at an address of shared memory.

    Returns how many there are, none if an earlier use serves them; and the expert.
    """
    expert, equal, ones, put = expert_of(), votes.lanes_where_equal, votes.count, ptx.put

    @inlined
    def find(at: Any, ids: Any, own: Any, uses: Any, experts: Any, lane: Any) -> Any:
        mine, theirs = expert(ids, own, experts), cuda.local.array(ids_each, uint32)
        for i in range(ids_each):
            theirs[i] = uint32(NO_USE)
            if lane + uint32(32 * i) < uses:
                theirs[i] = expert(ids, lane + uint32(32 * i), experts)
        until = uint32(uint32(uint32(1) << (own & uint32(31))) - uint32(1))
        below = uint32(uint32(uint32(1) << lane) - uint32(1))
        found = before = uint32(0)
        for i in range(ids_each):
            here = equal(theirs[i], mine)
            if own >> uint32(5) == uint32(i):
                before = uint32(found + ones(here & until))
            place = uint32(uint32(found + ones(here & below)) - before)  # enormous where it comes before
            if own >> uint32(5) <= uint32(i) and theirs[i] == mine and place < uint32(columns):
                put(at + place * uint32(4), lane + uint32(32 * i))
            found = uint32(found + ones(here))
        cuda.syncwarp()
        served = min(uint32(found - before), uint32(columns))
        return (served if before % uint32(columns) == uint32(0) else uint32(0)), mine

    return find


@cache
def gatherer(stage: Stage) -> Any:
    """The device function that starts the copies of a stage's activations, from the rows of the uses."""
    of_weights, columns, pitch = stage.strips * stage.size, stage.columns, stage.pitch
    row_chunks, every = stage.row_bytes // 16, stage.span * STEP
    copy16_or_zeros, take4 = bf16x2.copy16_or_zeros, bf16x2.take4
    assert stage.floats, "bfloat16 would be made by a kernel before"
    assert row_chunks % 32 == 0, "a row is whole copies of a warp"

    @inlined
    def fetch(at: Any, lane: Any, x: Any, span: Any, uses: Any, count: Any, per: Any, k: Any) -> None:
        for c in range(columns):
            for first in range(0, row_chunks, 32):
                chunk = lane + uint32(first)
                column = span * uint32(every) + chunk * uint32(4)
                of_x, length = x, uint32(0)
                if uint32(c) < count and column < k:
                    row = take4(uses + uint32(4 * c)) // per
                    of_x, length = address(x, row, k, column, 4), uint32(16)
                copy16_or_zeros(at + uint32(of_weights + c * pitch) + chunk * uint32(16), of_x, length)

    return fetch


@cache
def finisher(stage: Stage) -> Any:
    """The device function that adds up what the warps have, the first first, and stores the uses' rows.

    A warp stores 32 rows of a use.
    """
    columns, warps, stride, numbers = stage.columns, stage.warps, stage.sums, stage.numbers
    base, put_float, take_float, take4 = ptx.shared_base, bf16x2.put_float, bf16x2.take_float, bf16x2.take4
    store_float, groups = ptx.store_float, stage.rows // 32

    @inlined
    def finish(sums: Any, y: Any, first: Any, uses: Any, count: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        if t * uint32(2) < uint32(columns):
            for i in range(numbers):  # rows g, g + 8 of a strip, columns 2 t, 2 t + 1
                row = g + uint32(i // 4 * ROWS + i // 2 % 2 * 8)
                column = uint32(i % 2) + t * uint32(2)
                if column < uint32(columns):
                    at = (warp * uint32(columns) + column) * uint32(stride) + row
                    put_float(base() + at * uint32(4), sums[i])
        cuda.syncthreads()
        column, beside = warp // uint32(groups), warp % uint32(groups) * uint32(32) + lane
        row = first + beside
        if row < n and column < count:
            total = float32(0)
            for i in range(warps):
                at = (uint32(i * columns) + column) * uint32(stride) + beside
                total += take_float(base() + at * uint32(4))
            store_float(address(y, take4(uses + column * uint32(4)), n, row, 4), total)

    assert columns * groups <= warps
    return finish
