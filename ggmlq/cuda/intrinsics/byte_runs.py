"""Products of a warp by ``mma`` on bytes, where each integer sum of a run is scaled twice and added.

As mma_runs.py does with 16 bits. A warp multiplies fragments of 16 rows of weights, bytes in registers, by
8 · ``eights`` rows of activations in shared memory, as code tiles. Integer sums begin at the bits of a large
float (linear/r9_mma_magic.py): so the sum is a float at once, and two multiply-adds scale it: by the weights'
scale, which takes the large float off, and by the activations'. A third takes off an offset times a sum of
activations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from .assembly import FLOAT, WORD, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32
from .language import SIMULATED, ir, types
from .mma_runs import STEPS

MAGIC, MAGIC_BITS = 12582912.0, 0x4B400000
LINE = 512  # bytes of the codes of eight rows of activations
PAIR = 16  # bytes of the scales of two rows


class ByteForm(NamedTuple):
    """The shape of a warp's products of a step."""

    fragments: int
    eights: int
    runs: int  # of a step, each with a scale
    has_offset: bool
    apart: int  # bytes from eight rows of activations to the next

    @property
    def sums(self) -> int:
        """Totals of a thread."""
        return 4 * self.fragments * self.eights


class ByteProducts(NamedTuple):
    """Device functions for the products of a step."""

    zeros: Callable[..., Any]  # () -> totals
    multiply: Callable[..., Any]  # (totals, codes, scales, offsets, codes_at, scales_at, sums_at) -> totals
    fragment: tuple[Callable[..., Any], ...]  # by fragment: (totals) -> its part of them


def _integers(builder: Any, words: list[Any], start: list[Any]) -> list[Any]:
    """The sums of a run, as floats: of a step of 16 columns or of two."""
    *a, = words[: 2 * len(words) // 3]
    columns = 16 * len(a) // 2
    operands = ", ".join(f"${4 + i}" for i in range(len(a)))
    others = ", ".join(f"${4 + i}" for i in range(len(a), len(words)))
    last = ", ".join(f"${4 + len(words) + i}" for i in range(4))
    text = (
        f"mma.sync.aligned.m16n8k{columns}.row.col.s32.s8.s8.s32 "
        f"{{$0, $1, $2, $3}}, {{{operands}}}, {{{others}}}, {{{last}}};"
    )
    four = ir.LiteralStructType([WORD] * 4)
    constraints = [*["=r"] * 4, *"r" * len(words), *"rrrr"]
    result = emit_assembly(builder, four, text, constraints, [*words, *start], False)
    return [builder.bitcast(builder.extract_value(result, i), FLOAT) for i in range(4)]


def _take(builder: Any, kind: Any, at: Any, offset: int) -> list[Any]:
    """Four words or floats of shared memory."""
    word, letter = ("f32", "=f") if kind is FLOAT else ("b32", "=r")
    text = f"ld.shared.v4.{word} {{$0, $1, $2, $3}}, [$4 + {offset}];"
    four = ir.LiteralStructType([kind] * 4)
    result = emit_assembly(builder, four, text, [*[letter] * 4, "r"], [at], True)
    return [builder.extract_value(result, i) for i in range(4)]


def _parts(builder: Any, value: Any, count: int) -> list[Any]:
    return [builder.extract_value(value, i) for i in range(count)]


@cache
def byte_products(form: ByteForm) -> ByteProducts:
    """The device functions for a form.

    ``codes``: of rows g and g + 8, step by step, fragment by fragment. ``scales``: of rows g and g + 8, run by
    run, fragment by fragment; ``offsets``: the same with the sign turned, or one number of no use. ``start``: MAGIC_BITS. ``codes_at``,
    ``scales_at``, ``sums_at``: a lane's in the first eight rows.
    """
    kind, count, runs = types.UniTuple(f32, form.sums), form.sums, form.runs
    codes_kind = types.UniTuple(u32, 2 * STEPS * form.fragments)
    scales_kind = types.UniTuple(f32, 2 * runs * form.fragments)
    offsets_kind = scales_kind if form.has_offset else types.UniTuple(f32, 1)
    each, four_words = STEPS // runs, types.UniTuple(u32, 4)

    def zeros() -> Any:
        only_on_a_gpu()

    def emit_zeros(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return context.make_tuple(builder, kind, [ir.Constant(FLOAT, 0.0)] * count)

    def multiply(
        totals: Any, codes: Any, scales: Any, offsets: Any, start: Any, codes_at: Any, scales_at: Any, sums_at: Any
    ) -> Any:  # fmt: skip
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, codes, scales, offsets, start, codes_at, scales_at, sums_at = operands
        results = _parts(builder, totals, count)
        a, factors = _parts(builder, codes, 2 * STEPS * form.fragments), _parts(builder, scales, 2 * runs * form.fragments)
        turned = _parts(builder, offsets, len(factors)) if form.has_offset else []
        begin = _parts(builder, start, 4)
        less = [builder.fmul(factor, ir.Constant(FLOAT, -MAGIC)) for factor in factors]
        for j in range(form.eights):
            at = form.apart * j
            b, d = _take(builder, WORD, codes_at, at), _take(builder, FLOAT, scales_at, at)
            sums = [number for i in range(0, 2 * runs * form.has_offset, 4) for number in _take(builder, FLOAT, sums_at, at + 4 * i)]
            for run in range(runs):
                x = d[2 * (2 * run // runs) :]
                for fragment in range(form.fragments):
                    first, scale_at = 2 * (STEPS * fragment + each * run), 2 * (runs * fragment + run)
                    words = [*a[first : first + 2 * each], *b[each * run : each * run + each]]
                    dots = _integers(builder, words, begin)
                    place = 4 * (fragment * form.eights + j)
                    for i in range(4):
                        row, column = scale_at + i // 2, i % 2
                        value = builder.fma(dots[i], factors[row], less[row])
                        total = builder.fma(value, x[column], results[place + i])
                        if form.has_offset:
                            total = builder.fma(sums[2 * run + column], turned[row], total)
                        results[place + i] = total
        return context.make_tuple(builder, kind, results)

    if SIMULATED:
        return ByteProducts(zeros, multiply, (zeros,) * form.fragments)
    return ByteProducts(
        as_intrinsic(zeros, kind(), emit_zeros),
        as_intrinsic(multiply, kind(kind, codes_kind, scales_kind, offsets_kind, four_words, u32, u32, u32), emit),
        tuple(_fragment(form, fragment) for fragment in range(form.fragments)),
    )


def _fragment(form: ByteForm, fragment: int) -> Any:
    count = 4 * form.eights
    kind = types.UniTuple(f32, count)

    def part(totals: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        values = [builder.extract_value(operands[0], fragment * count + i) for i in range(count)]
        return context.make_tuple(builder, kind, values)

    return as_intrinsic(part, kind(types.UniTuple(f32, form.sums)), emit)
