"""Products of a warp by ``mma`` whose sums of one run are halves, and are made float32 when they are scaled.

As mma_runs.py does, with the same tuples. A fragment's sums of eight rows of activations are two registers:
columns 2 t, 2 t + 1 of row g, and of row g + 8. Four conversions and four multiply-adds, times the scales of
these rows, add them to the totals; offsets meet sums of activations in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from .assembly import FLOAT, WORD, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32, u64
from .language import SIMULATED, ir, types
from .mma_runs import LINE, PAIR, RunForm, first_totals, fragment_parts, parts

ROW_FACTORS = 32  # bytes of the factors of eight rows of activations


class HalfProducts(NamedTuple):
    """Device functions for the products of a run."""

    zeros: Callable[..., Any]  # this, ``multiply`` and ``fragment``: as RunProducts has them
    multiply: Callable[..., Any]
    fragment: tuple[Callable[..., Any], ...]
    scaled: Callable[..., Any]  # (totals, at) -> totals times the factors of rows 2 t, 2 t + 1 … at ``at``


def _mma(builder: Any, a: list[Any], b: list[Any], c: list[Any]) -> list[Any]:
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
            for fragment, sums in enumerate(_eight(builder, form, a, b)):
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


def _eight(builder: Any, form: RunForm, a: list[Any], b: list[list[Any]]) -> list[list[Any]]:
    """The sums of a run for eight rows of activations, by fragment, in float32."""
    sums = [[ir.Constant(WORD, 0)] * 2] * form.fragments
    for step in range(form.steps):
        for fragment in range(form.fragments):
            first = 4 * (fragment * form.steps + step)
            sums[fragment] = _mma(builder, a[first : first + 4], b[step], sums[fragment])
    return [[each for pair in both for each in _floats(builder, pair)] for both in sums]
