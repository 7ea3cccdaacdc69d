"""The base class of register tiles, which multiply a few rows of activations with rows of weights.

A tile has a sum for each *cell*, a row of activations and a vector of rows of weights. Sums are variables,
which LLVM keeps in registers as long as there are enough of these. A product's own tile says in ``multiply``
what a step along K adds to them: its operands, its dot product, its scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llvmlite import ir

from .intrinsics import intrinsic_of
from .numba_names import cgutils
from .simd import F32, FLOATS, I64, INTS, Simd


class RegisterTile:
    """Emits the product of a few rows with a few panels, of 16 rows of weights each, along all of K."""

    def __init__(self, simd: Simd, rows: int, panels: int, words: dict[str, Any]) -> None:
        self.simd, self.b, self.at = simd, simd.builder, words
        self.rows, self.panels = range(rows), range(panels)
        self.cells = [(p, r) for r in self.rows for p in self.panels]  # so that an activation is loaded once

    @classmethod
    def intrinsic(cls, names: Sequence[str], *case: Any) -> Any:
        """An intrinsic that takes words of these names, for the tile ``cls(builder, *case, words)``."""
        tile: Any = cls  # with the arguments of the product's own tile

        def emit(builder: Any, *values: Any) -> None:
            tile(builder, *case, dict(zip(names, values, strict=True))).emit()

        return intrinsic_of(emit, len(names))

    def emit(self) -> None:
        """Emit the tile: the totals' first values, the steps along K, the results' stores."""
        totals = self.begin()
        with cgutils.for_range(self.b, self.steps(), intp=I64) as loop:
            self.multiply(loop.index, totals)
        for (p, r), total in zip(self.cells, totals, strict=True):
            self.simd.store(self.total(total), self.result(p, r))

    def begin(self) -> list[Any]:
        """The totals of all cells before the first step."""
        return self.zeros()

    def steps(self) -> Any:
        """The number of steps along K."""
        raise NotImplementedError

    def multiply(self, step: Any, totals: list[Any]) -> None:
        """Add a step to the totals."""
        raise NotImplementedError

    def result(self, panel: int, row: int) -> Any:
        """The address of 16 results."""
        return self.b.add(self.place("out", row), I64(64 * panel))

    def total(self, variable: Any) -> Any:
        """The number to store for a total."""
        return self.b.load(variable)

    # --- what products' tiles are written with ------------------------------------------

    def place(self, name: str, i: int) -> Any:
        """The address of row or panel ``i`` of an array, by the words ``name`` and ``name_pitch``."""
        return self.b.add(self.at[name], self.b.mul(self.at[f"{name}_pitch"], I64(i)))

    def by_threes(self, place: Callable[[int], Any]) -> list[Any]:
        """Addresses of rows ``x_pitch`` apart: every third is ``place(r)``, loads add one or two pitches."""
        b, simd = self.b, self.simd
        pitch = simd.apart(self.at["x_pitch"])
        threes = [simd.apart(place(r)) for r in self.rows[::3]]
        return [b.add(threes[r // 3], b.mul(pitch, I64(r % 3))) for r in self.rows]

    def variables(self, kind: Any = FLOATS) -> list[Any]:
        """A vector for each cell."""
        return [cgutils.alloca_once(self.b, kind) for _ in self.cells]

    def zeros(self, kind: Any = FLOATS) -> list[Any]:
        """A vector of zeros for each cell."""
        variables = self.variables(kind)
        for variable in variables:
            self.b.store(ir.Constant(kind, None), variable)
        return variables

    def add(self, total: Any, a: Any, b: Any) -> None:
        """Add a product of floats to a total."""
        self.b.store(self.simd.fma(a, b, self.b.load(total)), total)

    def add_scaled(
        self, totals: list[Any], sums: Iterable[Any], w_scales: Iterable[Any], x_scales: Iterable[Any]
    ) -> None:
        """Add sums times the product of both scales, which lie at addresses by panel and by row.

        Addresses and sums may be generators: then each is computed next to its use.
        """
        b, simd = self.b, self.simd
        w = [simd.load(place, FLOATS) for place in w_scales]
        x = [simd.splat(simd.load(place, F32)) for place in x_scales]
        for (p, r), total, value in zip(self.cells, totals, sums, strict=True):
            scale = b.fmul(w[p], x[r])
            b.store(simd.call("llvm.fma.v16f32", FLOATS, value, scale, b.load(total)), total)

    def dots(
        self, fours: Any, most: int, chains: int, add: Callable[[Any, int, list[Any]], None]
    ) -> list[Any]:
        """The integer sums of all cells over ``fours`` groups of four codes.

        ``add(first, count, sums)`` emits ``most`` or 1 of these groups from ``first`` on. There are
        ``chains`` sums for each cell, so that a dot product does not wait for the one before.
        """
        b, sums = self.b, [self.zeros(INTS) for _ in range(chains)]
        rounds = b.udiv(fours, I64(most))
        with cgutils.for_range(b, rounds, intp=I64) as loop:
            add(b.mul(loop.index, I64(most)), most, sums)
        done = b.mul(rounds, I64(most))
        with cgutils.for_range(b, b.sub(fours, done), intp=I64) as loop:
            add(b.add(done, loop.index), 1, sums)
        totals = [b.load(variable) for variable in sums[0]]
        for chain in sums[1:]:
            totals = [b.add(total, b.load(variable)) for total, variable in zip(totals, chain, strict=True)]
        return totals
