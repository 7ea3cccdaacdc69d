"""The parts of few rows' sums, added up through the shared memory of a cluster and written: few_rows.py."""

from __future__ import annotations

from typing import Any

from ..words import barrier as barriers
from ..words import codes8, ptx
from ..words.address import address
from ..words.atoms import inlined
from ..words.language import cuda, float32, int32, uint32, uint64
from ..words.outputs import SIZES
from .few_rows import MULTIPLY, PITCH, ROWS, FewJob


def adder(job: FewJob) -> Any:
    """The device function that adds up what the blocks of the cluster have, and writes it.

    Four outputs of a row of x at a time; ``given``: as the worker's, then the zero points of integers.
    """
    tile, integer, zeros, kind = job.tile, job.integer, job.zeros, job.out
    items, of_sums = tile.columns * (ROWS // 4), tile.sums
    take16_of, load4 = barriers.take16_of, codes8.load4
    load_float, fma, mul = ptx.load_float, ptx.fma, ptx.mul
    float_of, store = ptx.float_of, four_storer(kind)

    @inlined
    def finished(total: Any, r: Any, c: Any, given: Any, points: Any) -> Any:
        """A sum of integers as a float; r: a row of w, c: one of x."""
        of_x, row_x, _, rows_x, _, of_w, row_w, _, rows_w, _ = given
        if zeros:
            points_x, others_x, points_w, others_w = points
            at_x, at_w = uint64(c) * uint64(4), uint64(r) * uint64(4)
            total = int32(total - int32(load4(points_x + at_x) * load4(others_w + at_w)))
            total = int32(total - int32(load4(others_x + at_x) * load4(points_w + at_w)))
        scale_x = load_float(of_x + uint64(uint32(c // rows_x)) * row_x)
        scale_w = load_float(of_w + uint64(uint32(r // rows_w)) * row_w)
        return fma(float32(total), mul(scale_x, scale_w), float32(0))

    @inlined
    def add(
        ring: Any, rank: Any, parts: Any, given: Any, points: Any, y: Any, row0: Any, m: Any, n: Any
    ) -> None:  # fmt: skip
        i = uint32(uint32(rank * uint32(MULTIPLY)) + uint32(cuda.threadIdx.x))
        every = uint32(parts * uint32(MULTIPLY))
        while i < uint32(items):
            c, q = uint32(i >> uint32(4)), uint32(uint32(i & uint32(15)) << uint32(2))
            at = uint32(ring + uint32(of_sums) + c * uint32(PITCH) + uint32(q << uint32(2)))
            v, part = take16_of(at, uint32(0)), uint32(1)
            if integer:
                a, b, d, e = int32(v[0]), int32(v[1]), int32(v[2]), int32(v[3])
                while part < parts:
                    v = take16_of(at, part)
                    a, b = int32(a + int32(v[0])), int32(b + int32(v[1]))
                    d, e = int32(d + int32(v[2])), int32(e + int32(v[3]))
                    part = uint32(part + uint32(1))
                own, last = uint32(row0 + q), uint32(n - uint32(1))
                c_own = min(c, uint32(m - uint32(1)))
                f = finished(a, min(own, last), c_own, given, points)
                g = finished(b, min(uint32(own + uint32(1)), last), c_own, given, points)
                h = finished(d, min(uint32(own + uint32(2)), last), c_own, given, points)
                j = finished(e, min(uint32(own + uint32(3)), last), c_own, given, points)
            else:
                f, g, h, j = float_of(v[0]), float_of(v[1]), float_of(v[2]), float_of(v[3])
                while part < parts:
                    v = take16_of(at, part)
                    f, g = f + float_of(v[0]), g + float_of(v[1])
                    h, j = h + float_of(v[2]), j + float_of(v[3])
                    part = uint32(part + uint32(1))
            if c < m:
                store(y, c, uint32(row0 + q), n, f, g, h, j)
            i = uint32(i + every)

    return add


def four_storer(kind: str) -> Any:
    """The device function that writes four neighbours of a row, or those of them that are there."""
    size = SIZES[kind]
    store16, store2, store_float, bits_of = ptx.store16, ptx.store2, ptx.store_float, ptx.bits_of
    store_pair, float_of = ptx.store_pair, ptx.float_of
    narrow = ptx.half_bits if kind == "float16" else ptx.bfloat_bits

    @inlined
    def wide(at: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        if size == 4:
            store16(at, bits_of(a), bits_of(b), bits_of(c), bits_of(d))
        else:
            low, high = narrow(a) | narrow(b) << uint32(16), narrow(c) | narrow(d) << uint32(16)
            store_pair(at, float_of(uint32(low)), float_of(uint32(high)))

    @inlined
    def one(at: Any, value: Any) -> None:
        if size == 4:
            store_float(at, value)
        else:
            store2(at, narrow(value))

    @inlined
    def store(y: Any, row: Any, column: Any, n: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        at = address(y, row, n, column, size)
        if uint32(column + uint32(3)) < n and at & uint64(4 * size - 1) == uint64(0):
            wide(at, a, b, c, d)
        else:
            if column < n:
                one(at, a)
            if uint32(column + uint32(1)) < n:
                one(at + uint64(size), b)
            if uint32(column + uint32(2)) < n:
                one(at + uint64(2 * size), c)
            if uint32(column + uint32(3)) < n:
                one(at + uint64(3 * size), d)

    return store
