"""Products of a warp by ``mma`` on bytes, where each integer sum of a run is scaled twice and added.

As mma_runs.py does with 16 bits. A warp multiplies fragments of 16 rows of weights, bytes in registers, by
8 · ``eights`` rows of activations in shared memory (activations/code_tiles.py). Integer sums begin at the
bits of a large float (linear/r9_mma_magic.py), so a sum is a float at once. Two multiply-adds scale it: by
the weights' scale, which takes the large float off, and by that of the activations. A third takes off an
offset times a sum of activations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from .assembly import FLOAT, WORD, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32
from .language import SIMULATED, ir, types
from .mma_runs import STEPS, first_totals, fragment_parts, parts

MAGIC, MAGIC_BITS = 12582912.0, 0x4B400000
HALVES = 2  # of a step, which are multiplied one after the other
FEW = 8  # eights of activations, with which there are registers to spare


class ByteForm(NamedTuple):
    """The shape of a warp's products of a step."""

    fragments: int
    eights: int
    runs: int  # of a step, each with a scale
    has_offset: bool
    apart: int  # bytes from eight rows of activations to the next

    @property
    def steps(self) -> int:
        """Steps of 16 columns in a run."""
        return STEPS // self.runs

    @property
    def rows(self) -> int:
        """Scales of a lane: of rows g and g + 8 of each run and fragment."""
        return 2 * self.runs * self.fragments


class ByteProducts(NamedTuple):
    """Device functions for the products of a step."""

    zeros: Callable[..., Any]  # () -> totals
    multiply: Callable[..., Any]  # (totals, codes, scales, offsets, start, codes_at, scales_at, sums_at)
    fragment: tuple[Callable[..., Any], ...]  # by fragment: (totals) -> its part of them


@cache
def byte_products(form: ByteForm) -> ByteProducts:
    """The device functions for a form.

    ``codes``: of rows g and g + 8, step by step, fragment by fragment. ``scales``: of both rows, run by run,
    fragment by fragment. ``offsets``: the same with the sign turned, or one number of no use. ``start``: four
    times MAGIC_BITS. ``codes_at``, ``scales_at``, ``sums_at``: a lane's in the first eight rows.
    """
    count = 4 * form.fragments * form.eights
    kind, codes_kind = types.UniTuple(f32, count), types.UniTuple(u32, 2 * STEPS * form.fragments)
    scales_kind, four_words = types.UniTuple(f32, form.rows), types.UniTuple(u32, 4)
    offsets_kind = scales_kind if form.has_offset else types.UniTuple(f32, 1)

    def multiply(
        totals: Any, codes: Any, scales: Any, offsets: Any, start: Any, codes_at: Any, scales_at: Any,
        sums_at: Any,
    ) -> Any:  # fmt: skip
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, codes, scales, offsets, start, *places = operands
        results, a = parts(builder, totals, count), parts(builder, codes, 2 * STEPS * form.fragments)
        factors, begin = parts(builder, scales, form.rows), parts(builder, start, 4)
        less = [builder.fmul(factor, ir.Constant(FLOAT, -MAGIC)) for factor in factors]
        turned = parts(builder, offsets, form.rows) if form.has_offset else []
        rows = list(zip(factors, less, turned or factors, strict=True))
        for half, j in ((half, j) for half in range(HALVES) for j in range(form.eights)):
            if form.eights > FEW:  # else the assembler loads so many that some do not stay in registers
                emit_assembly(builder, ir.VoidType(), "bar.warp.sync -1;", [], [], True)
            b, x, sums = _activations(builder, form, places, half, form.apart * j)
            for run, fragment in ((r, f) for r in range(form.runs // HALVES) for f in range(form.fragments)):
                first, place = form.steps * run, 4 * (fragment * form.eights + j)
                step, row = STEPS * fragment + STEPS // HALVES * half, form.runs * fragment + run
                codes_of_run = a[2 * (step + first) :][: 2 * form.steps]
                dots = _integers(builder, codes_of_run, b[first : first + form.steps], begin)
                of_rows = rows[2 * (row + form.runs // HALVES * half) :]
                for i in range(4):
                    factor, less_magic, offset = of_rows[i // 2]
                    value = builder.fma(dots[i], factor, less_magic)
                    total = builder.fma(value, x[i % 2], results[place + i])
                    if form.has_offset:
                        total = builder.fma(sums[2 * run + i % 2], offset, total)
                    results[place + i] = total
        return context.make_tuple(builder, kind, results)

    if SIMULATED:
        return ByteProducts(multiply, multiply, (multiply,) * form.fragments)
    signature = kind(kind, codes_kind, scales_kind, offsets_kind, four_words, u32, u32, u32)
    return ByteProducts(
        first_totals(count),
        as_intrinsic(multiply, signature, emit),
        fragment_parts(form.fragments, form.eights),
    )


def _activations(
    builder: Any, form: ByteForm, places: list[Any], half: int, at: int
) -> tuple[list[Any], ...]:  # fmt: skip
    """A lane's words of a row's codes in 32 columns, the scales of two rows there, and their sums by run."""
    codes_at, scales_at, sums_at = places
    codes = _take(builder, WORD, codes_at, at + 8 * half, 2)
    scales, count = _take(builder, FLOAT, scales_at, at + 8 * half, 2), form.runs
    sums = _take(builder, FLOAT, sums_at, at + 4 * count * half, count) if form.has_offset else []
    return codes, scales, sums


def _integers(builder: Any, a: list[Any], b: list[Any], start: list[Any]) -> list[Any]:
    """The sums of a run, of one step or two, as floats."""
    wide, narrow = len(a), len(b)
    operands = [f"${i}" for i in range(8 + wide + narrow)]
    lists = [operands[:4], operands[4 : 4 + wide], operands[4 + wide : 4 + wide + narrow], operands[-4:]]
    text = f"mma.sync.aligned.m16n8k{16 * narrow}.row.col.s32.s8.s8.s32 "
    text += ", ".join("{" + ", ".join(each) + "}" for each in lists) + ";"
    four = ir.LiteralStructType([WORD] * 4)
    constraints = [*["=r"] * 4, *"r" * (wide + narrow + 4)]
    result = emit_assembly(builder, four, text, constraints, [*a, *b, *start], False)
    return [builder.bitcast(word, FLOAT) for word in parts(builder, result, 4)]


def _take(builder: Any, kind: Any, at: Any, offset: int, count: int) -> list[Any]:
    """Two words or floats of shared memory, or four."""
    word, letter = ("f32", "=f") if kind is FLOAT else ("b32", "=r")
    results = ", ".join(f"${i}" for i in range(count))
    text = f"ld.shared.v{count}.{word} {{{results}}}, [${count} + {offset}];"
    several = ir.LiteralStructType([kind] * count)
    return parts(builder, emit_assembly(builder, several, text, [*[letter] * count, "r"], [at], True), count)
