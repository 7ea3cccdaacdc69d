"""Products of FP8 codes by Hopper's ``wgmma``, with sums that are promoted to float32 every 128 columns.

The tensor cores keep about 14 bits of a sum. So the sums of 128 columns are ``work``, and are added to
``totals`` with one multiply-add, times both scales. Four wgmma, the commit and the wait are one piece of
assembly: no compiler may touch a value that is in flight. The sums go in and out in the same registers even
though the first wgmma ignores them; otherwise the assembler moves the promotion of the sums before behind
these products, and needs twice the registers.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from .assembly import FLOAT, emit_assembly, f32, instruction, only_on_a_gpu, u32, u64
from .barrier import waiting
from .language import ir
from .wgmma8 import COMMIT, FENCE, OPEN, Form, chain, tuple_of, unpacked, wrapped

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


def _take(form: Form) -> list[str]:
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
            for take in _take(form)
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
    lines += [take.format(f"${sums + i}", at) for i, take in enumerate(_take(form))]
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
