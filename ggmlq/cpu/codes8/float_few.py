"""Few rows of activations: rows of weights are decoded as they lie, and pairs are neighbours along K.

Nothing is laid side by side, which takes the time of six rows. A vector of 64 codes becomes two of bfloat16,
which meet the same columns of up to four rows of activations; a few rows of weights at one time, so that
activations are put in order once for all of them. A vector of sums is one result, in sixteen parts.

Floor for 64 codes of a row of weights: two look-ups, a sign, two exchanges, two dot products for each row
of activations, six to seven clocks with one: less than memory takes for them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from ...codes import CODES, MiniFloat
from ..machine.arguments import reader
from ..machine.bfloats import BFLOATS
from ..machine.row_tail import load_some
from ..machine.jit import jit
from ..machine.simd import BYTES, F32, FLOATS, I32, I64, WORDS, Simd, vec
from ..machine.target import Target
from ..machine.totals import total_of
from ..machine.numba_names import cgutils, intrinsic
from .float_decode import runs_of
from .float_layout import BAND
from .float_lookup import by_turns, halves
from .float_operands import Operands
from .float_tile import DOT

MANY = 64  # codes of a vector
LINES = {1: 8, 2: 8, 3: 4, 4: 4}  # rows of weights of a tile, by those of activations
ADDRESSES = (
    "w", "w_pitch", "line", "r", "scales", "scales_pitch", "table", "runs", "width",
    "x", "x_pitch", "x_scales", "x_scales_pitch", "out", "out_pitch",
)  # fmt: skip

operands = reader(Operands)


@cache
def sweep(name: str, kind: Target) -> Any:
    """Compiled: rows ``first`` … ``stop`` of weights of a code times all activations."""
    one, two, three, four = (_band(name, rows, kind) for rows in (1, 2, 3, 4))

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        runs, m, n = runs_of(fields), fields.m, fields.n
        for top in range(first, stop, BAND):
            count, row = min(BAND, stop - top), 0
            while row < m:
                these = (
                    fields.codes, fields.pitch, top, fields.r, fields.scales, fields.scales_pitch,
                    runs.ctypes.data, len(runs), fields.width,
                    fields.x + row * fields.x_pitch, fields.x_pitch,
                    fields.x_scales + 4 * row * len(runs), 4 * len(runs),
                    fields.out + 4 * row * n, 4 * n, count,
                )  # fmt: skip
                if m - row >= 4:
                    four(*these)
                    row += 4
                elif m - row == 3:
                    three(*these)
                    row += 3
                elif m - row == 2:
                    two(*these)
                    row += 2
                else:
                    one(*these)
                    row += 1
        runs[0, 0] = 0  # an array lives until its last mention

    return jit(multiply)


def _band(name: str, rows: int, kind: Target) -> Any:
    """Compiled: so many rows of activations times ``count`` rows of weights from ``line`` on."""
    lines = LINES[rows]
    together, alone = tile(name, rows, lines, kind), tile(name, rows, 1, kind)

    def multiply(
        w: int, w_pitch: int, line: int, r: int, scales: int, scales_pitch: int, table: int, runs: int,
        width: int, x: int, x_pitch: int, x_scales: int, x_scales_pitch: int, out: int, out_pitch: int,
        count: int,
    ) -> None:  # fmt: skip
        end = line + count
        while line < end:
            these = (
                w + line * w_pitch, w_pitch, line, r, scales, scales_pitch, table, runs, width,
                x, x_pitch, x_scales, x_scales_pitch, out + 4 * line, out_pitch,
            )  # fmt: skip
            if line + lines <= end:
                together(*these)
                line += lines
            else:
                alone(*these)
                line += 1

    return jit(multiply)


@cache
def tile(name: str, rows: int, lines: int, target: Target) -> Any:
    """An intrinsic that takes ADDRESSES as integers and writes float32 [rows, lines]."""
    code = CODES[name]
    assert isinstance(code, MiniFloat)

    @intrinsic
    def multiply(
        typing: Any, w: Any, w_pitch: Any, line: Any, r: Any, scales: Any, scales_pitch: Any, table: Any,
        runs: Any, width: Any, x: Any, x_pitch: Any, x_scales: Any, x_scales_pitch: Any, out: Any,
        out_pitch: Any,
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            fields = dict(zip(ADDRESSES, args, strict=True))
            Tile(Simd(builder, target), code, rows, lines, fields).emit()
            return context.get_dummy_value()

        return types.void(*[types.int64] * len(ADDRESSES)), emit

    return multiply


class Tile:
    """Emits the products of some rows of weights with some of activations."""

    def __init__(self, simd: Simd, code: MiniFloat, rows: int, lines: int, at: dict[str, Any]) -> None:
        self.simd, self.b, self.code, self.at = simd, simd.builder, code, at
        self.lines = [self._place("w", i) for i in range(lines)]
        self.rows = [self._place("x", r) for r in range(rows)]
        self.cells = [(r, i) for i in range(lines) for r in range(rows)]

    def emit(self) -> None:
        b, at, simd = self.b, self.at, self.simd
        bands = [
            b.add(at["scales"], b.mul(b.udiv(b.add(at["line"], I64(i)), at["r"]), at["scales_pitch"]))
            for i in range(len(self.lines))
        ]
        mine = [b.add(at["x_scales"], b.mul(at["x_scales_pitch"], I64(r))) for r in range(len(self.rows))]
        totals = self._zeros()
        with cgutils.for_range(b, at["runs"], intp=I64) as loop:
            run = b.add(at["table"], b.mul(loop.index, I64(24)))
            left, count, over = (simd.load(b.add(run, I64(8 * i)), I64) for i in range(3))
            with b.if_then(b.icmp_unsigned("!=", count, I64(0))):  # some behind the end of K have none
                sums = self._run(left, count, b.mul(loop.index, b.shl(at["width"], I64(1))))
                theirs = [simd.load(b.add(band, over), F32) for band in bands]
                ours = [simd.load(b.add(row, b.mul(loop.index, I64(4))), F32) for row in mine]
                for (r, i), total, found in zip(self.cells, totals, sums, strict=True):
                    scale = simd.splat(b.fmul(theirs[i], ours[r]))
                    b.store(simd.fma(b.load(found), scale, b.load(total)), total)
        for (r, i), total in zip(self.cells, totals, strict=True):
            place = b.add(b.add(at["out"], b.mul(at["out_pitch"], I64(r))), I64(4 * i))
            simd.store(total_of(b, b.load(total)), place)

    def _run(self, left: Any, count: Any, behind: Any) -> list[Any]:
        """The sums of ``count`` columns from ``left`` on, which lie ``behind`` bytes in activations."""
        b, sums = self.b, self._zeros()
        whole = b.udiv(count, I64(MANY))
        with cgutils.for_range(b, whole, intp=I64) as loop:
            at = b.mul(loop.index, I64(MANY))
            self._columns(b.add(left, at), b.add(behind, b.shl(at, I64(1))), None, sums)
        done = b.mul(whole, I64(MANY))
        rest = b.sub(count, done)
        with b.if_then(b.icmp_unsigned("!=", rest, I64(0))):
            self._columns(b.add(left, done), b.add(behind, b.shl(done, I64(1))), rest, sums)
        return sums

    def _columns(self, at: Any, behind: Any, rest: Any, sums: list[Any]) -> None:
        """Sixty-four columns, or the first ``rest`` of them."""
        b, simd = self.b, self.simd
        values = []
        for row in self.rows:
            place = b.add(row, behind)
            second = None if rest is None else b.sub(rest, I64(MANY // 2))
            two = [load_some(simd, place, WORDS, rest), load_some(simd, b.add(place, I64(64)), WORDS, second)]
            values.append([self._as_codes_lie(two, upper) for upper in (False, True)])
        for i, line in enumerate(self.lines):
            found = halves(simd, load_some(simd, b.add(line, at), BYTES, rest), self.code)
            weights = [b.bitcast(by_turns(simd, found, 1, upper), BFLOATS) for upper in (False, True)]
            for r, both in enumerate(values):
                total = sums[i * len(self.rows) + r]
                for mine, theirs in zip(both, weights, strict=True):
                    b.store(simd.call(DOT, FLOATS, b.load(total), theirs, mine), total)

    def _as_codes_lie(self, two: list[Any], upper: bool) -> Any:
        """Of 64 numbers those that decoded codes have in one vector: eight of each sixteen."""
        picked = [16 * quarter + 8 * upper + i for quarter in range(4) for i in range(8)]
        made = self.b.shuffle_vector(*two, ir.Constant(vec(I32, 32), picked))
        return self.b.bitcast(made, BFLOATS)

    def _zeros(self) -> list[Any]:
        """A vector for each result."""
        found = [cgutils.alloca_once(self.b, FLOATS) for _ in self.cells]
        for one in found:
            self.b.store(ir.Constant(FLOATS, None), one)
        return found

    def _place(self, name: str, i: int) -> Any:
        return self.simd.apart(self.b.add(self.at[name], self.b.mul(self.at[f"{name}_pitch"], I64(i))))
