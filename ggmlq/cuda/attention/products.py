"""Products of a warp by ``mma``: sixteen rows of queries times keys, and weights times values.

A lane 4 g + t has rows g and g + 8. Of the scores it has four numbers for each eight positions: positions
2 t and 2 t + 1 of row g, then of row g + 8. Two such fours, rounded to 16 bits, are at once the wide operand
of the next ``mma``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import bf16x2, codes8, halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, uint32
from .plan import EDGE, Plan
from .unrolled import unrolled


def multiplier(name: str) -> Any:
    """The ``mma`` for a type's tiles."""
    return bf16x2.mma if name == "bf16" else codes8.mma_f16


@inlined
def query_place(lane: Any, pitch: Any) -> Any:
    """The offset of the row that a lane names for the wide operand."""
    row = (lane & uint32(7)) + (lane & uint32(8))
    return row * uint32(pitch) + (lane >> uint32(4)) * uint32(16)


@inlined
def key_place(lane: Any, pitch: Any) -> Any:
    """The offset of the row that a lane names for sixteen keys."""
    row = (lane & uint32(7)) + (lane >> uint32(4)) * uint32(8)
    return row * uint32(pitch) + (lane >> uint32(3) & uint32(1)) * uint32(16)


@cache
def clearer(eights: int) -> Any:
    """The device function that sets so many times eight numbers to zero."""

    def clear(j: Any, s: Any) -> None:
        for i in range(8):
            s[8 * j + i] = float32(0)

    return unrolled(eights, clear)


@cache
def scorer(plan: Plan) -> Any:
    """The device function ``score(queries, keys, s)``: scores of a warp's rows and positions."""
    groups, steps, pitch = plan.span // EDGE, plan.width // EDGE, plan.pitch(plan.width)
    mma, load, add = multiplier(plan.k), halves.load_matrices, ptx.add

    def sixteen(j: Any, a: Any, keys: Any, s: Any) -> None:
        b = load(keys + uint32(j * EDGE * pitch))
        o = 8 * j
        v = mma(a[0], a[1], a[2], a[3], b[0], b[1], s[o], s[o + 1], s[o + 2], s[o + 3])
        s[o], s[o + 1], s[o + 2], s[o + 3] = v[0], v[1], v[2], v[3]
        v = mma(a[0], a[1], a[2], a[3], b[2], b[3], s[o + 4], s[o + 5], s[o + 6], s[o + 7])
        s[o + 4], s[o + 5], s[o + 6], s[o + 7] = v[0], v[1], v[2], v[3]

    all_positions, one = unrolled(groups, sixteen), unrolled(1, sixteen)

    clear_all = clearer(groups)

    @inlined
    def score(queries: Any, keys: Any, s: Any) -> None:
        clear_all(0, s)
        for step in range(steps):
            a = load(queries + uint32(step) * uint32(2 * EDGE))
            all_positions(0, a, keys + uint32(step) * uint32(2 * EDGE), s)

    @inlined
    def score_in_two(queries: Any, keys: Any, s: Any) -> None:
        other = cuda.local.array(8, float32)
        clear_all(0, s)
        clear_all(0, other)
        for step in range(0, steps, 2):
            at = uint32(step) * uint32(2 * EDGE)
            a, b = load(queries + at), load(queries + at + uint32(2 * EDGE))
            one(0, a, keys + at, s)
            one(0, b, keys + at + uint32(2 * EDGE), other)
        for i in range(8):
            s[i] = add(s[i], other[i])

    return score_in_two if groups == 1 and steps % 2 == 0 else score


@cache
def mixer(plan: Plan) -> Any:
    """The device function ``mix(s, values, o)``: adds weights times values to the sums of a warp's rows."""
    groups, columns = plan.span // EDGE, plan.width_v // EDGE
    pitch = plan.pitch(plan.width if plan.shared else plan.width_v)
    name = plan.k if plan.shared else plan.v
    mma, load = multiplier(name), halves.load_transposed
    together = next(n for n in (4, 2, 1) if columns % n == 0)
    narrowed = bf16x2.narrowed if name == "bf16" else halves.narrowed

    def sixteens(first: Any, a0: Any, a1: Any, a2: Any, a3: Any, values: Any, o: Any) -> None:
        for i in range(together):
            j = first + i
            b = load(values + uint32(j * 2 * EDGE))
            n = 8 * j
            v = mma(a0, a1, a2, a3, b[0], b[1], o[n], o[n + 1], o[n + 2], o[n + 3])
            o[n], o[n + 1], o[n + 2], o[n + 3] = v[0], v[1], v[2], v[3]
            v = mma(a0, a1, a2, a3, b[2], b[3], o[n + 4], o[n + 5], o[n + 6], o[n + 7])
            o[n + 4], o[n + 5], o[n + 6], o[n + 7] = v[0], v[1], v[2], v[3]

    all_columns = unrolled(columns // together, sixteens, together)

    def group(j: Any, s: Any, values: Any, o: Any) -> None:
        i = 8 * j
        a0, a1 = narrowed(s[i], s[i + 1]), narrowed(s[i + 2], s[i + 3])
        a2, a3 = narrowed(s[i + 4], s[i + 5]), narrowed(s[i + 6], s[i + 7])
        all_columns(0, a0, a1, a2, a3, values + uint32(j * EDGE * pitch), o)

    all_groups = unrolled(groups, group)

    @inlined
    def mix(s: Any, values: Any, o: Any) -> None:
        all_groups(0, s, values, o)

    return mix
