"""Hopper's ``wgmma`` on bfloat16 or halves: four warps multiply weights in registers by a tile in shared
memory.

For capability 9.0 alone (its ``a`` variant): later GPUs have other instructions in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from .assembly import (  # fmt: skip
    FLOAT,
    WORD,
    as_intrinsic,
    emit_assembly,
    f32,
    instruction,
    only_on_a_gpu,
    u32,
)
from .language import SIMULATED, ir, types
from .wgmma8 import HIGH, LOW, unpacked

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
