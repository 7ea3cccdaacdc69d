"""Products of a warp by ``mma`` that takes scales with its operands, on cards of 12.x alone.

Two forms. Both take 64 columns in two instructions for eight rows of activations, and add to the totals at
once, for the scales are multiplied within:

    e4m3    32 columns of floats of 8 bits at a time, with a power of two for 32 on both sides
    digits  64 columns of floats of 4 bits, with a float of 8 bits for 16 on both sides; first the first
            digits of the activations, then the second ones

An instruction reads the scales of its 16 rows of weights from lanes t = 0 (row g) and t = 1 (row g + 8) of
each quad, those of its 8 rows of activations from lane t = 0: a byte of a word (e4m3), which its number
picks, or all four (digits).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from .assembly import FLOAT, WORD, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32
from .language import SIMULATED, ir, types
from .mma_runs import first_totals, fragment_parts, parts

E4M3, DIGITS = "e4m3", "digits"
HALVES = 2  # instructions for 64 columns, or for their two digits
# The instruction of a form, the words of a fragment's codes, and words of scales of a row of activations.
MMA = {
    E4M3: "m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0",
    DIGITS: "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3",
}
WORDS, SCALES = {E4M3: 8, DIGITS: 4}, {E4M3: 1, DIGITS: 2}


class ScaledForm(NamedTuple):
    """The shape of a warp's products of a step."""

    kind: str  # E4M3 or DIGITS
    fragments: int
    eights: int
    apart: int  # bytes from eight rows of activations to the next


class ScaledProducts(NamedTuple):
    """Device functions for the products of a step."""

    zeros: Callable[..., Any]  # () -> totals
    multiply: Callable[..., Any]  # (totals, codes, scales, codes_at, scales_at) -> totals
    fragment: tuple[Callable[..., Any], ...]  # by fragment: (totals) -> its part of them


@cache
def scaled_products(form: ScaledForm) -> ScaledProducts:
    """The device functions for a form.

    ``codes``: rows g and g + 8 of the first columns, then of those half an instruction further, instruction
    by instruction, fragment by fragment. ``scales``: a word a fragment, of row g in even lanes, of row g + 8
    in odd ones. ``codes_at``, ``scales_at``: a lane's in the first eight rows.
    """
    count, words = 4 * form.fragments * form.eights, WORDS[form.kind]
    kind, codes_kind = types.UniTuple(f32, count), types.UniTuple(u32, words * form.fragments)
    scales_kind = types.UniTuple(u32, form.fragments)

    def multiply(totals: Any, codes: Any, scales: Any, codes_at: Any, scales_at: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, codes, scales, codes_at, scales_at = operands
        results, a = parts(builder, totals, count), parts(builder, codes, words * form.fragments)
        of_rows = parts(builder, scales, form.fragments)
        for j in range(form.eights):
            b = _take(builder, codes_at, form.apart * j, 4)
            x = _take(builder, scales_at, form.apart * j, SCALES[form.kind])
            for half, fragment in ((h, f) for h in range(HALVES) for f in range(form.fragments)):
                first, place = words * fragment + half * (words - 4), 4 * (fragment * form.eights + j)
                byte = half if form.kind == E4M3 else 0
                operands_of_one = [*a[first : first + 4], *b[2 * half : 2 * half + 2]]
                results[place : place + 4] = _mma(
                    builder, form.kind, operands_of_one, results[place : place + 4],
                    (of_rows[fragment], x[half % len(x)]), byte,
                )  # fmt: skip
        return context.make_tuple(builder, kind, results)

    if SIMULATED:
        return ScaledProducts(multiply, multiply, (multiply,) * form.fragments)
    return ScaledProducts(
        first_totals(count),
        as_intrinsic(multiply, kind(kind, codes_kind, scales_kind, u32, u32), emit),
        fragment_parts(form.fragments, form.eights),
    )


def _mma(
    builder: Any, kind: str, codes: list[Any], totals: list[Any], scales: tuple[Any, Any], byte: int
) -> list[Any]:  # fmt: skip
    text = (
        f"mma.sync.aligned.{MMA[kind]} {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{$8, $9}}, "
        f"{{$10, $11, $12, $13}}, $14, {{{byte}, 0}}, $15, {{{byte}, 0}};"
    )
    four = ir.LiteralStructType([FLOAT] * 4)
    constraints = [*["=f"] * 4, *"rrrrrr", *"ffff", *"rr"]
    return parts(
        builder, emit_assembly(builder, four, text, constraints, [*codes, *totals, *scales], False), 4
    )


def _take(builder: Any, at: Any, offset: int, count: int) -> list[Any]:
    """One word of shared memory, or two or four."""
    if count == 1:
        text = f"ld.shared.b32 $0, [$1 + {offset}];"
        return [emit_assembly(builder, WORD, text, ["=r", "r"], [at], True)]
    results = ", ".join(f"${i}" for i in range(count))
    text = f"ld.shared.v{count}.b32 {{{results}}}, [${count} + {offset}];"
    several = ir.LiteralStructType([WORD] * count)
    return parts(builder, emit_assembly(builder, several, text, [*["=r"] * count, "r"], [at], True), count)
