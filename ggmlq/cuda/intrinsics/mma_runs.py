"""Products of a warp by ``mma`` on numbers of 16 bits, where a sum of one run is scaled before it is added.

A warp multiplies fragments of 16 rows of weights, codes in registers, by 8 · ``eights`` rows of activations
in shared memory. Four registers of a fragment meet 16 columns, a *step*; what shares a scale has one, two or
four. Its sums start from zero, for which ``mma`` needs no register. Four multiply-adds, times the scales of
rows g and g + 8, add them to the totals; four more for each run with an offset, times its sum of
activations.

Totals are a tuple: four for each eight rows of activations, fragment by fragment. Four are those of columns
2 t, 2 t + 1 of row g and of row g + 8. A tuple is taken apart while the code is made, so loops are written
out and all values stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from . import bf16x2, halves
from .assembly import FLOAT, WORD, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32
from .language import SIMULATED, ir, types

STEPS = 4  # of a fragment
LINE, PAIR = 8 * 128, 32  # bytes from eight rows of activations to the next, and from their sums to the next
LETTERS = {"float16": "f16", "bfloat16": "bf16"}
ONES = {"float16": halves.pair(1), "bfloat16": bf16x2.pair(1)}


class RunForm(NamedTuple):
    """The shape of a warp's products of a run, and the kind of floats of both operands."""

    kind: str  # "float16" or "bfloat16"
    fragments: int
    eights: int
    steps: int  # that share a scale
    runs: int  # with an offset each, among them; 0: there are no offsets
    warps: int  # that sum activations, of ``columns`` rows in all
    columns: int

    @property
    def sums(self) -> int:
        """Totals of a thread."""
        return 4 * self.fragments * self.eights


class RunProducts(NamedTuple):
    """Device functions for the products of a run."""

    zeros: Callable[..., Any]  # () -> totals
    multiply: Callable[..., Any]  # (totals, codes, scales, offsets, places, sums_at) -> totals
    fragment: tuple[Callable[..., Any], ...]  # by fragment: (totals) -> its part of them
    put_sums: Any  # or None: (places, to, writes): sums of activations by run, where it writes


def _mma(builder: Any, kind: str, a: list[Any], b: list[Any], c: list[Any]) -> list[Any]:
    letter = LETTERS[kind]
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{letter}.{letter}.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )
    four = ir.LiteralStructType([FLOAT] * 4)
    result = emit_assembly(builder, four, text, [*["=f"] * 4, *"rrrrrr", *"ffff"], [*a, *b, *c], False)
    return [builder.extract_value(result, i) for i in range(4)]


def _take(builder: Any, kind: Any, at: Any, offset: int) -> list[Any]:
    """Two words or floats of shared memory."""
    word, letter = ("f32", "=f") if kind is FLOAT else ("b32", "=r")
    text = f"ld.shared.v2.{word} {{$0, $1}}, [$2 + {offset}];"
    both = ir.LiteralStructType([kind] * 2)
    result = emit_assembly(builder, both, text, [letter, letter, "r"], [at], True)
    return [builder.extract_value(result, i) for i in range(2)]


def parts(builder: Any, value: Any, count: int) -> list[Any]:
    """The values of a tuple."""
    return [builder.extract_value(value, i) for i in range(count)]


@cache
def run_products(form: RunForm) -> RunProducts:
    """The device functions for a form.

    ``codes``: four a step, fragment by fragment. ``scales``: of rows g and g + 8 of each fragment.
    ``offsets``: the same for each run, with the sign turned. ``places``: a step's two words of row g in
    shared memory, its lane's. ``sums_at``: sums of activations over the first run, of rows 2 t and 2 t + 1;
    others lie behind.
    """
    kind, count, steps = types.UniTuple(f32, form.sums), form.sums, form.steps
    codes_kind, places_kind = types.UniTuple(u32, 4 * steps * form.fragments), types.UniTuple(u32, steps)
    scales_kind = types.UniTuple(f32, 2 * form.fragments)
    offsets_kind = types.UniTuple(f32, 2 * form.fragments * max(form.runs, 1))

    def multiply(
        totals: Any, codes: Any, scales: Any, offsets: Any, places: Any, sums_at: Any
    ) -> Any:  # fmt: skip
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, codes, scales, offsets, places, sums_at = operands
        results = parts(builder, totals, count)
        a, at = parts(builder, codes, 4 * steps * form.fragments), parts(builder, places, steps)
        factors = parts(builder, scales, 2 * form.fragments)
        turned = parts(builder, offsets, 2 * form.fragments * form.runs)
        for j in range(form.eights):
            b = [_take(builder, WORD, place, LINE * j) for place in at]
            far = [PAIR * j + 4 * form.columns * run for run in range(form.runs)]
            x = [_take(builder, FLOAT, sums_at, offset) for offset in far]
            for fragment, d in enumerate(_eight(builder, form, a, b)):
                first = 4 * (fragment * form.eights + j)
                part = results[first : first + 4]
                part = [builder.fma(d[i], factors[2 * fragment + i // 2], part[i]) for i in range(4)]
                for run, sums in enumerate(x):
                    of_run = turned[2 * (form.fragments * run + fragment) :]
                    part = [builder.fma(sums[i % 2], of_run[i // 2], part[i]) for i in range(4)]
                results[first : first + 4] = part
        return context.make_tuple(builder, kind, results)

    if SIMULATED:
        return RunProducts(multiply, multiply, (multiply,) * form.fragments, None)
    return RunProducts(
        first_totals(count),
        as_intrinsic(multiply, kind(kind, codes_kind, scales_kind, offsets_kind, places_kind, u32), emit),
        fragment_parts(form.fragments, form.eights),
        _sums_putter(form) if form.runs else None,
    )


def _eight(builder: Any, form: RunForm, a: list[Any], b: list[list[Any]]) -> list[list[Any]]:
    """The sums of a run for eight rows of activations, by fragment."""
    sums = [[ir.Constant(FLOAT, 0.0)] * 4] * form.fragments
    for step in range(form.steps):
        for fragment in range(form.fragments):
            first = 4 * (fragment * form.steps + step)
            sums[fragment] = _mma(builder, form.kind, a[first : first + 4], b[step], sums[fragment])
    return sums


@cache
def first_totals(count: int) -> Any:
    """The function () -> totals, all 0."""
    kind = types.UniTuple(f32, count)

    def zeros() -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return context.make_tuple(builder, kind, [ir.Constant(FLOAT, 0.0)] * count)

    return as_intrinsic(zeros, kind(), emit)


@cache
def fragment_parts(fragments: int, eights: int) -> tuple[Any, ...]:
    """The functions (totals) -> those of one fragment, by fragment."""
    return tuple(_fragment(fragments, eights, fragment) for fragment in range(fragments))


def _fragment(fragments: int, eights: int, fragment: int) -> Any:
    count = 4 * eights
    kind = types.UniTuple(f32, count)

    def part(totals: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        values = [builder.extract_value(operands[0], fragment * count + i) for i in range(count)]
        return context.make_tuple(builder, kind, values)

    return as_intrinsic(part, kind(types.UniTuple(f32, fragments * count)), emit)


def _sums_putter(form: RunForm) -> Any:
    """The function that sums runs of every ``warps``-th eight rows of activations from a warp's first on.

    ``places``: of all four steps of the first. ``to``: for the first run of rows 2 t, 2 t + 1 of the first;
    eights lie PAIR bytes apart, runs all rows of the tile.
    """
    each = form.steps // form.runs

    def put_sums(places: Any, to: Any, writes: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        places, to, writes = operands
        at, ones = parts(builder, places, STEPS), [ir.Constant(WORD, ONES[form.kind])] * 4
        for eight in range(0, form.columns // 8, form.warps):
            for run in range(STEPS // each):
                sums: list[Any] = [ir.Constant(FLOAT, 0.0)] * 4
                for place in at[run * each : (run + 1) * each]:
                    sums = _mma(builder, form.kind, ones, _take(builder, WORD, place, LINE * eight), sums)
                there = PAIR * eight + 4 * form.columns * run
                text = (
                    f"{{.reg .pred p; setp.ne.u32 p, $1, 0; @p st.shared.v2.f32 [$0 + {there}], {{$2, $3}};}}"
                )
                emit_assembly(builder, ir.VoidType(), text, [*"rrff"], [to, writes, *sums[:2]], True)
        return context.get_dummy_value()

    return as_intrinsic(put_sums, types.void(types.UniTuple(u32, STEPS), u32, u32), emit)
