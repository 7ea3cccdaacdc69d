"""Kernels of products of 8-bit integers: operands in the order of a tile, the tile, the loops around it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at, ints_at, reader
from ..machine.numba_names import cgutils
from ..machine.register_tile import RegisterTile
from ..machine.simd import BYTES, FLOATS, I32, I64, INTS, Simd, vec
from ..machine.target import Target
from .int_layout import FEW, FOURS, ROWS, Conversion, Form, Interleaving, Operands

NEAR = 256 << 10  # bytes of panels that meet the same few rows: the second cache holds both

operands = reader(Operands)


@cache
def sweep(form: Form, most: int, kind: Target) -> Any:
    """Compiled: panels ``first`` … ``stop`` times all rows, ``most`` at once, and the rest ``few`` at once.

    Where fewer are left, some before them are multiplied again, by the same thread.
    """
    few, pair = (FEW, 2) if most > FEW else (1, 1)
    by_most, by_few, alone = (
        tile(form, rows, panels, kind) for rows, panels in ((most, pair), (few, pair), (few, 1))
    )

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        edge, out = np.empty((few, ROWS), np.float32), floats_at(fields.out, fields.m, fields.n)
        near = max(pair, NEAR // fields.panel_bytes // pair * pair)
        chunks = fields.groups * fields.chunks
        for start in range(first, stop, near):
            row, end = 0, min(start + near, stop)
            while row < fields.m:
                done = most if fields.m - row >= most else few
                row = min(row, fields.m - done)
                panel = start
                while panel < end:
                    together = panel + pair <= end and (panel + pair) * ROWS <= fields.n
                    for top in range(row, row + done, done if together else few):
                        column = panel * ROWS
                        whole = column + ROWS <= fields.n
                        these = (
                            fields.panels + panel * fields.panel_bytes, fields.panel_bytes,
                            fields.w_scales + 64 * panel * fields.groups,
                            fields.w_zeros + 64 * panel * fields.groups,
                            fields.w_sums + 64 * panel * chunks,
                            fields.x + top * fields.x_pitch,
                            fields.x_scales + 4 * top * fields.groups,
                            fields.x_zeros + 4 * top * fields.groups,
                            fields.x_sums + 4 * top * chunks, fields.x_pitch,
                            fields.out + 4 * (top * fields.n + column) if whole else edge.ctypes.data,
                            4 * fields.n if whole else 4 * ROWS,
                            fields.groups, fields.chunks, fields.fours,
                        )  # fmt: skip
                        if not together:
                            alone(*these)
                        elif done == most:
                            by_most(*these)
                        else:
                            by_few(*these)
                        if not whole:
                            for r in range(few):
                                for i in range(fields.n - column):
                                    out[top + r, column + i] = edge[r, i]
                    panel += pair if together else 1
                row += done

    return jit(multiply)


# --- The kernels that bring 8-bit integers into the order of tiles: weights as panels, activations with
# sums

interleaving, conversion = reader(Interleaving), reader(Conversion)


@inner
def _ends(cut: Any, chunk: int) -> Any:
    """First and last column of a chunk; of one behind the end of K both are the same."""
    group = chunk // cut.chunks
    left = group * cut.group + chunk % cut.chunks * cut.chunk
    right = min(left + cut.chunk, (group + 1) * cut.group, cut.k)
    return min(left, right), right


@cache
def interleaver() -> Any:
    """Compiled: write panels ``first`` … ``stop``, four neighbours of 16 rows side by side."""

    def interleave(arguments: int, first: int, stop: int) -> None:
        fields = interleaving(arguments)
        flip = np.uint8(fields.flip)
        codes = bytes_at(fields.codes, fields.rows, fields.pitch)
        for panel in range(first, stop):
            stored = bytes_at(fields.panels + panel * fields.panel_bytes, 1, fields.panel_bytes)[0]
            stored[:] = 0
            for r in range(min(ROWS, fields.rows - panel * ROWS)):
                row = codes[panel * ROWS + r]
                for chunk in range(fields.groups * fields.chunks):
                    left, right = _ends(fields, chunk)
                    at = 64 * chunk * fields.fours + 4 * r
                    for i in range(right - left):
                        stored[at + 64 * (i >> 2) + (i & 3)] = row[left + i] ^ flip

    return jit(interleave)


@cache
def row_converter(signed: bool) -> Any:
    """Compiled: convert rows ``first`` … ``stop`` of ``Conversion``, of signed bytes or of unsigned ones."""
    kind = np.int8 if signed else np.uint8

    def convert(arguments: int, first: int, stop: int) -> None:
        fields = conversion(arguments)
        flip, chunks = np.uint8(fields.flip), fields.groups * fields.chunks
        for row in range(first, stop):
            line = bytes_at(fields.codes + row * fields.pitch, 1, fields.k)[0]
            stored = bytes_at(fields.stored + row * fields.stored_pitch, 1, fields.stored_pitch)[0]
            sums = ints_at(fields.sums + 4 * row * chunks, 1, chunks)[0]
            for chunk in range(chunks):
                left, right = _ends(fields, chunk)
                part, count = line[left:right], right - left
                if fields.sums:
                    values, total = part.view(kind), np.int32(0)
                    for i in range(count):  # indices from 0 on: LLVM adds whole vectors
                        total += np.int32(values[i])
                    sums[chunk] = (total + fields.shift * count) * fields.factor
                if fields.stored:
                    to = stored[4 * fields.fours * chunk : 4 * fields.fours * (chunk + 1)]
                    for i in range(count):
                        to[i] = part[i] ^ flip
                    to[count:] = 0
            band = row // fields.r
            for g in range(fields.groups):
                tile = g * fields.group // fields.c
                if fields.by_group:
                    at = fields.scales + band * fields.scales_pitch + tile * fields.scales_step
                    floats_at(fields.by_group, row + 1, fields.groups)[row, g] = floats_at(at, 1, 1)[0, 0]
                if fields.stored_zeros:
                    zero = np.int32(fields.shift)
                    if fields.zeros:
                        at = fields.zeros + band * fields.zeros_pitch + tile * fields.zeros_step
                        zero += ints_at(at, 1, 1)[0, 0]
                    ints_at(fields.stored_zeros, row + 1, fields.groups)[row, g] = zero

    return jit(convert)


# --- The register tile of 8-bit integers: one or two panels times a few rows of activations, along all of
# K
#
# The integer sums of a chunk stay in registers from its first code to its last; with few rows each has
# several, so that a dot product does not wait for the one before. Only then come the terms of zero points,
# the conversion and one fused multiplication with the product of both scales: for a K of 4096 that shares
# its scales, once in 1024 dot products, where blocks of 32 have it after each 8.
#
# Floors per 16 rows of weights and one row of activations: K / 4 dot products, nothing else that counts.
# CPUs load two vectors while they begin two dot products, and each has an activation to load: with one
# panel the loads of weights come on top, with two the activation serves both.

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
