"""The kernel of products of 8-bit floats for up to eight rows of activations: it decodes weights as they lie.

No rows of weights are laid side by side, which would take the time of six rows. A vector of 64 codes becomes
two of bfloat16, in pairs along K, which are multiplied with the same columns of up to four rows of
activations. A tile has a few rows of weights, so that activations are put in order once for all of them. A
vector of sums is one result, in sixteen parts.

Floor for 64 codes of a row of weights: two look-ups, a sign, two exchanges, two dot products for each row
of activations, six to seven clocks with one: less than memory takes for them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir

from ...codes import CODES, MiniFloat
from ..machine.jit import jit
from ..machine.memory import reader
from ..machine.numba_names import cgutils
from ..machine.register_tile import RegisterTile
from ..machine.simd import BFLOATS, BYTES, F32, FLOATS, I32, I64, WORDS, Simd, load_some, total_of, vec
from ..machine.target import Target
from .float_decode import halves, interleave, runs_of
from .float_layout import BAND, Operands
from .float_product import DOT

MANY = 64  # codes of a vector
LINES = {1: 8, 2: 8, 3: 4, 4: 4}  # rows of weights of a tile, by those of activations
ARGUMENTS = (
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
    """Compiled: ``rows`` rows of activations times ``count`` rows of weights from ``line`` on."""
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
    """An intrinsic that takes ARGUMENTS and writes float32 [rows, lines]."""
    code = CODES[name]
    assert isinstance(code, MiniFloat)
    return Tile.intrinsic(ARGUMENTS, code, rows, lines, target)


class Tile(RegisterTile):
    """Emits the register tile: a cell is one row of each side, a step along K is a run."""

    def __init__(
        self, builder: Any, code: MiniFloat, rows: int, lines: int, target: Target, words: dict[str, Any]
    ) -> None:
        super().__init__(Simd(builder, target), rows, lines, words)
        b, at, self.code = builder, words, code
        self.cells = [(i, r) for i in range(lines) for r in range(rows)]
        self.w, self.x = (
            [self.simd.apart(self.place(name, i)) for i in range(count)]
            for name, count in (("w", lines), ("x", rows))
        )
        self.w_scales = [
            b.add(at["scales"], b.mul(b.udiv(b.add(at["line"], I64(i)), at["r"]), at["scales_pitch"]))
            for i in range(lines)
        ]
        self.x_scales = [b.add(at["x_scales"], b.mul(at["x_scales_pitch"], I64(r))) for r in range(rows)]

    def steps(self) -> Any:
        return self.at["runs"]

    def multiply(self, step: Any, totals: list[Any]) -> None:
        b, at, simd = self.b, self.at, self.simd
        run = b.add(at["table"], b.mul(step, I64(24)))
        left, count, over = (simd.load(b.add(run, I64(8 * i)), I64) for i in range(3))
        with b.if_then(b.icmp_unsigned("!=", count, I64(0))):  # some behind the end of K have none
            sums = self._run(left, count, b.mul(step, b.shl(at["width"], I64(1))))
            theirs = [simd.load(b.add(band, over), F32) for band in self.w_scales]
            ours = [simd.load(b.add(row, b.mul(step, I64(4))), F32) for row in self.x_scales]
            for (i, r), total, part in zip(self.cells, totals, sums, strict=True):
                self.add(total, b.load(part), simd.splat(b.fmul(theirs[i], ours[r])))

    def result(self, panel: int, row: int) -> Any:
        return self.b.add(self.place("out", row), I64(4 * panel))

    def total(self, variable: Any) -> Any:
        return total_of(self.b, super().total(variable))

    def _run(self, left: Any, count: Any, behind: Any) -> list[Any]:
        """The sums of ``count`` columns from ``left`` on, which lie ``behind`` bytes in activations."""
        b, sums = self.b, self.zeros()
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
        for row in self.x:
            place = b.add(row, behind)
            second = None if rest is None else b.sub(rest, I64(MANY // 2))
            two = [load_some(simd, place, WORDS, rest), load_some(simd, b.add(place, I64(64)), WORDS, second)]
            values.append([self._as_codes_lie(two, upper) for upper in (False, True)])
        for i, line in enumerate(self.w):
            codes = halves(simd, load_some(simd, b.add(line, at), BYTES, rest), self.code)
            weights = [b.bitcast(interleave(simd, codes, 1, upper), BFLOATS) for upper in (False, True)]
            for r, both in enumerate(values):
                total = sums[i * len(self.x) + r]
                for ours, theirs in zip(both, weights, strict=True):
                    b.store(simd.call(DOT, FLOATS, b.load(total), theirs, ours), total)

    def _as_codes_lie(self, two: list[Any], upper: bool) -> Any:
        """The 32 of 64 numbers that decoded codes have in one vector: eight of each sixteen."""
        lanes = [16 * quarter + 8 * upper + i for quarter in range(4) for i in range(8)]
        return self.b.bitcast(self.b.shuffle_vector(*two, ir.Constant(vec(I32, 32), lanes)), BFLOATS)
