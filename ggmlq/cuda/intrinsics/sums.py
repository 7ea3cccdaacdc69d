"""A thread's sums of ``wgmma``, as wgmma.py has them: stored, added to memory, and added up with factors.

A thread, lane 4 g + t, has for every 8 columns the sums of columns 2 t and 2 t + 1 of row g, then those of
row g + 8. ``at`` is the address of row g, column 2 t of 32-bit numbers whose rows are ``pitch`` bytes
apart.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from .assembly import LONG, WORD, emit_assembly, f32, i32, only_on_a_gpu, u32, u64
from .language import ir, types
from .wgmma import INTEGERS, Form, tuple_of, unpacked, wrapped


def _kinds(form: Form) -> tuple[Any, str]:
    """The type of a thread's sums of 64 rows, and the letter of their registers."""
    integer = form.a in INTEGERS
    return tuple_of(i32 if integer else f32, form.sums), "r" if integer else "f"


def _mover(form: Form, texts: tuple[str, ...], address: Any, word: Any, letter: str) -> Any:
    """The function that gives each pair of sums to instructions, with the address of the pair."""
    kind, register = _kinds(form)

    def move(totals: Any, at: Any, pitch: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, at, pitch = operands
        values = unpacked(builder, totals, form.sums)
        rows = (at, builder.add(at, builder.mul(pitch, ir.Constant(word, 8))))
        for i in range(0, form.sums, 2):
            place = builder.add(rows[i // 2 % 2], ir.Constant(word, i // 4 * 32))
            for text in texts:
                constraints, pair = [letter, register, register], [place, *values[i : i + 2]]
                emit_assembly(builder, ir.VoidType(), text, constraints, pair, effect=True)
        return context.get_dummy_value()

    return wrapped(move, types.void(kind, address, address), emit)


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

    def add(totals: Any, sums: Any, low: Any, high: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, sums, *factors = operands
        pairs = zip(unpacked(builder, totals, form.sums), unpacked(builder, sums, form.sums), strict=True)
        parts = [builder.fma(new, factors[i // 2 % 2], total) for i, (total, new) in enumerate(pairs)]
        return context.make_tuple(builder, kind, parts)

    return wrapped(add, kind(kind, kind, f32, f32), emit)
