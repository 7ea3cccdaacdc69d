"""Scores of turned_wide.py to weights: exponents beside a base of each row, on to shared memory."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import bf16x2, halves, ptx, votes
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import ALL_LANES, g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32
from .plan import EDGE
from .problem import seen_by
from .softmax import NEVER, power_of_two
from .turned_wide_plan import EIGHTS, LINE, POSITIONS, ROWS, WARPS
from .unrolled import unrolled

MARGIN = float32(8)  # powers of two by which a score may exceed the base of its row


@cache
def hider() -> Any:
    """The device function that hides positions which a row does not see; ``position``: the lane's first."""

    def eight(j: Any, s: Any, position: Any, row: Any, sizes: Any, length: Any) -> None:
        for e in range(2):
            this = min(row + uint32(8 * j + e), sizes[0] * sizes[1] - uint32(1))
            begin, end = seen_by(uint32(this) % sizes[0], sizes[0], sizes[5], sizes[4], length)
            for i in range(2):
                if position + int32(i) < begin or position + int32(i) >= end:
                    s[4 * j + 2 * i + e] = NEVER

    return unrolled(EIGHTS, eight)


@cache
def growth_finder() -> Any:
    """The device function that sets ``most[0]`` to the most by which a lane's scores exceed their bases."""
    larger, fma = ptx.larger, ptx.fma

    def eight(j: Any, s: Any, bases: Any, factor: Any, most: Any) -> None:
        for e in range(2):
            top = larger(s[4 * j + e], s[4 * j + 2 + e])
            most[0] = larger(most[0], fma(top, factor, -bases[2 * j + e]))

    return unrolled(EIGHTS, eight)


@cache
def weigher() -> Any:
    """The device function that makes weights of scores, adds them to the totals, and packs pairs of rows."""
    fma, add, exp2, narrowed = ptx.fma, ptx.add, power_of_two, halves.narrowed

    def eight(j: Any, s: Any, bases: Any, factor: Any, totals: Any, pairs: Any) -> None:
        for i in range(2):
            for e in range(2):
                s[4 * j + 2 * i + e] = exp2(fma(s[4 * j + 2 * i + e], factor, -bases[2 * j + e]))
            pairs[2 * j + i] = narrowed(s[4 * j + 2 * i], s[4 * j + 2 * i + 1])
        for e in range(2):
            totals[2 * j + e] = add(totals[2 * j + e], add(s[4 * j + e], s[4 * j + 2 + e]))

    return unrolled(EIGHTS, eight)


@cache
def base_raiser() -> Any:
    """The device function by which all warps raise the bases of their rows to the maxima of this step."""
    larger, mul, sub, exp2, put_float, take_float = (
        ptx.larger, ptx.mul, ptx.sub, power_of_two, bf16x2.put_float, bf16x2.take_float
    )  # fmt: skip

    def tell(j: Any, s: Any, to: Any, g: Any) -> None:
        for e in range(2):
            top = larger(s[4 * j + e], s[4 * j + 2 + e])
            for apart in (4, 8, 16):
                top = larger(top, cuda.shfl_xor_sync(ALL_LANES, top, apart))
            if g == uint32(0):
                put_float(to + uint32(4 * (8 * j + e)), top)

    def hear(j: Any, o: Any, maxima: Any, factor: Any, bases: Any, totals: Any) -> None:
        for e in range(2):
            top, row = NEVER, maxima + uint32(4 * (8 * j + e))
            for w in range(WARPS):
                top = larger(top, take_float(row + uint32(4 * ROWS * w)))
            base = larger(bases[2 * j + e], mul(top, factor))
            ratio = exp2(sub(bases[2 * j + e], base))
            bases[2 * j + e], totals[2 * j + e] = base, mul(totals[2 * j + e], ratio)
            for n in range(2):
                for i in range(2):
                    at = 4 * EIGHTS * n + 4 * j + 2 * i + e
                    o[at] = mul(o[at], ratio)

    tell_all, hear_all = unrolled(EIGHTS, tell), unrolled(EIGHTS, hear)

    @inlined
    def grow(s: Any, o: Any, notes: Any, factor: Any, bases: Any, totals: Any) -> None:
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        tell_all(0, s, notes + warp * uint32(4 * ROWS) + t * uint32(8), g)
        cuda.syncthreads()
        hear_all(0, o, notes + t * uint32(8), factor, bases, totals)

    return grow


@cache
def growth_teller() -> Any:
    """The device function that hides positions, and tells if a score of this step exceeds its base by much.

    ``flags``: where warps tell each other. Behind it nobody reads the step's keys and values any more.
    """
    hide, find_growth, equal, put4, take16 = (
        hider(), growth_finder(), votes.lanes_where_equal, halves.put4, ptx.take16
    )  # fmt: skip

    @inlined
    def grown(
        s: Any, origin: Any, seen: Any, start: Any, sizes: Any, length: Any, bases: Any, factor: Any,
        flags: Any,
    ) -> Any:  # fmt: skip
        warp, lane = warp_and_lane()
        (g, t), most = g_and_t(lane), cuda.local.array(1, float32)
        if origin < seen[0] or origin + int32(POSITIONS) > seen[1]:
            position = origin + int32(warp * uint32(EDGE) + g * uint32(2))
            hide(0, s, position, start + t * uint32(2), sizes, length)
        most[0] = NEVER
        find_growth(0, s, bases, factor, most)
        same = equal(uint32(most[0] > MARGIN), uint32(0))
        if lane == uint32(0):
            put4(flags + warp * uint32(4), ~uint32(same))
        cuda.syncthreads()
        words = take16(flags)
        return uint32(words[0]) | uint32(words[1]) | uint32(words[2]) | uint32(words[3]) != uint32(0)

    return grown


@cache
def weight_putter() -> Any:
    """The device function that puts packed weights into a swizzled tile [row, position]."""
    put = halves.put_transposed

    def two(j: Any, pairs: Any, to: Any) -> None:
        n = 4 * j
        put(to + uint32(16 * LINE * j), pairs[n], pairs[n + 1], pairs[n + 2], pairs[n + 3])

    put_all = unrolled(EIGHTS // 2, two)

    @inlined
    def place(pairs: Any, tile: Any) -> None:
        warp, lane = warp_and_lane()
        row, chunk = lane & uint32(7), uint32(2) * warp + (lane >> uint32(3) & uint32(1))
        row_at = (lane >> uint32(4)) * uint32(8 * LINE) + row * uint32(LINE)
        put_all(0, pairs, tile + row_at + ((chunk ^ row) << uint32(4)))

    return place
