"""Steps of the epilogue on a thread's sums of ``wgmma`` (wgmma_sums.py): add a bias, stage patches for codes.

A bias is added in registers. Where results become codes, patches of 16 rows × 32 columns go through a buffer
of shared memory, so that a thread gets 16 neighbours of a row (codes8/epilogue.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics.assembly import FLOAT, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32, u64
from ..intrinsics.language import SIMULATED, ir, types
from ..intrinsics.wgmma8 import unpacked
from .wgmma_sums import float_patch

PATCH_COLUMNS = 32  # of a patch, which has 16 rows


@cache
def bias_adder(columns: int, halves: int) -> Any:
    """The device function ``add(totals, bias, column, n)`` -> totals; ``column``: of a thread's first sum.

    ``bias``: float32 [n], or 0 for none. Past its end -0.0 is added, which changes nothing.
    """
    sums, count = columns // 2, halves * (columns // 2)
    totals_kind = types.UniTuple(f32, count)
    bias, column, n = (f"${2 * count + i}" for i in range(3))
    lines = [
        "{.reg .pred none, in; .reg .b32 c; .reg .b64 at;",
        f".reg .f32 b<{columns // 4}>; setp.eq.u64 none, {bias}, 0; @none bra over;",
        f"mul.wide.u32 at, {column}, 4; add.u64 at, at, {bias};",
    ]
    for i in range(columns // 4):
        across = i // 2 * 8 + i % 2
        lines += [f"add.u32 c, {column}, {across}; setp.lt.u32 in, c, {n}; mov.f32 b{i}, 0f80000000;"]
        lines += [f"@in ld.global.nc.f32 b{i}, [at+{4 * across}];"]
    for i in range(count):
        addend = f"b{i % sums // 4 * 2 + i % 2}"
        lines += [f"add.rn.f32 ${i}, ${i}, {addend};"]
    text = "\n".join([*lines, "over:}"])
    constraints = ["=f"] * count + [str(i) for i in range(count)] + ["l", "r", "r"]
    result = ir.LiteralStructType([FLOAT] * count)

    def add(totals: Any, bias: Any, column: Any, n: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, *arguments = operands
        values = unpacked(builder, totals, count)
        results = emit_assembly(builder, result, text, constraints, [*values, *arguments], effect=True)
        return context.make_tuple(builder, totals_kind, unpacked(builder, results, count))

    return add if SIMULATED else as_intrinsic(add, totals_kind(totals_kind, u64, u32, u32), emit)


@cache
def patch_stager(columns: int, halves: int) -> Any:
    """The device function ``stage(totals, number, at)``: it puts a patch into a warp's buffer.

    The places are those of ``box_putter``. Patches of a half lie side by side. ``number`` is no
    constant, so that the code for a patch is compiled once; the sums stay in registers, for each patch has a
    branch of its own.
    """
    patch_length, totals_kind = PATCH_COLUMNS // 2, types.UniTuple(f32, halves * columns // 2)
    text = "\n".join(["{.reg .b32 at;", *float_patch("$0", [f"${1 + i}" for i in range(patch_length)]), "}"])

    def stage(totals: Any, number: Any, at: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, number, at = operands
        values = unpacked(builder, totals, totals_kind.count)
        over = builder.append_basic_block("over")
        which = builder.switch(number, over)
        for i in range(totals_kind.count // patch_length):
            block = builder.append_basic_block(f"patch{i}")
            which.add_case(i, block)
            builder.position_at_end(block)
            patch_sums = values[i * patch_length : (i + 1) * patch_length]
            emit_assembly(
                builder, ir.VoidType(), text, ["r", *"f" * patch_length], [at, *patch_sums], effect=True
            )
            builder.branch(over)
        builder.position_at_end(over)
        return context.get_dummy_value()

    return stage if SIMULATED else as_intrinsic(stage, types.void(totals_kind, u32, u32), emit)
