"""A register tile: one or two panels of weights times a few rows of activations, along all of K.

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

from llvmlite import ir
from numba import types

from ..machine.simd import BYTES, F32, FLOATS, I32, I64, INTS, Simd, vec
from ..machine.target import Target
from ..machine.numba_names import cgutils, intrinsic
from .int_layout import FOURS, Form

ADDRESSES = (
    "panel", "panel_bytes", "w_scales", "w_zeros", "w_sums", "x", "x_scales", "x_zeros", "x_sums", "x_pitch",
    "out", "out_pitch", "groups", "chunks", "fours",
)  # fmt: skip
LONGS = vec(I64, 16)
CHAINS = 12  # dot products under way: one takes up to six cycles, two begin in each


@cache
def tile(form: Form, rows: int, panels: int, target: Target) -> Any:
    """An intrinsic that takes ADDRESSES as integers and writes float32 [rows, 16 · panels]."""

    @intrinsic
    def multiply(
        typing: Any, panel: Any, panel_bytes: Any, w_scales: Any, w_zeros: Any, w_sums: Any, x: Any,
        x_scales: Any, x_zeros: Any, x_sums: Any, x_pitch: Any, out: Any, out_pitch: Any, groups: Any,
        chunks: Any, fours: Any,
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = replace(target, dot=form.dot)
            Tile(builder, form, rows, panels, kind, dict(zip(ADDRESSES, args, strict=True))).emit()
            return context.get_dummy_value()

        return types.void(*[types.int64] * len(ADDRESSES)), emit

    return multiply


class Tile:
    """Emits the product of some panels with a few rows."""

    def __init__(
        self, builder: Any, form: Form, rows: int, panels: int, target: Target, at: dict[str, Any]
    ) -> None:
        self.b, self.simd, self.form, self.at = builder, Simd(builder, target), form, at
        self.rows, self.panels = range(rows), range(panels)
        self.cells = [(s, r) for r in self.rows for s in self.panels]  # so that an activation is loaded once
        self.chains = max(1, min(4, -(-CHAINS // len(self.cells)))) if target.registers > 8 else 1

    def emit(self) -> None:
        b, at = self.b, self.at
        totals = self._variables(FLOATS)
        for total in totals:
            b.store(ir.Constant(FLOATS, None), total)
        with cgutils.for_range(b, at["groups"], intp=I64) as loop:
            sums = self._group(loop.index)
            scales = [self.simd.load(self._sixteen("w_scales", loop.index, s), FLOATS) for s in self.panels]
            mine = [self.simd.splat(self._one("x_scales", loop.index, r, F32)) for r in self.rows]
            for (s, r), total, found in zip(self.cells, totals, sums, strict=True):
                whole, product = b.sitofp(found, FLOATS), b.fmul(scales[s], mine[r])
                b.store(self.simd.call("llvm.fma.v16f32", FLOATS, whole, product, b.load(total)), total)
        for (s, r), total in zip(self.cells, totals, strict=True):
            line = b.add(at["out"], b.mul(at["out_pitch"], I64(r)))
            self.simd.store(b.load(total), b.add(line, I64(64 * s)))

    def _group(self, group: Any) -> list[Any]:
        """The exact sums of a group."""
        b, at = self.b, self.at
        if not self.form.wide:
            return self._chunk(group, group)
        totals = self._variables(LONGS)
        for total in totals:
            b.store(ir.Constant(LONGS, None), total)
        first = b.mul(group, at["chunks"])
        with cgutils.for_range(b, at["chunks"], intp=I64) as loop:
            for total, part in zip(totals, self._chunk(group, b.add(first, loop.index)), strict=True):
                b.store(b.add(b.load(total), b.sext(part, LONGS)), total)
        return [b.load(total) for total in totals]

    def _chunk(self, group: Any, chunk: Any) -> list[Any]:
        """The sums of a chunk in int32, with what zero points add."""
        b, at, simd, form = self.b, self.at, self.simd, self.form
        first = b.mul(chunk, at["fours"])
        panels = [b.add(at["panel"], b.mul(at["panel_bytes"], I64(s))) for s in self.panels]
        x = [b.add(self._row("x", r), b.mul(first, I64(4))) for r in self.rows]
        sums = self._dots([b.add(panel, b.mul(first, I64(64))) for panel in panels], x)
        mine = [simd.splat(self._one("x_sums", chunk, r, I32)) for r in self.rows]
        if form.w_zeros:
            zeros = [simd.load(self._sixteen("w_zeros", group, s), INTS) for s in self.panels]
            terms = [b.neg(b.mul(zeros[s], mine[r])) for s, r in self.cells]
        else:
            terms = [mine[r] for _, r in self.cells]
        sums = [b.add(*pair) for pair in zip(sums, terms, strict=True)]
        if form.x_zeros:
            weights = [simd.load(self._sixteen("w_sums", chunk, s), INTS) for s in self.panels]
            theirs = [simd.splat(self._one("x_zeros", group, r, I32)) for r in self.rows]
            terms = [b.mul(theirs[r], weights[s]) for s, r in self.cells]
            sums = [b.sub(*pair) for pair in zip(sums, terms, strict=True)]
        return sums

    def _dots(self, panels: list[Any], x: list[Any]) -> list[Any]:
        """Sums of products of stored codes."""
        b, fours = self.b, self.at["fours"]
        sums = [self._variables(INTS) for _ in range(self.chains)]
        for variable in [one for chain in sums for one in chain]:
            b.store(ir.Constant(INTS, None), variable)
        rounds = b.udiv(fours, I64(FOURS))
        with cgutils.for_range(b, rounds, intp=I64) as loop:
            self._fours(panels, x, b.mul(loop.index, I64(FOURS)), FOURS, sums)
        done = b.mul(rounds, I64(FOURS))
        with cgutils.for_range(b, b.sub(fours, done), intp=I64) as loop:
            self._fours(panels, x, b.add(done, loop.index), 1, sums)
        found = [b.load(one) for one in sums[0]]
        for chain in sums[1:]:
            found = [b.add(total, b.load(one)) for total, one in zip(found, chain, strict=True)]
        return found

    def _fours(self, panels: list[Any], x: list[Any], first: Any, count: int, sums: list[Any]) -> None:
        b, simd = self.b, self.simd
        near = [simd.apart(b.add(panel, b.mul(first, I64(64)))) for panel in panels]
        pitch = simd.apart(self.at["x_pitch"])  # an address for three rows: a load adds once or twice this
        threes = [simd.apart(b.add(row, b.mul(first, I64(4)))) for row in x[::3]]
        places = [b.add(threes[r // 3], b.mul(pitch, I64(r % 3))) for r in self.rows]
        for j in range(count):
            weights = [simd.operand(simd.load(b.add(panel, I64(64 * j)), BYTES)) for panel in near]
            fours = [simd.load(b.add(place, I64(4 * j)), I32) for place in places]
            for (s, r), total in zip(self.cells, sums[j % self.chains], strict=True):
                b.store(simd.dot(b.load(total), weights[s], fours[r]), total)

    def _variables(self, kind: Any) -> list[Any]:
        """A vector for each panel and row."""
        return [cgutils.alloca_once(self.b, kind) for _ in self.cells]

    def _row(self, name: str, r: int) -> Any:
        return self.b.add(self.at[name], self.b.mul(self.at["x_pitch"], I64(r)))

    def _sixteen(self, name: str, index: Any, panel: int) -> Any:
        """Address of 16 numbers of the weights, for a group or a chunk."""
        b = self.b
        at = b.add(b.mul(self._count(name), I64(panel)), index)
        return b.add(self.at[name], b.mul(at, I64(64)))

    def _one(self, name: str, index: Any, r: int, kind: Any) -> Any:
        """A number of a row of activations, for a group or a chunk."""
        b = self.b
        at = b.add(b.mul(self._count(name), I64(r)), index)
        return self.simd.load(b.add(self.at[name], b.mul(at, I64(4))), kind)

    def _count(self, name: str) -> Any:
        """How many numbers there are for a row: one a chunk, or one a group."""
        groups = self.at["groups"]
        return self.b.mul(groups, self.at["chunks"]) if name in ("w_sums", "x_sums") else groups
