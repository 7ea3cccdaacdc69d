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
from .assembly import FLOAT, WORD, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32, u64
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


# Products of a warp by ``mma`` whose sums of one run are halves, and are made float32 when they are scaled.
#
# As mma_runs.py does, with the same tuples. A fragment's sums of eight rows of activations are two registers:
# columns 2 t, 2 t + 1 of row g, and of row g + 8. Four conversions and four multiply-adds, times the scales
# of these rows, add them to the totals; offsets meet sums of activations in float32.


ROW_FACTORS = 32  # bytes of the factors of eight rows of activations


class HalfProducts(NamedTuple):
    """Device functions for the products of a run."""

    zeros: Callable[..., Any]  # this, ``multiply`` and ``fragment``: as RunProducts has them
    multiply: Callable[..., Any]
    fragment: tuple[Callable[..., Any], ...]
    scaled: Callable[..., Any]  # (totals, at) -> totals times the factors of rows 2 t, 2 t + 1 … at ``at``


def _mma_halves(builder: Any, a: list[Any], b: list[Any], c: list[Any]) -> list[Any]:
    text = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {$0, $1}, {$2, $3, $4, $5}, {$6, $7}, {$8, $9};"
    pair = ir.LiteralStructType([WORD] * 2)
    result = emit_assembly(builder, pair, text, ["=r", "=r", *"rrrrrrrr"], [*a, *b, *c], False)
    return parts(builder, result, 2)


def _two(builder: Any, kind: Any, text: str, operand: Any, letter: str, memory: bool) -> list[Any]:
    """The two words or floats that an instruction makes of one operand."""
    both, out = ir.LiteralStructType([kind] * 2), "=f" if kind is FLOAT else "=r"
    return parts(builder, emit_assembly(builder, both, text, [out, out, letter], [operand], memory), 2)


def _floats(builder: Any, pair: Any) -> list[Any]:
    """Both halves of a register."""
    text = "{.reg .b16 low, high; mov.b32 {low, high}, $2; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high;}"
    return _two(builder, FLOAT, text, pair, "r", False)


@cache
def half_products(form: RunForm) -> HalfProducts:
    """The device functions for a form of one run."""
    kind, count, steps = types.UniTuple(f32, form.sums), form.sums, form.steps
    codes_kind, places_kind = types.UniTuple(u32, 4 * steps * form.fragments), types.UniTuple(u32, steps)
    scales_kind = types.UniTuple(f32, 2 * form.fragments)

    def multiply(
        totals: Any, codes: Any, scales: Any, offsets: Any, places: Any, sums_at: Any
    ) -> Any:  # fmt: skip
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, codes, scales, offsets, places, sums_at = operands
        results = parts(builder, totals, count)
        a, at = parts(builder, codes, 4 * steps * form.fragments), parts(builder, places, steps)
        factors, turned = (parts(builder, each, 2 * form.fragments) for each in (scales, offsets))
        for j in range(form.eights):
            far = LINE * j
            b = [_two(builder, WORD, f"ld.shared.v2.b32 {{$0, $1}}, [$2 + {far}];", p, "r", True) for p in at]
            for fragment, sums in enumerate(_eight_halves(builder, form, a, b)):
                first = 4 * (fragment * form.eights + j)
                part = results[first : first + 4]
                part = [builder.fma(sums[i], factors[2 * fragment + i // 2], part[i]) for i in range(4)]
                if form.runs:
                    text = f"ld.shared.v2.f32 {{$0, $1}}, [$2 + {PAIR * j}];"
                    x = _two(builder, FLOAT, text, sums_at, "r", True)
                    part = [builder.fma(x[i % 2], turned[2 * fragment + i // 2], part[i]) for i in range(4)]
                results[first : first + 4] = part
        return context.make_tuple(builder, kind, results)

    def scaled(totals: Any, at: Any) -> Any:
        only_on_a_gpu()

    def emit_scaled(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, at = operands
        results = parts(builder, totals, count)
        for j in range(form.eights):
            text = f"ld.global.v2.f32 {{$0, $1}}, [$2 + {ROW_FACTORS * j}];"
            factors = _two(builder, FLOAT, text, at, "l", True)
            for fragment in range(form.fragments):
                first = 4 * (fragment * form.eights + j)
                for i in range(4):
                    results[first + i] = builder.fmul(results[first + i], factors[i % 2])
        return context.make_tuple(builder, kind, results)

    if SIMULATED:
        return HalfProducts(multiply, multiply, (multiply,) * form.fragments, scaled)
    return HalfProducts(
        first_totals(count),
        as_intrinsic(multiply, kind(kind, codes_kind, scales_kind, scales_kind, places_kind, u32), emit),
        fragment_parts(form.fragments, form.eights),
        as_intrinsic(scaled, kind(kind, u64), emit_scaled),
    )


def _eight_halves(builder: Any, form: RunForm, a: list[Any], b: list[list[Any]]) -> list[list[Any]]:
    """The sums of a run for eight rows of activations, by fragment, in float32."""
    sums = [[ir.Constant(WORD, 0)] * 2] * form.fragments
    for step in range(form.steps):
        for fragment in range(form.fragments):
            first = 4 * (fragment * form.steps + step)
            sums[fragment] = _mma_halves(builder, a[first : first + 4], b[step], sums[fragment])
    return [[each for pair in both for each in _floats(builder, pair)] for both in sums]


# Products of a warp by ``mma`` on bytes, where each integer sum of a run is scaled twice and added.
#
# As mma_runs.py does with 16 bits. A warp multiplies fragments of 16 rows of weights, bytes in registers, by
# 8 · ``eights`` rows of activations in shared memory (layouts/code_tiles.py). Integer sums begin at the
# bits of a large float (r9_mma_magic.py), so a sum is a float at once. Two multiply-adds scale it: by
# the weights' scale, which takes the large float off, and by that of the activations. A third takes off an
# offset times a sum of activations.
MAGIC, MAGIC_BITS = 12582912.0, 0x4B400000
BYTE_HALVES = 2  # of a step, which are multiplied one after the other
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
        for half, j in ((half, j) for half in range(BYTE_HALVES) for j in range(form.eights)):
            if form.eights > FEW:  # else the assembler loads so many that some do not stay in registers
                emit_assembly(builder, ir.VoidType(), "bar.warp.sync -1;", [], [], True)
            b, x, sums = _activations(builder, form, places, half, form.apart * j)
            for run, fragment in (
                (r, f) for r in range(form.runs // BYTE_HALVES) for f in range(form.fragments)
            ):
                first, place = form.steps * run, 4 * (fragment * form.eights + j)
                step, row = STEPS * fragment + STEPS // BYTE_HALVES * half, form.runs * fragment + run
                codes_of_run = a[2 * (step + first) :][: 2 * form.steps]
                dots = _integers(builder, codes_of_run, b[first : first + form.steps], begin)
                of_rows = rows[2 * (row + form.runs // BYTE_HALVES * half) :]
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
    codes = _take_bytes(builder, WORD, codes_at, at + 8 * half, 2)
    scales, count = _take_bytes(builder, FLOAT, scales_at, at + 8 * half, 2), form.runs
    sums = _take_bytes(builder, FLOAT, sums_at, at + 4 * count * half, count) if form.has_offset else []
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


def _take_bytes(builder: Any, kind: Any, at: Any, offset: int, count: int) -> list[Any]:
    """Two words or floats of shared memory, or four."""
    word, letter = ("f32", "=f") if kind is FLOAT else ("b32", "=r")
    results = ", ".join(f"${i}" for i in range(count))
    text = f"ld.shared.v{count}.{word} {{{results}}}, [${count} + {offset}];"
    several = ir.LiteralStructType([kind] * count)
    return parts(builder, emit_assembly(builder, several, text, [*[letter] * count, "r"], [at], True), count)
