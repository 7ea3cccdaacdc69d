"""``wgmma`` on codes of 8 bits, both operands in shared memory, and what happens to its sums.

A warpgroup multiplies 64 rows with ``columns`` rows of the other operand, 32 codes along K an instruction,
128 a step. Both operands lie in rows of 128 bytes, swizzled (words/boxes.py). A thread, lane 4 g + t of warp
w, has the sums of rows 16 w + g and 16 w + g + 8, columns 8 j + 2 t and 8 j + 2 t + 1: four for each j.
``halves`` such products, 64 rows apart, make one after the other up what a warpgroup does in a step.

Floats: the tensor cores keep about 14 bits of a sum, so the sums of 128 columns are ``work`` and go over
into ``totals`` with one multiply-add, times both scales. Four wgmma, the commit and the wait are one piece
of assembly: no compiler may touch a value that is in flight. The sums go in and out in the same registers
even though the first wgmma ignores what is in them; without that the assembler moves the promotion of the
sums before behind these products, and needs twice the registers.

Integers: sums stay in the tensor cores from the first column to the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir

from .assembly import FLOAT, SIMULATED, WORD, as_intrinsic, emit_assembly, f32, i32, only_on_a_gpu, u32, u64
from .barrier import NEEDS, waiting
from .language import types

STEP = 128  # codes along K
LOW, HIGH = (
    1 << 16,
    1 << 30 | 64,
)  # of a tile's descriptor: words of warpgroup.SWIZZLED; the address comes into LOW
APART = 64 * STEP // 16  # between descriptors of halves
INTEGERS = ("s8", "u8")


class Form(NamedTuple):
    """A product of a warpgroup."""

    columns: int
    a: str  # "e4m3", "e5m2", or "s8", "u8"
    b: str
    halves: int = 1

    @property
    def sums(self) -> int:
        """Of a thread for 64 rows."""
        return self.columns // 2


def unpacked(builder: Any, value: Any, count: int) -> list[Any]:
    """The parts of a tuple."""
    return [builder.extract_value(value, i) for i in range(count)]


def _tuple(kind: Any, count: int) -> Any:
    return types.UniTuple(kind, count)


def _chain(form: Form, registers: Sequence[str], a: str, b: str, half: int, fresh: bool) -> list[str]:
    """Four wgmma; ``fresh``: the first one ignores what is in its sums. Registers t, a and b are declared."""
    sums, made = ",".join(registers), []
    integer = form.a in INTEGERS
    for s in range(STEP // 32):
        for name, of, moved in (("a", a, half * APART), ("b", b, 0)):
            made.append(f"add.u32 t, {of}, {moved + 2 * s}; mov.b64 {name}, {{t, {HIGH}}};")
        kinds = f"m64n{form.columns}k32.{'s32' if integer else 'f32'}.{form.a}.{form.b}"
        more = f"{0 if fresh and s == 0 else 1}" + ("" if integer else ", 1, 1")
        made.append(f"wgmma.mma_async.sync.aligned.{kinds} {{{sums}}}, a, b, {more};")
    return made


BEGIN = "{" + NEEDS + " .reg .b32 t; .reg .b64 a, b; wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"


# --- integers ---------------------------------------------------------------------------------


class Integers(NamedTuple):
    """What there is for products of integers; ``a``, ``b``: lower words of descriptors."""

    zeros: Any  # () -> totals, all halves
    advance: Any  # (totals, a, b) -> totals: start the products of a step, wait for those of the one before
    drain: Any  # (totals) -> totals: all products are done


@cache
def integer_products(form: Form) -> Integers:
    count = form.halves * form.sums
    kind = _tuple(i32, count)

    def zeros() -> Any:
        only_on_a_gpu()

    def emit_zeros(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return context.make_tuple(builder, kind, [ir.Constant(WORD, 0)] * count)

    def advance(totals: Any, a: Any, b: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, a, b = operands
        names = [f"${i}" for i in range(count)]
        lines = [BEGIN]
        for half in range(form.halves):
            own = names[half * form.sums : (half + 1) * form.sums]
            lines += _chain(form, own, f"${count}", f"${count + 1}", half, False)
        lines += [COMMIT, "wgmma.wait_group.sync.aligned 1;}"]
        constraints = ["=r"] * count + ["r", "r"] + [str(i) for i in range(count)]
        result = ir.LiteralStructType([WORD] * count)
        values = unpacked(builder, totals, count)
        made = emit_assembly(builder, result, "\n".join(lines), constraints, [a, b, *values], effect=True)
        return context.make_tuple(builder, kind, unpacked(builder, made, count))

    def drain(totals: Any) -> Any:
        only_on_a_gpu()

    def emit_drain(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        values, result = unpacked(builder, operands[0], count), ir.LiteralStructType([WORD] * count)
        constraints = ["=r"] * count + [str(i) for i in range(count)]
        text = "wgmma.wait_group.sync.aligned 0;"
        made = emit_assembly(builder, result, text, constraints, values, effect=True)
        return context.make_tuple(builder, kind, unpacked(builder, made, count))

    return Integers(
        _wrapped(zeros, kind(), emit_zeros),
        _wrapped(advance, kind(kind, u32, u32), emit),
        _wrapped(drain, kind(kind), emit_drain),
    )


# --- floats -----------------------------------------------------------------------------------


class Floats(NamedTuple):
    """What there is for products of floats. A thread's ``work`` is its sums of 64 rows, then 2 · halves
    scales: of its rows, from the top.
    """

    zeros: Any  # () -> totals, all halves
    nothing: Any  # () -> work
    start: Any  # (work, scales) -> work: with the scales of a stage; the sums stay in their registers
    first: Any  # (work, a, b) -> work: the products of a step's first 64 rows
    last: Any  # (work, a, b, barrier, parity, more, scales) -> work: of its last ones, as below
    factors: tuple[Any, ...]  # a half: (work, scales of w) -> its scales times those
    promote: tuple[Any, ...]  # a half: (totals, work, factors, at) -> totals; ``at``: as below, or of no use
    scales_of_w: Any  # (address) -> parts of them, neighbours in memory


def _take(form: Form) -> list[str]:
    """Loads of a thread's scales from shared memory: rows g, g + 8 of each half."""
    offsets = [256 * half + 32 * i for half in range(form.halves) for i in range(2)]
    return [f"ld.shared.f32 {{}}, [{{}} + {offset}];" for offset in offsets]


@cache
def float_products(form: Form, parts: int) -> Floats:
    """``parts``: into how many the columns are divided, each with a scale of w of its own; 0: each column has
    one, in shared memory.

    ``last`` waits, while its products run, for the next stage (if there is ``more``), and takes its scales.
    """
    work, totals = _tuple(f32, form.sums + 2 * form.halves), _tuple(f32, form.halves * form.sums)
    by_columns, parts, halves = not parts, max(parts, 1), range(form.halves)
    kinds = {"work": work, "totals": totals, "scales": _tuple(f32, parts), "factors": _tuple(f32, 2 * parts)}
    return Floats(
        _zeros(totals),
        _zeros(work),
        _starter(form, work),
        _multiplier(form, work, 0, ahead=False),
        _multiplier(form, work, form.halves - 1, ahead=True),
        tuple(_factors(form, half, parts, kinds) for half in halves),
        tuple(
            _promoter_by_columns(form, half, kinds) if by_columns else _promoter(form, half, parts, kinds)
            for half in halves
        ),
        _loader(parts, by_columns),
    )


def _wrapped(meaning: Callable[..., Any], signature: Any, emit: Callable[..., Any]) -> Any:
    return meaning if SIMULATED else as_intrinsic(meaning, signature, emit)


def _zeros(kind: Any) -> Any:
    def zeros() -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return context.make_tuple(builder, kind, [ir.Constant(FLOAT, 0.0)] * kind.count)

    return _wrapped(zeros, kind(), emit)


def _starter(form: Form, work: Any) -> Any:
    def start(work: Any, scales: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        before, at = operands
        taken = [
            emit_assembly(builder, FLOAT, take.format("$0", "$1"), ["=f", "r"], [at], effect=True)
            for take in _take(form)
        ]
        return context.make_tuple(builder, work, unpacked(builder, before, form.sums) + taken)

    return _wrapped(start, work(work, u32), emit)


def _loader(parts: int, by_columns: bool) -> Any:
    kind = _tuple(f32, parts)

    def scales_of_w(address: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        if by_columns:
            return context.make_tuple(builder, kind, [ir.Constant(FLOAT, 1.0)])
        texts = [f"ld.global.nc.f32 $0, [$1 + {4 * part}];" for part in range(parts)]
        taken = [emit_assembly(builder, FLOAT, text, ["=f", "l"], operands, effect=True) for text in texts]
        return context.make_tuple(builder, kind, taken)

    return _wrapped(scales_of_w, kind(u64), emit)


def _multiplier(form: Form, work: Any, half: int, ahead: bool) -> Any:
    """Four wgmma and the wait for them, in one piece."""
    sums, scales = form.sums, 2 * form.halves
    results = sums + scales * ahead
    names = [f"${i}" for i in range(sums)]
    a, b, barrier, parity, more, at = (f"${results + i}" for i in range(6))
    lines = [BEGIN, *_chain(form, names, a, b, half, True), COMMIT]
    if ahead:
        lines += [f"setp.eq.u32 done, {more}, 0; @done bra over; {waiting(barrier, parity)}"]
        lines += [take.format(f"${sums + i}", at) for i, take in enumerate(_take(form))]
    lines += ["wgmma.wait_group.sync.aligned 0;}"]
    words = 6 if ahead else 2
    constraints = ["=f"] * sums + ["=&f"] * (results - sums) + ["r"] * words + [str(i) for i in range(sums)]

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        before, *given = operands
        values = unpacked(builder, before, sums + scales)
        result = ir.LiteralStructType([FLOAT] * results)
        made = emit_assembly(
            builder, result, "\n".join(lines), constraints, [*given, *values[:sums]], effect=True
        )
        return context.make_tuple(builder, work, unpacked(builder, made, results) + values[results:])

    def first(work: Any, a: Any, b: Any) -> Any:
        only_on_a_gpu()

    def last(work: Any, a: Any, b: Any, barrier: Any, parity: Any, more: Any, scales: Any) -> Any:
        only_on_a_gpu()

    return _wrapped(last if ahead else first, work(work, *(u32,) * words), emit)


def _factors(form: Form, half: int, parts: int, kinds: dict[str, Any]) -> Any:
    """A part's two: those of row g and of row g + 8."""

    def factors(work: Any, scales: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        work, scales = operands
        rows = [builder.extract_value(work, form.sums + 2 * half + i) for i in range(2)]
        each = unpacked(builder, scales, parts)
        made = [builder.fmul(row, scale) for scale in each for row in rows]
        return context.make_tuple(builder, kinds["factors"], made)

    return _wrapped(factors, kinds["factors"](kinds["work"], kinds["scales"]), emit)


def _promoter(form: Form, half: int, parts: int, kinds: dict[str, Any]) -> Any:
    def promote(totals: Any, work: Any, factors: Any, at: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, work, factors, _ = operands
        made = unpacked(builder, totals, form.halves * form.sums)
        found = unpacked(builder, factors, 2 * parts)
        for i, value in enumerate(unpacked(builder, work, form.sums)):
            factor = found[2 * (i * parts // form.sums) + (i >> 1 & 1)]
            at = half * form.sums + i
            made[at] = builder.fma(value, factor, made[at])
        return context.make_tuple(builder, kinds["totals"], made)

    return _wrapped(promote, kinds["totals"](kinds["totals"], kinds["work"], kinds["factors"], u32), emit)


def _promoter_by_columns(form: Form, half: int, kinds: dict[str, Any]) -> Any:
    """``at``: shared memory with the scales of columns 2 t and 2 t + 1, then 8 columns on."""

    def promote(totals: Any, work: Any, factors: Any, at: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, work, factors, at = operands
        made = unpacked(builder, totals, form.halves * form.sums)
        values, rows = unpacked(builder, work, form.sums), unpacked(builder, factors, 2)
        pair = ir.LiteralStructType([FLOAT] * 2)
        for j in range(form.columns // 8):
            text = f"ld.shared.v2.f32 {{$0, $1}}, [$2 + {32 * j}];"
            columns = emit_assembly(builder, pair, text, ["=f", "=f", "r"], [at], effect=True)
            for c in range(4):
                factor = builder.fmul(rows[c >> 1], builder.extract_value(columns, c & 1))
                i = half * form.sums + 4 * j + c
                made[i] = builder.fma(values[4 * j + c], factor, made[i])
        return context.make_tuple(builder, kinds["totals"], made)

    return _wrapped(promote, kinds["totals"](kinds["totals"], kinds["work"], kinds["factors"], u32), emit)
