"""Hopper's ``wgmma``: on codes of 8 bits, for attention, with weights in registers; and its sums in memory.

On codes both operands lie in shared memory. A warpgroup multiplies 64 rows with ``columns`` rows of the other
operand, 32 codes along K an instruction, 128 a step. Both operands lie in rows of 128 bytes, swizzled
(hopper.py). A thread, lane 4 g + t of warp w, has the sums of rows 16 w + g and 16 w + g + 8, columns
8 j + 2 t and 8 j + 2 t + 1: four for each j. A warpgroup makes ``halves`` such products in a step, one after
the other, 64 rows apart.

Sums of integers stay in the tensor cores from the first column to the last; FP8 must be promoted.
For capability 9.0 alone (its ``a`` variant): later GPUs have other instructions in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from .assembly import (
    FLOAT,
    LONG,
    WORD,
    emit_assembly,
    emit_in_place,
    emitted,
    f32,
    gpu_only,
    i32,
    parts,
    u32,
    u64,
    zeros_of,
)
from .hopper import NEEDS, waiting
from .language import ir, types

STEP = 128  # codes along K
LOW, HIGH = 1 << 16, 1 << 30 | 64  # words of a descriptor of swizzled rows; address / 16 joins LOW
APART = 64 * STEP // 16  # between descriptors of halves
INTEGERS = ("s8", "u8")


class Form(NamedTuple):
    """The shape and the codes of a warpgroup's product."""

    columns: int
    a: str  # "e4m3", "e5m2", or "s8", "u8"
    b: str
    halves: int = 1

    @property
    def sums(self) -> int:
        """A thread's sums for 64 rows."""
        return self.columns // 2


def tuple_of(kind: Any, count: int) -> Any:
    return types.UniTuple(kind, count)


def chain(form: Form, registers: Sequence[str], a: str, b: str, half: int, fresh: bool) -> list[str]:
    """The assembly of a step, four wgmma; ``fresh``: the first ignores its sums. t, a, b must be declared."""
    sums, results = ",".join(registers), []
    integer = form.a in INTEGERS
    for s in range(STEP // 32):
        for name, of, half_offset in (("a", a, half * APART), ("b", b, 0)):
            results.append(f"add.u32 t, {of}, {half_offset + 2 * s}; mov.b64 {name}, {{t, {HIGH}}};")
        kinds = f"m64n{form.columns}k32.{'s32' if integer else 'f32'}.{form.a}.{form.b}"
        more = f"{0 if fresh and s == 0 else 1}" + ("" if integer else ", 1, 1")
        results.append(f"wgmma.mma_async.sync.aligned.{kinds} {{{sums}}}, a, b, {more};")
    return results


OPEN, FENCE = "{" + NEEDS + " .reg .b32 t; .reg .b64 a, b;", "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"


# --- straight on ---------------------------------------------------------------------------------


class UnpromotedProducts(NamedTuple):
    """Products whose sums stay in the tensor cores; ``a``, ``b``: lower words of descriptors."""

    zeros: Any  # () -> totals, all halves
    advance: Any  # (totals, a, b) -> totals: start the products of a step, wait for those of the one before
    drain: Any  # (totals) -> totals: all products are done


@cache
def unpromoted_products(form: Form) -> UnpromotedProducts:
    """The device functions for integers; for floats they show what the lack of promotion costs."""
    count = form.halves * form.sums
    kind = tuple_of(i32 if form.a in INTEGERS else f32, count)

    @emitted(kind, kind, u32, u32)
    def advance(builder: Any, totals: Any, a: Any, b: Any) -> Any:
        lines = [OPEN, FENCE]
        for half in range(form.halves):
            registers = [f"${i}" for i in range(half * form.sums, (half + 1) * form.sums)]
            lines += chain(form, registers, f"${count}", f"${count + 1}", half, False)
        lines += [COMMIT, "wgmma.wait_group.sync.aligned 1;}"]
        return emit_in_place(builder, "\n".join(lines), parts(builder, totals, count), [a, b])

    @emitted(kind, kind)
    def drain(builder: Any, totals: Any) -> Any:
        return emit_in_place(builder, "wgmma.wait_group.sync.aligned 0;", parts(builder, totals, count))

    return UnpromotedProducts(zeros_of(kind), advance, drain)


# ``wgmma`` on 16-bit floats for attention: scores of two tiles in shared memory, then p times values.
#
# Sums are in an array of the thread, which stays in registers. Lane 4 g + t of warp w has those of rows 16 w
# + g and 16 w + g + 8, columns 8 j + 2 t and 8 j + 2 t + 1: four for each j. Tiles lie in parts of 64
# columns, whose rows of 128 bytes are swizzled: chunk c of 16 bytes at c ^ (row % 8).
#
# Products are started, and done once ``settle`` has waited for them. Only Hopper has these instructions.

PART = 64  # columns of a part of a tile
DEEP = 16  # columns of a product, along K
SUMS, WORDS = types.Array(f32, 1, "C"), types.Array(u32, 1, "C")


def _places(builder: Any, array: Any, count: int) -> list[Any]:
    """The addresses of an array's elements."""
    return [builder.gep(array, [ir.Constant(WORD, i)]) for i in range(count)]


def _store(builder: Any, values: list[Any], places: list[Any]) -> None:
    for value, place in zip(values, places, strict=True):
        builder.store(value, place)


def _descriptor(name: str, address: str, low: int) -> str:
    return f"shr.u32 low, {address}, 4; or.b32 low, low, {low}; mov.b64 {name}, {{low, {HIGH}}};"


@cache
def qk_starter(columns: int, width: int, kind: str) -> Any:
    """The device function ``start(s, rows, keys)``: [64, width] times [columns, width] transposed, into s.

    ``kind``: "f16" or "bf16". Parts of the rows lie ``apart`` bytes from each other.
    """
    count = columns // 2

    @emitted(None, SUMS, u32, u32, u32)
    def start(builder: Any, s: Any, rows: Any, keys: Any, apart: Any) -> Any:
        """Start to make scores; rows and keys are addresses, keys' parts lie next to each other."""
        places, sums, first = _places(builder, s, count), ",".join(f"${i}" for i in range(count)), count
        lines = ["{.reg .b32 low, at; .reg .b64 a, b;", FENCE]
        for part in range(width // PART):
            lines.append(f"mad.lo.u32 at, ${first + 2}, {part}, ${first};" + _descriptor("a", "at", LOW))
            lines.append(f"add.u32 at, ${first + 1}, {part * columns * 128};" + _descriptor("b", "at", LOW))
            for step in range(PART // DEEP):
                fresh = part == step == 0
                lines.append(
                    f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{sums}}}, a, b, "
                    f"{0 if fresh else 1}, 1, 1, 0, 0;"
                )
                if step < PART // DEEP - 1:
                    lines.append("add.u64 a, a, 2; add.u64 b, b, 2;")
        lines.append(COMMIT + "}")
        result, constraints = ir.LiteralStructType([FLOAT] * count), ["=f"] * count + ["r"] * 3
        text, operands = "\n".join(lines), [rows, keys, apart]
        values = emit_assembly(builder, result, text, constraints, operands, effect=True)
        _store(builder, parts(builder, values, count), places)

    return start


@cache
def pv_starter(depth: int, width: int, kind: str) -> Any:
    """The device function ``start(o, p, values)``: adds [64, depth] times [depth, width] to o."""
    count, words = width // 2, depth // 4
    leading = depth * 128 // 16 << 16  # from a part of 64 columns to the next

    @emitted(None, SUMS, WORDS, u32)
    def start(builder: Any, o: Any, p: Any, values: Any) -> Any:
        """Start to add p, pairs in registers, times values at an address."""
        places = _places(builder, o, count)
        pairs = [builder.load(place) for place in _places(builder, p, words)]
        sums = ",".join(f"${i}" for i in range(count))
        lines = ["{.reg .b32 low; .reg .b64 b;", FENCE]
        lines.append(_descriptor("b", f"${count + words}", leading))
        for step in range(depth // DEEP):
            four = ",".join(f"${count + 4 * step + i}" for i in range(4))
            lines.append(
                f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{kind}.{kind} {{{sums}}}, {{{four}}}, b, "
                "1, 1, 1, 1;"
            )
            if step < depth // DEEP - 1:
                lines.append(f"add.u64 b, b, {DEEP * 128 // 16};")
        lines.append(COMMIT + "}")
        before = [builder.load(place) for place in places]
        _store(builder, emit_in_place(builder, "\n".join(lines), before, [*pairs, values]), places)

    return start


@cache
def settler(count: int, pending: int) -> Any:
    """The device function ``settle(sums)``: waits until all but ``pending`` started products are done."""

    @emitted(None, SUMS)
    def settle(builder: Any, sums: Any) -> Any:
        """Wait for the products that these sums are of."""
        places = _places(builder, sums, count)
        before = [builder.load(place) for place in places]
        _store(builder, emit_in_place(builder, f"wgmma.wait_group.sync.aligned {pending};", before), places)

    return settle


# Hopper's ``wgmma`` on bfloat16 or halves: four warps multiply weights in registers by a tile in shared
# memory.

STEPS = 4  # of 16 columns of K, which a row of a tile of the second operand holds: 128 bytes


wait = gpu_only("wait", "wgmma.wait_group.sync.aligned 0;", None)  # wait until all products are done
# Make writes to shared memory visible to ``wgmma``.
publish = gpu_only("publish", "fence.proxy.async.shared::cta;", None)


class Sums(NamedTuple):
    """Device functions for a product of 64 rows and some columns; a thread's sums are a tuple of floats."""

    zeros: Callable[..., Any]
    advance: Callable[..., Any]
    times: Callable[..., Any]
    put: Callable[..., Any]


@cache
def sums(columns: int, floats: str = "bf16") -> Sums:
    """The device functions for a product of ``columns`` columns; ``floats``: "bf16" or "f16"."""
    count, kinds = columns // 2, f"m64n{columns}k16.f32.{floats}.{floats}"
    kind = types.UniTuple(f32, count)

    @emitted(kind, kind, types.UniTuple(u32, 4 * STEPS), u32)
    def advance(builder: Any, total: Any, rows: Any, at: Any) -> Any:
        """Start to add [64, 64] in registers, four a 16 columns, times a tile [64, columns].

        ``at``: the tile's address. Rows of a tile lie swizzled, chunk c of 16 bytes at c ^ (row % 8).
        Waits for the products that were started before these.
        """
        a, values = parts(builder, rows, 4 * STEPS), parts(builder, total, count)
        regs, last = ",".join(f"${i}" for i in range(count)), count + 4 * STEPS
        lines = ["{.reg .b32 low; .reg .b64 b;", f"shr.u32 low, ${last}, 4; or.b32 low, low, {LOW};", FENCE]
        for s in range(STEPS):
            registers = ",".join(f"${count + 4 * s + i}" for i in range(4))
            lines += ["add.u64 b, b, 2;" if s else f"mov.b64 b, {{low, {HIGH}}};"]
            lines += [f"wgmma.mma_async.sync.aligned.{kinds} {{{regs}}},{{{registers}}},b,1,1,1,0;"]
        lines += [f"{COMMIT} wgmma.wait_group.sync.aligned 1;}}"]
        return emit_in_place(builder, "\n".join(lines), values, [*a, at])

    @emitted(kind, kind, f32)
    def times(builder: Any, total: Any, factor: Any) -> Any:
        """Sums times a number."""
        return [builder.fmul(value, factor) for value in parts(builder, total, count)]

    @emitted(None, kind, u32, u32)
    def put(builder: Any, total: Any, at: Any, pitch: Any) -> Any:
        """Write the sums to shared memory; ``at`` is that of row g, column 2 t, columns lie ``pitch`` apart.

        Four sums are those of columns 2 t, 2 t + 1 of row g and of row g + 8; then 8 columns on.
        """
        for i in range(count):
            column, row = i // 4 * 8 + i % 2, i // 2 % 2 * 8
            place = builder.add(at, builder.mul(pitch, ir.Constant(WORD, column)))
            place = builder.add(place, ir.Constant(WORD, 4 * row))
            value = builder.extract_value(total, i)
            store = "st.shared.f32 [$0], $1;"
            emit_assembly(builder, ir.VoidType(), store, ["r", "f"], [place, value], effect=True)

    return Sums(zeros_of(kind), advance, times, put)


# Products of FP8 codes by Hopper's ``wgmma``, with sums that are promoted to float32 every 128 columns.
#
# The tensor cores keep about 14 bits of a sum. So the sums of 128 columns are ``work``, and are added to
# ``totals`` with one multiply-add, times both scales. Four wgmma, the commit and the wait are one piece of
# assembly: no compiler may touch a value that is in flight. The sums go in and out in the same registers even
# though the first wgmma ignores them; otherwise the assembler moves the promotion of the sums before behind
# these products, and needs twice the registers.

FINISH = "wgmma.wait_group.sync.aligned 0;}"
TURNS = 2, 3  # barriers by which two warpgroups take turns, 0 being that of the block, 1 of all that multiply
BOTH = 256  # their threads


class FloatProducts(NamedTuple):
    """Device functions for products of floats.

    A thread's ``work`` is its sums of 64 rows, then 2 · halves scales, those of its rows from the top.
    """

    zeros: Any  # () -> totals, all halves
    nothing: Any  # () -> work
    start: Any  # (work, scales) -> work: with the scales of a stage; the sums stay in their registers
    first: Any  # (work, a, b) -> work: the products of 64 rows
    upper: Any  # (work, a, b, turn) -> work: of a step's first 64 rows, in turns
    lower: Any  # (work, a, b, barrier, parity, more, scales, turn) -> work: of its last ones, as below
    open_turns: Any  # (turn): the first one is the first warpgroup's
    factors: tuple[Any, ...]  # a half: (work, scales of w) -> its scales times those
    promote: tuple[Any, ...]  # a half: (totals, work, factors, at) -> totals; ``at``: as below, or of no use
    scales_of_w: Any  # (address) -> parts of them, neighbours in memory


def _take_promoted(form: Form) -> list[str]:
    """Loads of a thread's scales from shared memory: rows g, g + 8 of each half."""
    offsets = [256 * half + 32 * i for half in range(form.halves) for i in range(2)]
    return [f"ld.shared.f32 {{}}, [{{}} + {offset}];" for offset in offsets]


@cache
def float_products(form: Form, parts: int) -> FloatProducts:
    """The device functions for ``parts`` groups of columns with a scale of w each; 0: each column has one, in
    shared memory.

    Where two warpgroups take turns, one starts its products when those of the other are in flight: ``turn``
    is one of TURNS, or 0 for none. Left to themselves they come to multiply at the same time, and both to
    promote at the same time, while the tensor cores wait.

    ``lower`` waits, while its products run, for the next stage (if there is ``more``), and takes its scales.
    ``scales_of_w`` is a load that keeps its place before the next turn (so no ``.nc``): between two ``wgmma``
    it would delay the second one, and behind them it comes too late.
    """
    work, totals = tuple_of(f32, form.sums + 2 * form.halves), tuple_of(f32, form.halves * form.sums)
    by_columns, parts, halves = not parts, max(parts, 1), range(form.halves)
    kinds = {
        "work": work,
        "totals": totals,
        "scales": tuple_of(f32, parts),
        "factors": tuple_of(f32, 2 * parts),
    }
    return FloatProducts(
        zeros_of(totals),
        zeros_of(work),
        _starter(form, work),
        _multiplier(form, work),
        _multiplier(form, work, in_turns=True),
        _last_multiplier(form, work),
        open_turns,
        tuple(_factors(form, half, parts, kinds) for half in halves),
        tuple(
            _promoter_by_columns(form, half, kinds) if by_columns else _promoter(form, half, parts, kinds)
            for half in halves
        ),
        _loader(parts, by_columns),
    )


def _starter(form: Form, work: Any) -> Any:
    @emitted(work, work, u32)
    def start(builder: Any, before: Any, scales: Any) -> Any:
        loaded = [
            emit_assembly(builder, FLOAT, take.format("$0", "$1"), ["=f", "r"], [scales], effect=True)
            for take in _take_promoted(form)
        ]
        return parts(builder, before, form.sums) + loaded

    return start


def _loader(count: int, by_columns: bool) -> Any:
    @emitted(tuple_of(f32, count), u64)
    def scales_of_w(builder: Any, address: Any) -> Any:
        if by_columns:
            return [ir.Constant(FLOAT, 1.0)]
        texts = [f"ld.global.f32 $0, [$1 + {4 * part}];" for part in range(count)]
        return [emit_assembly(builder, FLOAT, text, ["=f", "l"], [address], effect=True) for text in texts]

    return scales_of_w


# Give the first turn to the first warpgroup; both warpgroups call this before their first products.
open_turns = gpu_only("open_turns",
    f"{{.reg .pred second; setp.eq.u32 second, $0, {TURNS[1]}; @second bar.arrive {TURNS[0]}, {BOTH};}}",
    None, u32,
)  # fmt: skip


def _products(form: Form, half: int, a: str, b: str, turn: str = "") -> list[str]:
    """Four wgmma; in their turn, unless that is 0, which is then the other's."""
    names = [f"${i}" for i in range(form.sums)]
    lines = [FENCE, *chain(form, names, a, b, half, True), COMMIT]
    if turn:
        wait = f".reg .pred apart; setp.ne.u32 apart, {turn}, 0; @apart bar.sync {turn}, {BOTH};"
        lines = [wait, *lines, f"sub.u32 t, {sum(TURNS)}, {turn}; @apart bar.arrive t, {BOTH};"]
    return [OPEN, *lines]


def _multiplier(form: Form, work: Any, in_turns: bool = False) -> Any:
    """The function for a step's first 64 rows, and the wait for them, in one piece."""
    sums, count = form.sums, work.count
    a, b, turn = (f"${sums + i}" for i in range(3))
    text = "\n".join([*_products(form, 0, a, b, turn if in_turns else ""), FINISH])

    def multiplied(builder: Any, before: Any, operands: list[Any]) -> Any:
        values = parts(builder, before, count)
        return emit_in_place(builder, text, values[:sums], operands) + values[sums:]

    @emitted(work, work, u32, u32)
    def first(builder: Any, work: Any, a: Any, b: Any) -> Any:
        return multiplied(builder, work, [a, b])

    @emitted(work, work, u32, u32, u32)
    def upper(builder: Any, work: Any, a: Any, b: Any, turn: Any) -> Any:
        return multiplied(builder, work, [a, b, turn])

    return upper if in_turns else first


def _last_multiplier(form: Form, work: Any) -> Any:
    """The function for a step's last 64 rows, and all the work that overlaps them."""
    sums, results, words = form.sums, work.count, 7
    a, b, barrier, parity, more, at, turn = (f"${results + i}" for i in range(words))
    lines = _products(form, form.halves - 1, a, b, turn)
    lines += [f"setp.eq.u32 done, {more}, 0; @done bra over; {waiting(barrier, parity)}"]
    lines += [take.format(f"${sums + i}", at) for i, take in enumerate(_take_promoted(form))]
    text = "\n".join([*lines, FINISH])

    @emitted(work, work, *(u32,) * words)
    def lower(
        builder: Any, work: Any, a: Any, b: Any, barrier: Any, parity: Any, more: Any, scales: Any, turn: Any
    ) -> Any:  # fmt: skip
        operands = [a, b, barrier, parity, more, scales, turn]
        return emit_in_place(builder, text, parts(builder, work, sums), operands, results - sums)

    return lower


def _factors(form: Form, half: int, count: int, kinds: dict[str, Any]) -> Any:
    """The function for a group's two factors: those of row g and of row g + 8."""

    @emitted(kinds["factors"], kinds["work"], kinds["scales"])
    def factors(builder: Any, work: Any, scales: Any) -> Any:
        rows = [builder.extract_value(work, form.sums + 2 * half + i) for i in range(2)]
        return [builder.fmul(row, scale) for scale in parts(builder, scales, count) for row in rows]

    return factors


def _promoter(form: Form, half: int, count: int, kinds: dict[str, Any]) -> Any:
    @emitted(kinds["totals"], kinds["totals"], kinds["work"], kinds["factors"], u32)
    def promote(builder: Any, totals: Any, work: Any, factors: Any, at: Any) -> Any:
        results = parts(builder, totals, form.halves * form.sums)
        factor_values = parts(builder, factors, 2 * count)
        for i, value in enumerate(parts(builder, work, form.sums)):
            factor = factor_values[2 * (i * count // form.sums) + (i >> 1 & 1)]
            place = half * form.sums + i
            results[place] = builder.fma(value, factor, results[place])
        return results

    return promote


def _promoter_by_columns(form: Form, half: int, kinds: dict[str, Any]) -> Any:
    """``at``: shared memory with the scales of columns 2 t and 2 t + 1, then 8 columns on."""

    @emitted(kinds["totals"], kinds["totals"], kinds["work"], kinds["factors"], u32)
    def promote(builder: Any, totals: Any, work: Any, factors: Any, at: Any) -> Any:
        results = parts(builder, totals, form.halves * form.sums)
        values, rows = parts(builder, work, form.sums), parts(builder, factors, 2)
        pair = ir.LiteralStructType([FLOAT] * 2)
        for j in range(form.columns // 8):
            text = f"ld.shared.v2.f32 {{$0, $1}}, [$2 + {32 * j}];"
            columns = emit_assembly(builder, pair, text, ["=f", "=f", "r"], [at], effect=True)
            for c in range(4):
                factor = builder.fmul(rows[c >> 1], builder.extract_value(columns, c & 1))
                i = half * form.sums + 4 * j + c
                results[i] = builder.fma(values[4 * j + c], factor, results[i])
        return results

    return promote


# A thread's sums stored, added to memory, and added up with factors: for the chapters.
#
# A thread, lane 4 g + t, has for every 8 columns the sums of columns 2 t and 2 t + 1 of row g, then those of
# row g + 8. ``at`` is the address of row g, column 2 t of 32-bit numbers whose rows are ``pitch`` bytes
# apart.


def _kinds(form: Form) -> tuple[Any, str]:
    """The type of a thread's sums of 64 rows, and the letter of their registers."""
    integer = form.a in INTEGERS
    return tuple_of(i32 if integer else f32, form.sums), "r" if integer else "f"


def _mover(form: Form, texts: tuple[str, ...], address: Any, word: Any, letter: str) -> Any:
    """The function that gives each pair of sums to instructions, with the address of the pair."""
    kind, register = _kinds(form)

    @emitted(None, kind, address, address)
    def move(builder: Any, totals: Any, at: Any, pitch: Any) -> Any:
        values = parts(builder, totals, form.sums)
        rows = (at, builder.add(at, builder.mul(pitch, ir.Constant(word, 8))))
        for i in range(0, form.sums, 2):
            place = builder.add(rows[i // 2 % 2], ir.Constant(word, i // 4 * 32))
            for text in texts:
                constraints, pair = [letter, register, register], [place, *values[i : i + 2]]
                emit_assembly(builder, ir.VoidType(), text, constraints, pair, effect=True)

    return move


@cache
def storer(form: Form) -> Any:
    """The function (totals, at, pitch) that stores a thread's sums to device memory."""
    kind = _kinds(form)[1].replace("r", "b")
    return _mover(form, (f"st.global.v2.{kind}32 [$0], {{$1, $2}};",), u64, LONG, "l")


@cache
def putter(form: Form) -> Any:
    """The function (totals, at, pitch) that puts a thread's sums into shared memory."""
    kind = _kinds(form)[1].replace("r", "b")
    return _mover(form, (f"st.shared.v2.{kind}32 [$0], {{$1, $2}};",), u32, WORD, "r")


@cache
def adder(form: Form) -> Any:
    """The function (totals, at, pitch) that adds a thread's whole sums to those in device memory."""
    texts = ("red.global.add.u32 [$0], $1;", "red.global.add.u32 [$0+4], $2;")
    return _mover(form, texts, u64, LONG, "l")


@cache
def scaled_adder(form: Form) -> Any:
    """The function (totals, sums, low, high) -> totals + sums · factor: low of row g, high of row g + 8."""
    kind = tuple_of(f32, form.sums)

    @emitted(kind, kind, kind, f32, f32)
    def add(builder: Any, totals: Any, sums: Any, low: Any, high: Any) -> Any:
        pairs = zip(parts(builder, totals, form.sums), parts(builder, sums, form.sums), strict=True)
        return [builder.fma(new, (low, high)[i // 2 % 2], total) for i, (total, new) in enumerate(pairs)]

    return add
