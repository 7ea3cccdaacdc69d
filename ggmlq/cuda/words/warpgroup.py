"""Hopper's ``wgmma``: four warps multiply together, past the registers of the second operand.

For capability 9.0 alone (its ``a`` variant): later GPUs have other instructions in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from .assembly import (
    FLOAT,
    WORD,
    as_intrinsic,
    emit_assembly,
    f32,
    instruction,
    only_on_a_gpu,
    u32,
    u64,
)  # fmt: skip
from .language import SIMULATED, ir, types

# What a tile of the second operand is: rows of 128 bytes, chunk c of row r at c ^ (r % 8), 1024 bytes
# from group to group of 8 rows; the address, divided by 16, belongs into the lowest bits.
SWIZZLED = (1 << 62) | (64 << 32) | (1 << 16)


@instruction("wgmma.fence.sync.aligned;", None, effect=True)
def fence() -> Any:
    """Registers that were written are there for the products that follow."""
    only_on_a_gpu()


@instruction("wgmma.commit_group.sync.aligned;", None, effect=True)
def commit() -> Any:
    """Close a group of products."""
    only_on_a_gpu()


@instruction("wgmma.wait_group.sync.aligned 0;", None, effect=True)
def wait() -> Any:
    """Until all products are done."""
    only_on_a_gpu()


@instruction("wgmma.wait_group.sync.aligned 1;", None, effect=True)
def wait_for_all_but_one() -> Any:
    """Until all groups of products are done but the last."""
    only_on_a_gpu()


@instruction("fence.proxy.async.shared::cta;", None, effect=True)
def publish() -> Any:
    """What was written to shared memory is there for ``wgmma``."""
    only_on_a_gpu()


class Sums(NamedTuple):
    """What there is for a product of 64 rows and so many columns; a thread's sums are a tuple of floats."""

    zeros: Callable[..., Any]
    mma: Callable[..., Any]
    put: Callable[..., Any]


@cache
def sums(columns: int) -> Sums:
    """The instructions for a product of so many columns."""
    count = columns // 2
    kind = types.UniTuple(f32, count)

    def zeros() -> Any:
        """Nothing summed up yet."""
        only_on_a_gpu()

    def emit_zeros(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return context.make_tuple(builder, signature.return_type, [ir.Constant(FLOAT, 0.0)] * count)

    def mma(total: Any, a0: Any, a1: Any, a2: Any, a3: Any, tile: Any) -> Any:
        """Add [64, 16] in registers, as for ``bf16x2.mma``, times a tile [16, columns] of bfloat16."""
        only_on_a_gpu()

    def emit_mma(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        total, *a, tile = operands
        values = [builder.extract_value(total, i) for i in range(count)]
        regs = ",".join(f"${i}" for i in range(count))
        rows = ",".join(f"${count + i}" for i in range(4))
        text = (
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{regs}}},{{{rows}}},"
            f"${count + 4},1,1,1,0;"
        )
        constraints = ["=f"] * count + ["r"] * 4 + ["l"] + [str(i) for i in range(count)]
        result = ir.LiteralStructType([FLOAT] * count)
        made = emit_assembly(builder, result, text, constraints, [*a, tile, *values], effect=True)
        parts = [builder.extract_value(made, i) for i in range(count)]
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
        return Sums(zeros, mma, put)
    return Sums(
        as_intrinsic(zeros, kind(), emit_zeros),
        as_intrinsic(mma, kind(kind, u32, u32, u32, u32, u64), emit_mma),
        as_intrinsic(put, types.void(kind, u32, u32), emit_put),
    )
