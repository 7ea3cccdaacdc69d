"""``wgmma`` on codes of 8 bits, both operands in shared memory.

A warpgroup multiplies 64 rows with ``columns`` rows of the other operand, 32 codes along K an instruction,
128 a step. Both operands lie in rows of 128 bytes, swizzled (intrinsics/boxes.py). A thread, lane 4 g + t
of warp w, has the sums of rows 16 w + g and 16 w + g + 8, columns 8 j + 2 t and 8 j + 2 t + 1: four for
each j. A warpgroup makes ``halves`` such products in a step, one after the other, 64 rows apart.

Sums of integers stay in the tensor cores from the first column to the last; FP8 must be promoted:
promoted.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from .assembly import FLOAT, WORD, as_intrinsic, emit_assembly, f32, i32, only_on_a_gpu, u32
from .barrier import NEEDS
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
