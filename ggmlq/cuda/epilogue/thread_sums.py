"""A thread's sums of ``wgmma`` with packed weights: write results, store partial sums, send them to blocks.

Sums are a tuple. Four of them are those of columns 2 t, 2 t + 1 of row g and of row g + 8; the next four
are 8 columns on (intrinsics/warpgroup.py). Rows are those of the weights, columns those of the activations,
so a result lies at [column, row]; the eight lanes with one t write 32 neighbouring bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from ..intrinsics.assembly import LONG, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32, u64
from ..intrinsics.language import SIMULATED, ir, types
from ..intrinsics.wgmma8 import unpacked

VOID = ir.VoidType()


class ThreadSums(NamedTuple):
    """Device functions for all sums of a thread; ``apart``: bytes from four of them to the next four."""

    write: Callable[..., Any]  # (sums, y, column, row, m, n): results within [m, n]
    store: Callable[..., Any]  # (sums, at, apart): partial sums
    send: Callable[..., Any]  # (sums, at, apart, blocks, barrier): fours to the blocks of a cluster in turn


@cache
def thread_sums(columns: int) -> ThreadSums:
    """The device functions for sums of 64 rows and ``columns`` columns."""
    count = columns // 2
    kind = types.UniTuple(f32, count)

    def write(sums: Any, y: Any, column: Any, row: Any, m: Any, n: Any) -> Any:
        only_on_a_gpu()

    def emit_write(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        sums, *arguments = operands
        values = unpacked(builder, sums, count)
        text, constraints = _writing(columns), [*"lrrrr", *"f" * count]
        emit_assembly(builder, VOID, text, constraints, [*arguments, *values], effect=True)
        return context.get_dummy_value()

    def store(sums: Any, at: Any, apart: Any) -> Any:
        only_on_a_gpu()

    def emit_store(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        sums, at, apart = operands
        values = unpacked(builder, sums, count)
        for first in range(0, count, 4):
            text = "st.global.v4.f32 [$0], {$1, $2, $3, $4};"
            arguments = [at, *values[first : first + 4]]
            emit_assembly(builder, VOID, text, ["l", *"ffff"], arguments, effect=True)
            at = builder.add(at, builder.zext(apart, LONG))
        return context.get_dummy_value()

    def send(sums: Any, at: Any, apart: Any, blocks: Any, barrier: Any) -> Any:
        only_on_a_gpu()

    def emit_send(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        sums, *arguments = operands
        values = unpacked(builder, sums, count)
        constraints, text = [*"rrrr", *"f" * count], _sending(columns, counted(columns))
        emit_assembly(builder, VOID, text, constraints, [*arguments, *values], effect=True)
        return context.get_dummy_value()

    if SIMULATED:
        return ThreadSums(write, store, send)
    return ThreadSums(
        as_intrinsic(write, types.void(kind, u64, u32, u32, u32, u32), emit_write),
        as_intrinsic(store, types.void(kind, u64, u32), emit_store),
        as_intrinsic(send, types.void(kind, u32, u32, u32, u32), emit_send),
    )


def _writing(columns: int) -> str:
    """The assembly of ``write``. Operands: y, column, row, m, n, then the sums."""
    lines = ["{.reg .pred low, high, p; .reg .b32 c, r; .reg .b64 at, pitch, far;"]
    lines += ["setp.lt.u32 low, $2, $4; add.u32 r, $2, 8; setp.lt.u32 high, r, $4;"]
    lines += ["cvt.u64.u32 far, $2; mul.wide.u32 at, $1, $4; add.u64 at, at, far; shl.b64 at, at, 2;"]
    lines += ["add.u64 at, at, $0; mul.wide.u32 pitch, $4, 4; mul.wide.u32 far, $4, 28;"]
    for i in range(0, columns // 2, 4):
        for e in range(2):
            lines += [f"add.u32 c, $1, {2 * i + e}; setp.lt.and.u32 p, c, $3, low;"]
            lines += [f"@p st.global.f32 [at], ${5 + i + e}; setp.lt.and.u32 p, c, $3, high;"]
            lines += [f"@p st.global.f32 [at + 32], ${7 + i + e}; add.u64 at, at, {('pitch', 'far')[e]};"]
    return "\n".join([*lines, "}"])


def counted(columns: int) -> bool:
    """True if a barrier counts the bytes that arrive; for many columns plain stores are faster."""
    return columns < 128


def _sending(columns: int, counts_bytes: bool) -> str:
    """The assembly of ``send``. Operands: at, apart, blocks, barrier, then the sums.

    Fours go to the last block, the one before it and so on, and again from the last one on, ``apart`` bytes
    further. ``counts_bytes``: each also counts at the barrier there.
    """
    lines = ["{.reg .pred again; .reg .b32 at, rank, there, barrier;"]
    lines += ["mov.b32 at, $0; sub.u32 rank, $2, 1;"]
    for i in range(4, columns // 2 + 4, 4):
        four = f"{{${i}, ${i + 1}, ${i + 2}, ${i + 3}}}"
        lines += ["mapa.shared::cluster.u32 there, at, rank;"]
        if counts_bytes:
            lines += ["mapa.shared::cluster.u32 barrier, $3, rank;"]
            lines += [
                f"st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {four}, [barrier];"
            ]
        else:
            lines += [f"st.shared::cluster.v4.f32 [there], {four};"]
        lines += ["setp.eq.u32 again, rank, 0; sub.u32 rank, rank, 1;"]
        lines += ["@again sub.u32 rank, $2, 1; @again add.u32 at, at, $1;"]
    return "\n".join([*lines, "}"])
