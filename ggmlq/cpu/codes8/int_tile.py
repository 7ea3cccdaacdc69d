"""The register tile of 8-bit integers: one or two panels times a few rows of activations, along all of K.

The integer sums of a chunk stay in registers from its first code to its last; with few rows each has
several, so that a dot product does not wait for the one before. Only then come the terms of zero points,
the conversion and one fused multiplication with the product of both scales: for a K of 4096 that shares
its scales, once in 1024 dot products, where blocks of 32 have it after each 8.

Floors per 16 rows of weights and one row of activations: K / 4 dot products, nothing else that counts.
CPUs load two vectors while they begin two dot products, and each has an activation to load: with one panel
the loads of weights come on top, with two the activation serves both.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from ..machine.numba_names import cgutils
from ..machine.register_tile import RegisterTile
from ..machine.simd import BYTES, FLOATS, I32, I64, INTS, Simd, vec
from ..machine.target import Target
from .int_layout import FOURS, Form

ARGUMENTS = (
    "w", "w_pitch", "w_scales", "w_zeros", "w_sums", "x", "x_scales", "x_zeros", "x_sums", "x_pitch",
    "out", "out_pitch", "groups", "chunks", "fours",
)  # fmt: skip
LONGS = vec(I64, 16)
CHAINS = 12  # dot products under way: one takes up to six cycles, two begin in each


@cache
def tile(form: Form, rows: int, panels: int, target: Target) -> Any:
    """An intrinsic that takes ARGUMENTS and writes float32 [rows, 16 · panels]."""
    return Tile.intrinsic(ARGUMENTS, form, rows, panels, target)


class Tile(RegisterTile):
    """Emits the register tile: a step along K is a group of codes that share both scales."""

    def __init__(
        self, builder: Any, form: Form, rows: int, panels: int, target: Target, words: dict[str, Any]
    ) -> None:
        super().__init__(Simd(builder, replace(target, dot=form.dot)), rows, panels, words)
        self.form = form
        self.chains = max(1, min(4, -(-CHAINS // len(self.cells)))) if target.registers > 8 else 1

    def steps(self) -> Any:
        return self.at["groups"]

    def multiply(self, step: Any, totals: list[Any]) -> None:
        self.add_scaled(
            totals,
            (self.b.sitofp(value, FLOATS) for value in self._group(step)),
            (self._sixteen("w_scales", step, p) for p in self.panels),
            (self._one("x_scales", step, r) for r in self.rows),
        )

    def _group(self, group: Any) -> list[Any]:
        """The exact sums of a group."""
        b, at = self.b, self.at
        if not self.form.wide:
            return self._chunk(group, group)
        totals = self.zeros(LONGS)
        first = b.mul(group, at["chunks"])
        with cgutils.for_range(b, at["chunks"], intp=I64) as loop:
            for total, part in zip(totals, self._chunk(group, b.add(first, loop.index)), strict=True):
                b.store(b.add(b.load(total), b.sext(part, LONGS)), total)
        return [b.load(total) for total in totals]

    def _chunk(self, group: Any, chunk: Any) -> list[Any]:
        """The sums of a chunk in int32, with what zero points add."""
        b, at, simd, form = self.b, self.at, self.simd, self.form
        first = b.mul(chunk, at["fours"])
        panels = [self.place("w", p) for p in self.panels]
        x = [b.add(self.place("x", r), b.mul(first, I64(4))) for r in self.rows]
        sums = self._dots([b.add(panel, b.mul(first, I64(64))) for panel in panels], x)
        x_sums = [simd.splat(simd.load(self._one("x_sums", chunk, r), I32)) for r in self.rows]
        if form.w_zeros:
            zeros = [simd.load(self._sixteen("w_zeros", group, p), INTS) for p in self.panels]
            terms = [b.neg(b.mul(zeros[p], x_sums[r])) for p, r in self.cells]
        else:
            terms = [x_sums[r] for _, r in self.cells]
        sums = [b.add(*pair) for pair in zip(sums, terms, strict=True)]
        if form.x_zeros:
            w_sums = [simd.load(self._sixteen("w_sums", chunk, p), INTS) for p in self.panels]
            zeros = [simd.splat(simd.load(self._one("x_zeros", group, r), I32)) for r in self.rows]
            terms = [b.mul(zeros[r], w_sums[p]) for p, r in self.cells]
            sums = [b.sub(*pair) for pair in zip(sums, terms, strict=True)]
        return sums

    def _dots(self, panels: list[Any], x: list[Any]) -> list[Any]:
        """Sums of products of stored codes."""
        b, simd = self.b, self.simd

        def add(first: Any, count: int, sums: list[Any]) -> None:
            near = [simd.apart(b.add(panel, b.mul(first, I64(64)))) for panel in panels]
            places = self.by_threes(lambda r: b.add(x[r], b.mul(first, I64(4))))
            for j in range(count):
                weights = [simd.operand(simd.load(b.add(panel, I64(64 * j)), BYTES)) for panel in near]
                fours = [simd.load(b.add(place, I64(4 * j)), I32) for place in places]
                for (p, r), total in zip(self.cells, sums[j % self.chains], strict=True):
                    b.store(simd.dot(b.load(total), weights[p], fours[r]), total)

        return self.dots(self.at["fours"], FOURS, self.chains, add)

    def _sixteen(self, name: str, index: Any, panel: int) -> Any:
        """Address of 16 numbers of the weights, for a group or a chunk."""
        b = self.b
        at = b.add(b.mul(self._length(name), I64(panel)), index)
        return b.add(self.at[name], b.mul(at, I64(64)))

    def _one(self, name: str, index: Any, r: int) -> Any:
        """Address of a number of a row of activations, for a group or a chunk."""
        b = self.b
        at = b.add(b.mul(self._length(name), I64(r)), index)
        return b.add(self.at[name], b.mul(at, I64(4)))

    def _length(self, name: str) -> Any:
        """The numbers that a row has in an array: one a chunk, or one a group."""
        groups = self.at["groups"]
        return self.b.mul(groups, self.at["chunks"]) if name in ("w_sums", "x_sums") else groups
