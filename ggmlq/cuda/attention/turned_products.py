"""Products of a warp for up to eight rows of queries: keys and values are the wide operand of ``mma``.

Sixteen positions, or columns of values, take the sixteen rows of that operand; queries, or weights, are the
narrow one. So a warp makes half the products of products.py, and has half the scores and sums. Lane 4 g + t:

    scores   of rows 2 t, 2 t + 1 at two positions: s[2 r + i], row r, position i
    sums     of the same rows in two columns for each sixteen: o[4 n + 2 r + i], column i
    floats   positions g, g + 8, columns g, g + 8 of sixteen, by ldmatrix
    blocks   as turned_blocks.py says
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ..intrinsics import bf16x2, halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32
from .plan import EDGE, SIXTEEN, Plan
from .products import key_place, multiplier, query_place
from .turned_blocks import block_mixer, block_query_taker, block_scorer
from .unrolled import unrolled


class Products(NamedTuple):
    """Device functions of a plan."""

    take: Any  # (queries, q, z): queries of shared memory into registers, and where sums of blocks begin
    score: Any  # (keys, q, z, s)
    mix: Any  # (s, values, o)


def turned_products(plan: Plan) -> Products:
    """The products of a plan."""
    if plan.k in SIXTEEN:
        return Products(query_taker(plan), scorer(plan), mixer(plan))
    return Products(block_query_taker(plan), block_scorer(plan), block_mixer(plan))


@cache
def query_taker(plan: Plan) -> Any:
    """The device function ``take(queries, q, z)``: columns 2 t, 2 t + 1, also 8 on, of each sixteen."""
    pitch, take4 = plan.pitch(plan.width), bf16x2.take4

    def sixteen(j: Any, at: Any, q: Any) -> None:
        q[2 * j], q[2 * j + 1] = take4(at + uint32(32 * j)), take4(at + uint32(32 * j + 16))

    all_columns = unrolled(plan.width // EDGE, sixteen)

    @inlined
    def take(queries: Any, q: Any, z: Any) -> None:
        g, t = g_and_t(warp_and_lane()[1])
        all_columns(0, queries + g * uint32(pitch) + t * uint32(4), q)

    return take


@cache
def scorer(plan: Plan) -> Any:
    """The device function ``score(keys, q, z, s)``; two sums, so that a product waits for no neighbour."""
    pitch, mma, load, add = plan.pitch(plan.width), multiplier(plan.k), halves.load_matrices, ptx.add

    def two(j: Any, at: Any, q: Any, v: Any) -> None:
        for i in range(2):
            a = load(at + uint32(64 * j + 32 * i))
            n, o = 4 * j + 2 * i, 4 * i
            w = mma(a[0], a[1], a[2], a[3], q[n], q[n + 1], v[o], v[o + 1], v[o + 2], v[o + 3])
            v[o], v[o + 1], v[o + 2], v[o + 3] = w[0], w[1], w[2], w[3]

    all_columns = unrolled(plan.width // (2 * EDGE), two)

    @inlined
    def score(keys: Any, q: Any, z: Any, s: Any) -> None:
        v = cuda.local.array(8, float32)
        for i in range(8):
            v[i] = float32(0)
        all_columns(0, keys + query_place(warp_and_lane()[1], pitch), q, v)
        for i in range(2):
            for r in range(2):
                s[2 * r + i] = add(v[2 * i + r], v[4 + 2 * i + r])

    return score


@cache
def mixer(plan: Plan) -> Any:
    """The device function ``mix(s, values, o)``: adds weights × values to the sums."""
    pitch, mma, load, place = plan.pitch(plan.width_v), multiplier(plan.v), halves.load_transposed, key_place
    narrowed, transposed = bf16x2.narrowed if plan.v == "bf16" else halves.narrowed, halves.transposed

    def sixteen(j: Any, at: Any, low: Any, high: Any, o: Any) -> None:
        a, n = load(at + uint32(2 * EDGE * j)), 4 * j
        v = mma(a[0], a[1], a[2], a[3], low, high, o[n], o[n + 2], o[n + 1], o[n + 3])
        o[n], o[n + 2], o[n + 1], o[n + 3] = v[0], v[1], v[2], v[3]

    all_columns = unrolled(plan.width_v // EDGE, sixteen)

    @inlined
    def mix(s: Any, values: Any, o: Any) -> None:
        low, high = transposed(narrowed(s[0], s[2])), transposed(narrowed(s[1], s[3]))
        all_columns(0, values + place(warp_and_lane()[1], pitch), low, high, o)

    return mix
