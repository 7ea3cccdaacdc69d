"""The GPU's encoder of iq4_nl: sixteen scales are tried, a quarter by each thread; see formats/iq4_nl.py.

The sums of a try run over all 32 values in ggml's order, so each thread gets them all; which try is best is
found in order too. Products and sums are rounded one after the other, never fused.
"""

from __future__ import annotations

from typing import Any

from ...formats._levels import LEVELS, MIDDLES
from ...formats._search import TINY
from ...formats.iq4_nl import DTYPE, QS
from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import ALL_LANES
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from ._block import LANES, RUN, VALUES, block_kernel, extreme, nibbles, store_word, two_words

TRIES = 16
FIRST = float(LEVELS[0])
EDGES = [float32(edge) for edge in MIDDLES.tolist()]


def steps(numbers: Any) -> Any:
    """The device function that gives the number of the level nearest to a value; NaN is above all.

    A step for each edge, since a look-up in a table of edges would go to memory.
    """
    first = numbers[0]

    @inlined
    def lowest(v: Any) -> Any:
        return first

    nearest = lowest
    for edge, number in zip(EDGES, numbers[1:], strict=True):
        nearest = _beyond(nearest, edge, number)
    return nearest


def _beyond(below: Any, edge: Any, number: Any) -> Any:
    @inlined
    def nearest(v: Any) -> Any:
        return below(v) if v < edge else number

    return nearest


rank = steps([int32(i) for i in range(16)])
level = steps([float32(value) for value in LEVELS.tolist()])


@inlined
def whole_block(all_values: Any, v: Any) -> None:
    """The 32 values of a block, of which each of its threads has eight."""
    first = int32(uint32(cuda.threadIdx.x) & uint32(28))
    for i in range(RUN):
        value = v[(i & 3) + 4 * (i >> 4)]
        all_values[i] = cuda.shfl_sync(ALL_LANES, value, int32(first + int32((i & 15) >> 2)))


@inlined
def start_of(number: Any, largest: Any) -> Any:
    """The inverse scale of a try: the first from the extreme value, the others beside it."""
    if number == int32(0):
        return ptx.div(float32(1), ptx.div(-largest, float32(FIRST)))
    return ptx.div(ptx.add(float32(int32(number - int32(8))), float32(FIRST)), largest)


@inlined
def best_scale(x: Any, part: Any, largest: Any) -> Any:
    """The scale of the best of sixteen tries, each refitted to the levels that it gives."""
    scale, best = float32(0), float32(0)
    first = int32(uint32(cuda.threadIdx.x) & uint32(28))
    for turn in range(TRIES // LANES):
        inverse = start_of(int32(int32(LANES * turn) + int32(part)), largest)
        lx, l2 = float32(0), float32(0)
        for i in range(RUN):
            this = level(ptx.mul(inverse, x[i]))
            weighted = ptx.mul(ptx.mul(x[i], x[i]), this)
            lx, l2 = ptx.add(lx, ptx.mul(weighted, x[i])), ptx.add(l2, ptx.mul(weighted, this))
        for lane in range(LANES):  # the tries of this turn, in order
            a = cuda.shfl_sync(ALL_LANES, lx, int32(first + int32(lane)))
            b = cuda.shfl_sync(ALL_LANES, l2, int32(first + int32(lane)))
            if b > float32(0) and ((turn == 0 and lane == 0) or ptx.mul(a, a) > ptx.mul(best, b)):
                scale = ptx.div(a, b)
                best = ptx.mul(scale, a)
    return scale


@inlined
def encode(v: Any, part: Any, at: Any, live: Any) -> Any:
    largest = extreme(v, part)
    x = cuda.local.array(RUN, float32)
    whole_block(x, v)
    scale = best_scale(x, part, largest)
    if abs(largest) < float32(TINY):
        scale = float32(0)
    inverse = ptx.div(float32(1), scale) if scale != float32(0) else float32(0)
    q = cuda.local.array(VALUES, int32)
    for i in range(VALUES):
        q[i] = rank(ptx.mul(inverse, v[i]))
    bits = ptx.half_bits(scale)
    near, far = two_words(q)
    if live:
        store_word(at + uint64(QS) + uint64(part) * uint64(4), nibbles(near, far))
        if part == uint32(0):
            ptx.store2(at, bits)
    return bits


@family()
def kernel() -> Kernel:
    return block_kernel("quantize iq4_nl", encode, DTYPE.itemsize)
