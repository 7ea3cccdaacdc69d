"""Products of a warp by ``mma``: single ones, and runs of them whose sums are scaled before they are added.

What does what, from small to large:

    one product     mma_bf16, mma_f16        of 16 columns, pairs in registers
                    integer_mma, float_mma   of 32 columns, bytes in registers
                    adder, add_bf16          the same on arrays: a product is added to four sums of an array
                    sums_into                likewise where all of a is one number: sums of activations
    its operands    load_matrices            from rows in shared memory, load_transposed: from columns
                    transposed               of a matrix that is in registers
    a run           run_products             of 16-bit numbers times a scale: cuda:mma_bf16, cuda:mma_f16
    64 columns      byte_products            of bytes, run by run: cuda:mma_q8

Kernels call the first three, which take registers or arrays of them. A run and 64 columns are many ``mma``
with tuples of registers: these are taken apart while the code is made, so loops are written out and all
values stay in registers. They emit each ``mma`` by _emit_mma, each load by _take.

All ``mma`` here have operands alike, lane = 4 g + t:

                                 b   k × 8: activations
                                     column g
                                        │
                                        b0     k of the lane: its t-th pair, or four bytes, of the first half
                                        b1     of the second half
                                        │
    a   16 × k: weights                 ▼      c   16 × 8: sums
        row g       a0, a2   ───────────►          c0, c1   row g,     columns 2 t and 2 t + 1
        row g + 8   a1, a3   ───────────►          c2, c3   row g + 8, the same columns

        a0, a1 meet b0; a2, a3 meet b1

Columns of K come as *sixteens*, what one ``mma`` of 16-bit numbers takes; as *runs*, a sixteen or more that
share a scale; as *steps*, the 64 of a fragment. *Eights* are rows of activations, the columns of b.

assembly.py says how to read a wrapper. They are for GPUs from capability 8.0 on, where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from .assembly import (
    FLOAT,
    WORD,
    emit_assembly,
    emitted,
    f32,
    gpu_only,
    i32,
    instruction,
    only_on_a_gpu,
    parts,
    u32,
    u64,
    zeros_of,
)
from .atoms import inlined
from .floats import PAIRS
from .language import ir, types

# --- one instruction --------------------------------------------------------------------------


def mma_text(k: int, a: str, b: str, sums: str, counts: tuple[int, int, int] = (4, 2, 4)) -> str:
    """The text of the ``mma`` of [16, k] times [k, 8] numbers, all by PTX's names of types.

    ``counts``: registers of a, of b, and of the sums, to which it adds.
    """
    operands, first = [], 0
    for registers in (counts[2], *counts):
        operands.append("{" + ", ".join(f"${first + i}" for i in range(registers)) + "}")
        first += registers
    return f"mma.sync.aligned.m16n8k{k}.row.col.{sums}.{a}.{b}.{sums} {', '.join(operands)};"


@cache
def _called_mma(k: int, a: str, b: str, sums: Any) -> Any:
    """The ``mma`` as a device function of ten registers; ``sums``: their type."""
    text = mma_text(k, a, b, "f32" if sums == f32 else "s32")

    @instruction(text, types.UniTuple(sums, 4), *(u32,) * 6, *(sums,) * 4)
    def mma(
        a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any, c3: Any
    ) -> Any:  # fmt: skip
        only_on_a_gpu()

    return mma


mma_bf16 = _called_mma(16, "bf16", "bf16", f32)
mma_f16 = _called_mma(16, "f16", "f16", f32)


def integer_mma(a: str, b: str) -> Any:
    """The ``mma`` of [16, 32] times [32, 8] bytes, "s8" or "u8", with int32 sums."""
    return _called_mma(32, a, b, i32)


def float_mma(a: str, b: str) -> Any:
    """The ``mma`` of [16, 32] times [32, 8] codes, "e4m3" or "e5m2", with float sums; from capability 8.9."""
    return _called_mma(32, a, b, f32)


def adder(mma: Any) -> Any:
    """The device function that adds a product of a[o] … and b[i] … to the four sums from d[j] on."""

    @inlined
    def add(d: Any, j: Any, a: Any, o: Any, b: Any, i: Any) -> None:
        v = mma(a[o], a[o + 1], a[o + 2], a[o + 3], b[i], b[i + 1], d[j], d[j + 1], d[j + 2], d[j + 3])
        d[j], d[j + 1], d[j + 2], d[j + 3] = v[0], v[1], v[2], v[3]

    return add


add_bf16 = adder(mma_bf16)


@inlined
def sums_into(d: Any, j: Any, times: Any, b: Any, i: Any) -> None:
    """Add the sums of the columns b[i] …, times a pair of equal numbers, to the four from d[j] on."""
    v = mma_bf16(times, times, times, times, b[i], b[i + 1], d[j], d[j + 1], d[j + 2], d[j + 3])
    d[j], d[j + 1], d[j + 2], d[j + 3] = v[0], v[1], v[2], v[3]


# --- matrices in shared memory ----------------------------------------------------------------


# Elements 2 t, 2 t + 1, or bytes 4 t … + 3, of row g of four matrices; lane 8 i + r names row r of i.
load_matrices = gpu_only("load_matrices",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];",
    types.UniTuple(u32, 4), u32,
)  # fmt: skip
# Elements of column g in rows 2 t, 2 t + 1 of four matrices; lane 8 i + r names row r of matrix i.
load_transposed = gpu_only("load_transposed",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];",
    types.UniTuple(u32, 4), u32,
)  # fmt: skip
# Elements of column g in rows 2 t, 2 t + 1 of a matrix of which lanes have 2 t, 2 t + 1 of row g.
transposed = gpu_only("transposed", "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", u32, u32)


# --- runs of 16-bit numbers -------------------------------------------------------------------
#
# A warp multiplies fragments of 16 rows of weights, codes in registers, by 8 · ``eights`` rows of activations
# in shared memory. Four registers of a fragment meet a sixteen; what shares a scale has one, two or four. Its
# sums start from zero, for which ``mma`` needs no register. Four multiply-adds, times the scales of rows g
# and g + 8, add them to the totals; four more for each run with an offset, times its sum of activations.
#
# Sums of a run may be halves, two registers: of row g, and of row g + 8. Four conversions make them float32
# before they are scaled.
#
# Totals are a tuple: four for each eight rows of activations, fragment by fragment. Four are those of columns
# 2 t, 2 t + 1 of row g and of row g + 8.

SIXTEENS = 4  # of a fragment
LINE, PAIR = 8 * 128, 32  # bytes from eight rows of activations to the next, and from their sums to the next
ROW_FACTORS = 32  # bytes of the factors of eight rows of activations
LETTERS = {"float16": "f16", "bfloat16": "bf16"}


class RunForm(NamedTuple):
    """The shape of a warp's products of a run, and the kind of floats of both operands."""

    kind: str  # "float16" or "bfloat16"
    fragments: int
    eights: int
    sixteens: int  # that share a scale
    runs: int  # sums of activations in these, one for each offset; 0: there are no offsets
    warps: int  # that sum activations, those of all eights together

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
    scaled: Callable[..., Any]  # (totals, at) -> totals times the factors of rows 2 t, 2 t + 1 … at ``at``


@cache
def run_products(form: RunForm, in_halves: bool = False) -> RunProducts:
    """The device functions for a form; ``in_halves``: sums of a run are halves.

    Tuples of a lane, the outermost first; of rows there are two, g and g + 8:

        totals     [fragment][eight][4]     sums, as mma gives them
        codes      [fragment][sixteen][4]   as mma takes a
        scales     [fragment][row]
        offsets    [run][fragment][row]     with the sign turned
        places     [sixteen]                addresses of two words of activations in shared memory, of row g

    ``sums_at``: sums of activations over the first run, of rows 2 t and 2 t + 1; others lie behind.
    """
    kind, count, sixteens = types.UniTuple(f32, form.sums), form.sums, form.sixteens
    codes_kind, places_kind = (
        types.UniTuple(u32, 4 * sixteens * form.fragments),
        types.UniTuple(u32, sixteens),
    )
    scales_kind = types.UniTuple(f32, 2 * form.fragments)
    offsets_kind = types.UniTuple(f32, 2 * form.fragments * max(form.runs, 1))

    @emitted(kind, kind, codes_kind, scales_kind, offsets_kind, places_kind, u32)
    def multiply(
        builder: Any, totals: Any, codes: Any, scales: Any, offsets: Any, places: Any, sums_at: Any
    ) -> Any:  # fmt: skip
        results = parts(builder, totals, count)
        a, at = parts(builder, codes, 4 * sixteens * form.fragments), parts(builder, places, sixteens)
        factors = parts(builder, scales, 2 * form.fragments)
        turned = parts(builder, offsets, 2 * form.fragments * form.runs)

        def sums_of_activations(j: int) -> list[list[Any]]:
            far = [PAIR * (j + form.eights * run) for run in range(form.runs)]
            return [_take(builder, FLOAT, sums_at, offset) for offset in far]

        for j in range(form.eights):
            b = [_take(builder, WORD, place, LINE * j) for place in at]
            x = [] if in_halves else sums_of_activations(j)
            for fragment, d in enumerate(_eight(builder, form, a, b, in_halves)):
                first = 4 * (fragment * form.eights + j)
                part = results[first : first + 4]
                part = [builder.fma(d[i], factors[2 * fragment + i // 2], part[i]) for i in range(4)]
                for run, sums in enumerate(sums_of_activations(j) if in_halves else x):
                    of_run = turned[2 * (form.fragments * run + fragment) :]
                    part = [builder.fma(sums[i % 2], of_run[i // 2], part[i]) for i in range(4)]
                results[first : first + 4] = part
        return results

    @emitted(kind, kind, u64)
    def scaled(builder: Any, totals: Any, at: Any) -> Any:
        results = parts(builder, totals, count)
        for j in range(form.eights):
            factors = _take(builder, FLOAT, at, ROW_FACTORS * j, memory="global")
            for fragment in range(form.fragments):
                first = 4 * (fragment * form.eights + j)
                for i in range(4):
                    results[first + i] = builder.fmul(results[first + i], factors[i % 2])
        return results

    put_sums = _sums_putter(form) if form.runs and not in_halves else None
    fragments = fragment_parts(form.fragments, form.eights)
    return RunProducts(zeros_of(kind), multiply, fragments, put_sums, scaled)


def _eight(
    builder: Any, form: RunForm, a: list[Any], b: list[list[Any]], in_halves: bool
) -> list[list[Any]]:  # fmt: skip
    """The sums of a run for eight rows of activations, by fragment, in float32."""
    zeros = [ir.Constant(WORD, 0)] * 2 if in_halves else [ir.Constant(FLOAT, 0.0)] * 4
    sums, letter = [zeros] * form.fragments, LETTERS[form.kind]
    for sixteen in range(form.sixteens):
        for fragment in range(form.fragments):
            first = 4 * (fragment * form.sixteens + sixteen)
            codes, sum_kind = a[first : first + 4], letter if in_halves else "f32"
            sums[fragment] = _emit_mma(builder, letter, sum_kind, codes, b[sixteen], sums[fragment])
    if not in_halves:
        return sums
    return [[each for pair in both for each in _floats(builder, pair)] for both in sums]


def _emit_mma(builder: Any, kind: str, sum_kind: str, a: list[Any], b: list[Any], c: list[Any]) -> list[Any]:
    """The sums of one ``mma`` of numbers of a kind, 32 or 16 bytes of a column of b."""
    k = len(b) * (16 if kind == "s8" else 8)  # 16 bytes of a column of b are two registers of a
    text = mma_text(k, kind, kind, sum_kind, (len(a), len(b), len(c)))
    result, letter = (FLOAT, "f") if sum_kind == "f32" else (WORD, "r")
    constraints = [f"={letter}"] * len(c) + ["r"] * (len(a) + len(b)) + [letter] * len(c)
    results = ir.LiteralStructType([result] * len(c))
    return parts(builder, emit_assembly(builder, results, text, constraints, [*a, *b, *c], False), len(c))


def _take(
    builder: Any, kind: Any, at: Any, offset: int, count: int = 2, memory: str = "shared"
) -> list[Any]:  # fmt: skip
    """Two words or floats of memory, or four."""
    word, letter = ("f32", "=f") if kind is FLOAT else ("b32", "=r")
    results = ", ".join(f"${i}" for i in range(count))
    text = f"ld.{memory}.v{count}.{word} {{{results}}}, [${count} + {offset}];"
    constraints = [*[letter] * count, "l" if memory == "global" else "r"]
    several = ir.LiteralStructType([kind] * count)
    return parts(builder, emit_assembly(builder, several, text, constraints, [at], True), count)


def _floats(builder: Any, pair: Any) -> list[Any]:
    """Both halves of a register."""
    text = "{.reg .b16 low, high; mov.b32 {low, high}, $2; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high;}"
    both = ir.LiteralStructType([FLOAT] * 2)
    return parts(builder, emit_assembly(builder, both, text, ["=f", "=f", "r"], [pair], False), 2)


@cache
def fragment_parts(fragments: int, eights: int) -> tuple[Any, ...]:
    """The functions (totals) -> those of one fragment, by fragment."""
    return tuple(_fragment(fragments, eights, fragment) for fragment in range(fragments))


def _fragment(fragments: int, eights: int, fragment: int) -> Any:
    count = 4 * eights

    @emitted(types.UniTuple(f32, count), types.UniTuple(f32, fragments * count))
    def part(builder: Any, totals: Any) -> Any:
        return [builder.extract_value(totals, fragment * count + i) for i in range(count)]

    return part


def _sums_putter(form: RunForm) -> Any:
    """The function that sums runs of every ``warps``-th eight rows of activations from a warp's first on.

    ``places``: of all four sixteens of the first. ``to``: for the first run of rows 2 t, 2 t + 1 of the
    first; eights lie PAIR bytes apart, those of a run behind each other.
    """
    each, letter = form.sixteens // form.runs, LETTERS[form.kind]

    @emitted(None, types.UniTuple(u32, SIXTEENS), u32, u32)
    def put_sums(builder: Any, places: Any, to: Any, writes: Any) -> Any:
        at, ones = parts(builder, places, SIXTEENS), [ir.Constant(WORD, PAIRS[form.kind].pair(1))] * 4
        for eight in range(0, form.eights, form.warps):
            for run in range(SIXTEENS // each):
                sums: list[Any] = [ir.Constant(FLOAT, 0.0)] * 4
                for place in at[run * each : (run + 1) * each]:
                    sums = _emit_mma(
                        builder, letter, "f32", ones, _take(builder, WORD, place, LINE * eight), sums
                    )
                there = PAIR * (eight + form.eights * run)
                text = (
                    f"{{.reg .pred p; setp.ne.u32 p, $1, 0; @p st.shared.v2.f32 [$0 + {there}], {{$2, $3}};}}"
                )
                emit_assembly(builder, ir.VoidType(), text, [*"rrff"], [to, writes, *sums[:2]], True)

    return put_sums


# --- 64 columns of bytes ---------------------------------------------------------------------------
#
# As above, where each integer sum of a run is scaled twice and added. A warp multiplies fragments of 16 rows
# of weights, bytes in registers, by 8 · ``eights`` rows of activations in shared memory
# (layouts/code_tiles.py). Integer sums begin at the bits of a large float (r18_mma_q8.py), so a sum is a
# float at once. Two multiply-adds scale it: by the weights' scale, which takes the large float off, and by
# that of the activations. A third takes off an offset times a sum of activations.

MAGIC, MAGIC_BITS = 12582912.0, 0x4B400000
BYTE_HALVES = 2  # of 64 columns, which are multiplied one after the other
EIGHTS_WITH_SPARE_REGISTERS = 8  # eights of activations, up to which there are registers to spare


class ByteForm(NamedTuple):
    """The shape of a warp's products of 64 columns."""

    fragments: int
    eights: int
    runs: int  # of 64 columns, each with a scale: 2 or 4
    has_offset: bool
    apart: int  # bytes from eight rows of activations to the next

    @property
    def sixteens(self) -> int:
        """Sixteens of a run."""
        return SIXTEENS // self.runs

    @property
    def rows(self) -> int:
        """Scales of a lane: of rows g and g + 8 of each run and fragment."""
        return 2 * self.runs * self.fragments


class ByteProducts(NamedTuple):
    """Device functions for the products of 64 columns."""

    zeros: Callable[..., Any]  # () -> totals
    multiply: Callable[..., Any]  # (totals, codes, scales, offsets, start, codes_at, scales_at, sums_at)
    fragment: tuple[Callable[..., Any], ...]  # by fragment: (totals) -> its part of them


@cache
def byte_products(form: ByteForm) -> ByteProducts:
    """The device functions for a form.

    Tuples of a lane, the outermost first; of rows there are two, g and g + 8:

        totals     [fragment][eight][4]     sums, as mma gives them
        codes      [fragment][sixteen][row]
        scales     [fragment][run][row]
        offsets    [fragment][run][row]     with the sign turned; or one number of no use
        start      [4]                      MAGIC_BITS each

    ``codes_at``, ``scales_at``, ``sums_at``: a lane's in the first eight rows of activations.
    """
    count = 4 * form.fragments * form.eights
    kind, codes_kind = types.UniTuple(f32, count), types.UniTuple(u32, 2 * SIXTEENS * form.fragments)
    scales_kind, four_words = types.UniTuple(f32, form.rows), types.UniTuple(u32, 4)
    offsets_kind = scales_kind if form.has_offset else types.UniTuple(f32, 1)

    @emitted(kind, kind, codes_kind, scales_kind, offsets_kind, four_words, u32, u32, u32)
    def multiply(
        builder: Any, totals: Any, codes: Any, scales: Any, offsets: Any, start: Any, codes_at: Any,
        scales_at: Any, sums_at: Any,
    ) -> Any:  # fmt: skip
        places = [codes_at, scales_at, sums_at]
        results, a = parts(builder, totals, count), parts(builder, codes, 2 * SIXTEENS * form.fragments)
        factors, begin = parts(builder, scales, form.rows), parts(builder, start, 4)
        less = [builder.fmul(factor, ir.Constant(FLOAT, -MAGIC)) for factor in factors]
        turned = parts(builder, offsets, form.rows) if form.has_offset else []
        rows = list(zip(factors, less, turned or factors, strict=True))
        for half, j in ((half, j) for half in range(BYTE_HALVES) for j in range(form.eights)):
            # Without the barrier the assembler loads so many eights ahead that some do not stay in registers.
            if form.eights > EIGHTS_WITH_SPARE_REGISTERS:
                emit_assembly(builder, ir.VoidType(), "bar.warp.sync -1;", [], [], True)
            b, x, sums = _activations(builder, form, places, half, form.apart * j)
            for run, fragment in (
                (r, f) for r in range(form.runs // BYTE_HALVES) for f in range(form.fragments)
            ):
                first, place = form.sixteens * run, 4 * (fragment * form.eights + j)
                sixteen = SIXTEENS * fragment + SIXTEENS // BYTE_HALVES * half
                row = form.runs * fragment + run
                codes_of_run = a[2 * (sixteen + first) :][: 2 * form.sixteens]
                dots = _integers(builder, codes_of_run, b[first : first + form.sixteens], begin)
                of_rows = rows[2 * (row + form.runs // BYTE_HALVES * half) :]
                for i in range(4):
                    factor, less_magic, offset = of_rows[i // 2]
                    value = builder.fma(dots[i], factor, less_magic)
                    total = builder.fma(value, x[i % 2], results[place + i])
                    if form.has_offset:
                        total = builder.fma(sums[2 * run + i % 2], offset, total)
                    results[place + i] = total
        return results

    return ByteProducts(zeros_of(kind), multiply, fragment_parts(form.fragments, form.eights))


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
    """The sums of a run, of one sixteen or two, as floats."""
    return [builder.bitcast(word, FLOAT) for word in _emit_mma(builder, "s8", "s32", a, b, start)]
