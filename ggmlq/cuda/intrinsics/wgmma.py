"""``wgmma`` on codes of 8 bits, both operands in shared memory.

A warpgroup multiplies 64 rows with ``columns`` rows of the other operand, 32 codes along K an instruction,
128 a step. Both operands lie in rows of 128 bytes, swizzled (intrinsics/boxes.py). A thread, lane 4 g + t
of warp w, has the sums of rows 16 w + g and 16 w + g + 8, columns 8 j + 2 t and 8 j + 2 t + 1: four for
each j. A warpgroup makes ``halves`` such products in a step, one after the other, 64 rows apart.

Sums of integers stay in the tensor cores from the first column to the last; FP8 must be promoted:
wgmma.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from .assembly import FLOAT, WORD, as_intrinsic, emit_assembly, f32, i32, instruction, only_on_a_gpu, u32, u64
from .barrier import NEEDS, waiting
from .language import SIMULATED, ir, types

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


def unpacked(builder: Any, value: Any, count: int) -> list[Any]:
    """The parts of a tuple."""
    return [builder.extract_value(value, i) for i in range(count)]


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


def wrapped(meaning: Callable[..., Any], signature: Any, emit: Callable[..., Any]) -> Any:
    return meaning if SIMULATED else as_intrinsic(meaning, signature, emit)


# --- straight on ---------------------------------------------------------------------------------


class UnpromotedProducts(NamedTuple):
    """Products whose sums stay in the tensor cores; ``a``, ``b``: lower words of descriptors."""

    zeros: Any  # () -> totals, all halves
    advance: Any  # (totals, a, b) -> totals: start the products of a step, wait for those of the one before
    drain: Any  # (totals) -> totals: all products are done


@cache
def unpromoted_products(form: Form) -> UnpromotedProducts:
    """The device functions for integers; for floats they show what the lack of promotion costs."""
    count, integer = form.halves * form.sums, form.a in INTEGERS
    kind, word, letter = (
        (tuple_of(i32, count), WORD, "=r") if integer else (tuple_of(f32, count), FLOAT, "=f")
    )

    def zeros() -> Any:
        only_on_a_gpu()

    def emit_zeros(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return context.make_tuple(builder, kind, [ir.Constant(word, 0 if integer else 0.0)] * count)

    def advance(totals: Any, a: Any, b: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, a, b = operands
        names = [f"${i}" for i in range(count)]
        lines = [OPEN, FENCE]
        for half in range(form.halves):
            registers = names[half * form.sums : (half + 1) * form.sums]
            lines += chain(form, registers, f"${count}", f"${count + 1}", half, False)
        lines += [COMMIT, "wgmma.wait_group.sync.aligned 1;}"]
        constraints = [letter] * count + ["r", "r"] + [str(i) for i in range(count)]
        result = ir.LiteralStructType([word] * count)
        values = unpacked(builder, totals, count)
        results = emit_assembly(builder, result, "\n".join(lines), constraints, [a, b, *values], effect=True)
        return context.make_tuple(builder, kind, unpacked(builder, results, count))

    def drain(totals: Any) -> Any:
        only_on_a_gpu()

    def emit_drain(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        values, result = unpacked(builder, operands[0], count), ir.LiteralStructType([word] * count)
        constraints = [letter] * count + [str(i) for i in range(count)]
        text = "wgmma.wait_group.sync.aligned 0;"
        results = emit_assembly(builder, result, text, constraints, values, effect=True)
        return context.make_tuple(builder, kind, unpacked(builder, results, count))

    return UnpromotedProducts(
        wrapped(zeros, kind(), emit_zeros),
        wrapped(advance, kind(kind, u32, u32), emit),
        wrapped(drain, kind(kind), emit_drain),
    )


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


def _places(context: Any, builder: Any, kind: Any, array: Any, count: int) -> list[Any]:
    """The addresses of an array's elements."""
    data = context.make_array(kind)(context, builder, array).data
    return [builder.gep(data, [ir.Constant(WORD, i)]) for i in range(count)]


def _descriptor(name: str, address: str, low: int) -> str:
    return f"shr.u32 low, {address}, 4; or.b32 low, low, {low}; mov.b64 {name}, {{low, {HIGH}}};"


@cache
def qk_starter(columns: int, width: int, kind: str) -> Any:
    """The device function ``start(s, rows, keys)``: [64, width] times [columns, width] transposed, into s.

    ``kind``: "f16" or "bf16". Parts of the rows lie ``apart`` bytes from each other.
    """
    count = columns // 2

    def start(s: Any, rows: Any, keys: Any, apart: Any) -> Any:
        """Start to make scores; rows and keys are addresses, keys' parts lie next to each other."""
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        places = _places(context, builder, signature.args[0], operands[0], count)
        sums, first = ",".join(f"${i}" for i in range(count)), count
        lines = ["{.reg .b32 low, at; .reg .b64 a, b;", "wgmma.fence.sync.aligned;"]
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
        lines.append("wgmma.commit_group.sync.aligned;}")
        result = ir.LiteralStructType([FLOAT] * count)
        constraints = ["=f"] * count + ["r"] * 3
        values = emit_assembly(builder, result, "\n".join(lines), constraints, operands[1:], effect=True)
        for i, place in enumerate(places):
            builder.store(builder.extract_value(values, i), place)
        return context.get_dummy_value()

    return start if SIMULATED else as_intrinsic(start, types.void(SUMS, u32, u32, u32), emit)


@cache
def pv_starter(depth: int, width: int, kind: str) -> Any:
    """The device function ``start(o, p, values)``: adds [64, depth] times [depth, width] to o."""
    count, words = width // 2, depth // 4
    leading = depth * 128 // 16 << 16  # from a part of 64 columns to the next

    def start(o: Any, p: Any, values: Any) -> Any:
        """Start to add p, pairs in registers, times values at an address."""
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        places = _places(context, builder, signature.args[0], operands[0], count)
        pairs = [
            builder.load(place) for place in _places(context, builder, signature.args[1], operands[1], words)
        ]
        sums = ",".join(f"${i}" for i in range(count))
        lines = ["{.reg .b32 low; .reg .b64 b;", "wgmma.fence.sync.aligned;"]
        lines.append(_descriptor("b", f"${count + words}", leading))
        for step in range(depth // DEEP):
            four = ",".join(f"${count + 4 * step + i}" for i in range(4))
            lines.append(
                f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{kind}.{kind} {{{sums}}}, {{{four}}}, b, "
                "1, 1, 1, 1;"
            )
            if step < depth // DEEP - 1:
                lines.append(f"add.u64 b, b, {DEEP * 128 // 16};")
        lines.append("wgmma.commit_group.sync.aligned;}")
        constraints = ["=f"] * count + ["r"] * (words + 1) + [str(i) for i in range(count)]
        before = [builder.load(place) for place in places]
        result = ir.LiteralStructType([FLOAT] * count)
        values = emit_assembly(
            builder, result, "\n".join(lines), constraints, [*pairs, operands[2], *before], effect=True
        )
        for i, place in enumerate(places):
            builder.store(builder.extract_value(values, i), place)
        return context.get_dummy_value()

    return start if SIMULATED else as_intrinsic(start, types.void(SUMS, WORDS, u32), emit)


@cache
def settler(count: int, pending: int) -> Any:
    """The device function ``settle(sums)``: waits until all but ``pending`` started products are done."""

    def settle(sums: Any) -> Any:
        """Wait for the products that these sums are of."""
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        places = _places(context, builder, signature.args[0], operands[0], count)
        constraints = ["=f"] * count + [str(i) for i in range(count)]
        before = [builder.load(place) for place in places]
        result = ir.LiteralStructType([FLOAT] * count)
        text = f"wgmma.wait_group.sync.aligned {pending};"
        values = emit_assembly(builder, result, text, constraints, before, effect=True)
        for i, place in enumerate(places):
            builder.store(builder.extract_value(values, i), place)
        return context.get_dummy_value()

    return settle if SIMULATED else as_intrinsic(settle, types.void(SUMS), emit)


# Hopper's ``wgmma`` on bfloat16 or halves: four warps multiply weights in registers by a tile in shared
# memory.
#
# For capability 9.0 alone (its ``a`` variant): later GPUs have other instructions in its place.

STEPS = 4  # of 16 columns of K, which a row of a tile of the second operand holds: 128 bytes


@instruction("wgmma.wait_group.sync.aligned 0;", None, effect=True)
def wait() -> Any:
    """Wait until all products are done."""
    only_on_a_gpu()


@instruction("fence.proxy.async.shared::cta;", None, effect=True)
def publish() -> Any:
    """Make writes to shared memory visible to ``wgmma``."""
    only_on_a_gpu()


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

    def zeros() -> Any:
        """Sums of no products."""
        only_on_a_gpu()

    def emit_zeros(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return context.make_tuple(builder, signature.return_type, [ir.Constant(FLOAT, 0.0)] * count)

    def advance(total: Any, rows: Any, at: Any) -> Any:
        """Start to add [64, 64] in registers, four a 16 columns, times a tile [64, columns].

        ``at``: the tile's address. Rows of a tile lie swizzled, chunk c of 16 bytes at c ^ (row % 8).
        Waits for the products that were started before these.
        """
        only_on_a_gpu()

    def emit_advance(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        total, rows, at = operands
        a, values = unpacked(builder, rows, 4 * STEPS), unpacked(builder, total, count)
        regs, last = ",".join(f"${i}" for i in range(count)), count + 4 * STEPS
        lines = ["{.reg .b32 low; .reg .b64 b;", f"shr.u32 low, ${last}, 4; or.b32 low, low, {LOW};"]
        lines += ["wgmma.fence.sync.aligned;"]
        for s in range(STEPS):
            registers = ",".join(f"${count + 4 * s + i}" for i in range(4))
            lines += ["add.u64 b, b, 2;" if s else f"mov.b64 b, {{low, {HIGH}}};"]
            lines += [f"wgmma.mma_async.sync.aligned.{kinds} {{{regs}}},{{{registers}}},b,1,1,1,0;"]
        lines += ["wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;}"]
        constraints = ["=f"] * count + ["r"] * (4 * STEPS + 1) + [str(i) for i in range(count)]
        result = ir.LiteralStructType([FLOAT] * count)
        results = emit_assembly(
            builder, result, "\n".join(lines), constraints, [*a, at, *values], effect=True
        )
        parts = [builder.extract_value(results, i) for i in range(count)]
        return context.make_tuple(builder, signature.return_type, parts)

    def times(total: Any, factor: Any) -> Any:
        """Sums times a number."""
        only_on_a_gpu()

    def emit_times(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        total, factor = operands
        parts = [builder.fmul(value, factor) for value in unpacked(builder, total, count)]
        return context.make_tuple(builder, signature.return_type, parts)

    def put(total: Any, at: Any, pitch: Any) -> Any:
        """Write the sums to shared memory; ``at`` is that of row g, column 2 t, columns lie ``pitch`` apart.

        Four sums are those of columns 2 t, 2 t + 1 of row g and of row g + 8; then 8 columns on.
        """
        only_on_a_gpu()

    def emit_put(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        total, at, pitch = operands
        for i in range(count):
            column, row = i // 4 * 8 + i % 2, i // 2 % 2 * 8
            place = builder.add(at, builder.mul(pitch, ir.Constant(WORD, column)))
            place = builder.add(place, ir.Constant(WORD, 4 * row))
            value = builder.extract_value(total, i)
            store = "st.shared.f32 [$0], $1;"
            emit_assembly(builder, ir.VoidType(), store, ["r", "f"], [place, value], effect=True)
        return context.get_dummy_value()

    if SIMULATED:
        return Sums(zeros, advance, times, put)
    return Sums(
        as_intrinsic(zeros, kind(), emit_zeros),
        as_intrinsic(advance, kind(kind, types.UniTuple(u32, 4 * STEPS), u32), emit_advance),
        as_intrinsic(times, kind(kind, f32), emit_times),
        as_intrinsic(put, types.void(kind, u32, u32), emit_put),
    )


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
        _zeros(totals),
        _zeros(work),
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


def _zeros(kind: Any) -> Any:
    def zeros() -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return context.make_tuple(builder, kind, [ir.Constant(FLOAT, 0.0)] * kind.count)

    return wrapped(zeros, kind(), emit)


def _starter(form: Form, work: Any) -> Any:
    def start(work: Any, scales: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        before, at = operands
        loaded = [
            emit_assembly(builder, FLOAT, take.format("$0", "$1"), ["=f", "r"], [at], effect=True)
            for take in _take_promoted(form)
        ]
        return context.make_tuple(builder, work, unpacked(builder, before, form.sums) + loaded)

    return wrapped(start, work(work, u32), emit)


def _loader(parts: int, by_columns: bool) -> Any:
    kind = tuple_of(f32, parts)

    def scales_of_w(address: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        if by_columns:
            return context.make_tuple(builder, kind, [ir.Constant(FLOAT, 1.0)])
        texts = [f"ld.global.f32 $0, [$1 + {4 * part}];" for part in range(parts)]
        loaded = [emit_assembly(builder, FLOAT, text, ["=f", "l"], operands, effect=True) for text in texts]
        return context.make_tuple(builder, kind, loaded)

    return wrapped(scales_of_w, kind(u64), emit)


@instruction(
    f"{{.reg .pred second; setp.eq.u32 second, $0, {TURNS[1]}; @second bar.arrive {TURNS[0]}, {BOTH};}}",
    None, u32, effect=True,
)  # fmt: skip
def open_turns(turn: Any) -> Any:
    """Give the first turn to the first warpgroup; both warpgroups call this before their first products."""
    only_on_a_gpu()


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
    sums, count, words = form.sums, work.count, 2 + in_turns
    a, b, turn = (f"${sums + i}" for i in range(3))
    text = "\n".join([*_products(form, 0, a, b, turn if in_turns else ""), FINISH])
    constraints = ["=f"] * sums + ["r"] * words + [str(i) for i in range(sums)]

    def first(work: Any, a: Any, b: Any) -> Any:
        only_on_a_gpu()

    def upper(work: Any, a: Any, b: Any, turn: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        before, *arguments = operands
        values, result = unpacked(builder, before, count), ir.LiteralStructType([FLOAT] * sums)
        results = emit_assembly(builder, result, text, constraints, [*arguments, *values[:sums]], effect=True)
        return context.make_tuple(builder, work, unpacked(builder, results, sums) + values[sums:])

    return wrapped(upper if in_turns else first, work(work, *(u32,) * words), emit)


def _last_multiplier(form: Form, work: Any) -> Any:
    """The function for a step's last 64 rows, and all the work that overlaps them."""
    sums, results, words = form.sums, work.count, 7
    a, b, barrier, parity, more, at, turn = (f"${results + i}" for i in range(words))
    lines = _products(form, form.halves - 1, a, b, turn)
    lines += [f"setp.eq.u32 done, {more}, 0; @done bra over; {waiting(barrier, parity)}"]
    lines += [take.format(f"${sums + i}", at) for i, take in enumerate(_take_promoted(form))]
    text = "\n".join([*lines, FINISH])
    constraints = ["=f"] * sums + ["=&f"] * (results - sums) + ["r"] * words + [str(i) for i in range(sums)]

    def lower(
        work: Any, a: Any, b: Any, barrier: Any, parity: Any, more: Any, scales: Any, turn: Any
    ) -> Any:  # fmt: skip
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        before, *arguments = operands
        values, result = unpacked(builder, before, results), ir.LiteralStructType([FLOAT] * results)
        outputs = emit_assembly(builder, result, text, constraints, [*arguments, *values[:sums]], effect=True)
        return context.make_tuple(builder, work, unpacked(builder, outputs, results))

    return wrapped(lower, work(work, *(u32,) * words), emit)


def _factors(form: Form, half: int, parts: int, kinds: dict[str, Any]) -> Any:
    """The function for a group's two factors: those of row g and of row g + 8."""

    def factors(work: Any, scales: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        work, scales = operands
        rows = [builder.extract_value(work, form.sums + 2 * half + i) for i in range(2)]
        scale_values = unpacked(builder, scales, parts)
        results = [builder.fmul(row, scale) for scale in scale_values for row in rows]
        return context.make_tuple(builder, kinds["factors"], results)

    return wrapped(factors, kinds["factors"](kinds["work"], kinds["scales"]), emit)


def _promoter(form: Form, half: int, parts: int, kinds: dict[str, Any]) -> Any:
    def promote(totals: Any, work: Any, factors: Any, at: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, work, factors, _ = operands
        results = unpacked(builder, totals, form.halves * form.sums)
        factor_values = unpacked(builder, factors, 2 * parts)
        for i, value in enumerate(unpacked(builder, work, form.sums)):
            factor = factor_values[2 * (i * parts // form.sums) + (i >> 1 & 1)]
            at = half * form.sums + i
            results[at] = builder.fma(value, factor, results[at])
        return context.make_tuple(builder, kinds["totals"], results)

    return wrapped(promote, kinds["totals"](kinds["totals"], kinds["work"], kinds["factors"], u32), emit)


def _promoter_by_columns(form: Form, half: int, kinds: dict[str, Any]) -> Any:
    """``at``: shared memory with the scales of columns 2 t and 2 t + 1, then 8 columns on."""

    def promote(totals: Any, work: Any, factors: Any, at: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, work, factors, at = operands
        results = unpacked(builder, totals, form.halves * form.sums)
        values, rows = unpacked(builder, work, form.sums), unpacked(builder, factors, 2)
        pair = ir.LiteralStructType([FLOAT] * 2)
        for j in range(form.columns // 8):
            text = f"ld.shared.v2.f32 {{$0, $1}}, [$2 + {32 * j}];"
            columns = emit_assembly(builder, pair, text, ["=f", "=f", "r"], [at], effect=True)
            for c in range(4):
                factor = builder.fmul(rows[c >> 1], builder.extract_value(columns, c & 1))
                i = half * form.sums + 4 * j + c
                results[i] = builder.fma(values[4 * j + c], factor, results[i])
        return context.make_tuple(builder, kinds["totals"], results)

    return wrapped(promote, kinds["totals"](kinds["totals"], kinds["work"], kinds["factors"], u32), emit)
