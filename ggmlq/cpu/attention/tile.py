"""The register tiles of attention: queries times keys, and weights times values, as LLVM code.

``scores``: a few queries meet a few keys, with a vector of sums for each pair; in the end the lanes of all
sums are added up at once. ``weighted``: results of a few rows, some vectors each, stay in registers while the
positions of a tile pass. A number's sum takes its products in one order in every tile.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir

from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner
from ..machine.numba_names import cgutils
from ..machine.simd import F32, I32, I64, Simd, vec
from ..machine.target import Target
from .drive import LANES

WIDE = 8  # vector registers of 64 bytes from which tiles use vectors of 64 bytes


@cache
def width_of(target: Target) -> int:
    """Floats of a vector, and vectors of sums in a tile."""
    return 16 if target.registers > WIDE else 8


class _Tile:
    """The common parts of both tiles."""

    def __init__(self, builder: Any, target: Target) -> None:
        self.b, self.simd, self.width = builder, Simd(builder, target), width_of(target)
        self.kind = vec(F32, self.width)

    def rows(self, at: Any, pitch: Any, count: int) -> list[Any]:
        return [self.simd.apart(self.b.add(at, self.b.mul(pitch, I64(i)))) for i in range(count)]

    def load(self, at: Any) -> Any:
        return self.simd.load(at, self.kind)

    def add(self, total: Any, a: Any, b: Any) -> None:
        """Add a product to a total."""
        before = self.b.load(total)
        if self.simd.target.fma:
            after = self.simd.call(f"llvm.fma.v{self.width}f32", self.kind, a, b, before)
        else:
            after = self.b.fadd(self.b.fmul(a, b), before)
        self.b.store(after, total)

    def totals(self, count: int) -> list[Any]:
        none = ir.Constant(self.kind, None)
        variables = [cgutils.alloca_once(self.b, self.kind) for _ in range(count)]
        for variable in variables:
            self.b.store(none, variable)
        return variables

    def summed(self, vectors: list[Any]) -> Any:
        """The sum of each vector's lanes, as the lanes of one; upper halves are added to lower ones."""
        b, n = self.b, self.width
        groups = 1
        while len(vectors) > 1:
            size, both = n // groups, []
            firsts = [g * size for g in range(groups)] + [n + g * size for g in range(groups)]
            low = [at + i for at in firsts for i in range(size // 2)]
            high = [at + size // 2 for at in low]
            picks = [ir.Constant(vec(I32, n), lanes) for lanes in (low, high)]
            for x, y in zip(vectors[::2], vectors[1::2], strict=True):
                both.append(b.fadd(*(b.shuffle_vector(x, y, lanes) for lanes in picks)))
            vectors, groups = both, 2 * groups
        return vectors[0]


def _scores(b: Any, target: Target, rows: int, *words: Any) -> None:
    """Queries times keys, float32 [rows, lanes / rows]."""
    q, q_pitch, k, k_pitch, steps, to, to_pitch = words
    tile = _Tile(b, target)
    keys = tile.width // rows
    totals = tile.totals(tile.width)
    queries, lines = tile.rows(q, q_pitch, rows), tile.rows(k, k_pitch, keys)
    with cgutils.for_range(b, steps, intp=I64) as loop:
        at = b.mul(loop.index, I64(4 * tile.width))
        values = [tile.load(b.add(row, at)) for row in queries]
        for i, line in enumerate(lines):
            key = tile.load(b.add(line, at))
            for r, value in enumerate(values):
                tile.add(totals[r * keys + i], value, key)
    sums = tile.summed([b.load(total) for total in totals])
    for r in range(rows):
        tile.simd.store(tile.simd.part(sums, r * keys, keys), b.add(to, b.mul(to_pitch, I64(r))))


def _weighted(b: Any, target: Target, rows: int, vectors: int, *words: Any) -> None:
    """Weights times values, added to float32 [rows, vectors of the tile]."""
    weights, pitch, v, v_pitch, count, to, to_pitch = words
    tile = _Tile(b, target)
    places = [
        b.add(row, I64(4 * tile.width * i)) for row in tile.rows(to, to_pitch, rows) for i in range(vectors)
    ]
    totals = tile.totals(len(places))
    for place, total in zip(places, totals, strict=True):
        b.store(tile.load(place), total)
    lines = tile.rows(weights, pitch, rows)
    with cgutils.for_range(b, count, intp=I64) as loop:
        line = b.add(v, b.mul(v_pitch, loop.index))
        values = [tile.load(b.add(line, I64(4 * tile.width * i))) for i in range(vectors)]
        at = b.mul(loop.index, I64(4))
        for r, row in enumerate(lines):
            weight = tile.simd.splat(tile.simd.load(b.add(row, at), F32), tile.width)
            for i, value in enumerate(values):
                tile.add(totals[r * vectors + i], weight, value)
    for place, total in zip(places, totals, strict=True):
        tile.simd.store(b.load(total), place)


@cache
def scores(target: Target) -> Any:
    """Compiled: all rows of queries times ``count`` keys, a multiple of LANES; pitches in bytes."""
    four, two, one = (
        intrinsic_of(lambda b, *words, rows=rows: _scores(b, target, rows, *words), 7) for rows in (4, 2, 1)
    )
    width = width_of(target)
    most, some = width // 4, width // 2

    def multiply(
        q: int, q_pitch: int, rows: int, k: int, k_pitch: int, count: int, steps: int, to: int, to_pitch: int
    ) -> None:
        row = 0
        while row < rows:
            x, y = q + row * q_pitch, to + row * to_pitch
            if rows - row >= 4:
                for j in range(0, count, most):
                    four(x, q_pitch, k + j * k_pitch, k_pitch, steps, y + 4 * j, to_pitch)
                row += 4
            elif rows - row >= 2:
                for j in range(0, count, some):
                    two(x, q_pitch, k + j * k_pitch, k_pitch, steps, y + 4 * j, to_pitch)
                row += 2
            else:
                for j in range(0, count, width):
                    one(x, q_pitch, k + j * k_pitch, k_pitch, steps, y + 4 * j, to_pitch)
                row += 1

    return inner(multiply)


@cache
def weighted(target: Target) -> Any:
    """Compiled: rows of weights times ``count`` rows of values, ``columns`` of them, a multiple of LANES."""
    width = width_of(target)
    cases = (4, width // 4), (2, width // 2), (1, width // 2)
    four, two, one = (
        intrinsic_of(lambda b, *words, rows=rows, n=n: _weighted(b, target, rows, n, *words), 7)
        for rows, n in cases
    )
    four_near, two_near, one_near = (
        intrinsic_of(lambda b, *words, rows=rows: _weighted(b, target, rows, LANES // width, *words), 7)
        for rows in (4, 2, 1)
    )
    most, some = width // 4 * width, width // 2 * width

    def multiply(
        weights: int,
        pitch: int,
        rows: int,
        v: int,
        v_pitch: int,
        count: int,
        columns: int,
        to: int,
        to_pitch: int,
    ) -> None:
        row = 0
        while row < rows:
            x, y, c = weights + row * pitch, to + row * to_pitch, 0
            if rows - row >= 4:
                while c + most <= columns:
                    four(x, pitch, v + 4 * c, v_pitch, count, y + 4 * c, to_pitch)
                    c += most
                while c < columns:
                    four_near(x, pitch, v + 4 * c, v_pitch, count, y + 4 * c, to_pitch)
                    c += LANES
                row += 4
            elif rows - row >= 2:
                while c + some <= columns:
                    two(x, pitch, v + 4 * c, v_pitch, count, y + 4 * c, to_pitch)
                    c += some
                while c < columns:
                    two_near(x, pitch, v + 4 * c, v_pitch, count, y + 4 * c, to_pitch)
                    c += LANES
                row += 2
            else:
                while c + some <= columns:
                    one(x, pitch, v + 4 * c, v_pitch, count, y + 4 * c, to_pitch)
                    c += some
                while c < columns:
                    one_near(x, pitch, v + 4 * c, v_pitch, count, y + 4 * c, to_pitch)
                    c += LANES
                row += 1

    return inner(multiply)
