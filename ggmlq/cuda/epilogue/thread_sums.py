"""A thread's sums of ``wgmma`` with packed weights: write results, store partial sums, send them to blocks.

Sums are a tuple. Four of them are those of columns 2 t, 2 t + 1 of row g and of row g + 8; the next four
are 8 columns on (intrinsics/wgmma.py). Rows are those of the weights, columns those of the activations,
so a result lies at [column, row]; the eight lanes with one t write 32 neighbouring bytes. Where results have
16 bits, lanes of two neighbouring rows swap, and each stores a pair of one column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from ..intrinsics.assembly import LONG, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32, u64
from ..intrinsics.language import SIMULATED, ir, types
from ..intrinsics.wgmma import unpacked

VOID = ir.VoidType()


class ThreadSums(NamedTuple):
    """Device functions for all sums of a thread; ``apart``: bytes from four of them to the next four."""

    write: Callable[..., Any]  # (sums, y, column, row, m, n, low, high): results within [m, n]
    write16: Callable[..., Any]  # the same, and 1 for bfloat16 or 0 for float16; n is even
    store: Callable[..., Any]  # (sums, at, apart): partial sums
    send: Callable[..., Any]  # (sums, at, apart, blocks, barrier): fours to the blocks of a cluster in turn


@cache
def thread_sums(columns: int) -> ThreadSums:
    """The device functions for sums of 64 rows and ``columns`` columns."""
    count = columns // 2
    kind = types.UniTuple(f32, count)

    def write(
        sums: Any, y: Any, column: Any, row: Any, m: Any, n: Any, low: Any, high: Any
    ) -> Any:  # fmt: skip
        only_on_a_gpu()

    def emit_write(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        sums, *arguments = operands
        values = unpacked(builder, sums, count)
        text, constraints = _writing(columns), [*"lrrrrff", *"f" * count]
        emit_assembly(builder, VOID, text, constraints, [*arguments, *values], effect=True)
        return context.get_dummy_value()

    def write16(
        sums: Any, y: Any, column: Any, row: Any, m: Any, n: Any, low: Any, high: Any, bfloat: Any
    ) -> Any:  # fmt: skip
        only_on_a_gpu()

    def emit_write16(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        sums, *arguments = operands
        values = unpacked(builder, sums, count)
        text, constraints = _writing16(columns), [*"lrrrrffr", *"f" * count]
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
        return ThreadSums(write, write16, store, send)
    return ThreadSums(
        as_intrinsic(write, types.void(kind, u64, u32, u32, u32, u32, f32, f32), emit_write),
        as_intrinsic(write16, types.void(kind, u64, u32, u32, u32, u32, f32, f32, u32), emit_write16),
        as_intrinsic(store, types.void(kind, u64, u32), emit_store),
        as_intrinsic(send, types.void(kind, u32, u32, u32, u32), emit_send),
    )


def _writing(columns: int) -> str:
    """The assembly of ``write``. Operands: y, column, row, m, n, the bias of both rows, then the sums."""
    lines = ["{.reg .pred low, high, p; .reg .b32 c, r; .reg .f32 v; .reg .b64 at, pitch, far;"]
    lines += ["setp.lt.u32 low, $2, $4; add.u32 r, $2, 8; setp.lt.u32 high, r, $4;"]
    lines += ["cvt.u64.u32 far, $2; mul.wide.u32 at, $1, $4; add.u64 at, at, far; shl.b64 at, at, 2;"]
    lines += ["add.u64 at, at, $0; mul.wide.u32 pitch, $4, 4; mul.wide.u32 far, $4, 28;"]
    for i in range(0, columns // 2, 4):
        for e in range(2):
            lines += [f"add.u32 c, $1, {2 * i + e}; setp.lt.and.u32 p, c, $3, low;"]
            lines += [f"add.f32 v, ${7 + i + e}, $5; @p st.global.f32 [at], v;"]
            lines += [f"setp.lt.and.u32 p, c, $3, high; add.f32 v, ${9 + i + e}, $6;"]
            lines += [f"@p st.global.f32 [at + 32], v; add.u64 at, at, {('pitch', 'far')[e]};"]
    return "\n".join([*lines, "}"])


def _writing16(columns: int) -> str:
    """The assembly of ``write16``. Operands: as ``write``, then whether it is bfloat16, then the sums.

    Lanes of rows 2 i and 2 i + 1 differ by 4. The even one stores column 2 t of both rows, the other 2 t + 1.
    """
    lines = ["{.reg .pred bfloat, odd, low, high, p; .reg .b32 c, r, lane, a, b, own, other, w;"]
    lines += [".reg .f32 v, u; .reg .b64 at, pitch, far;"]
    lines += ["setp.ne.u32 bfloat, $7, 0; mov.u32 lane, %laneid; and.b32 lane, lane, 4;"]
    lines += ["setp.ne.u32 odd, lane, 0; shr.u32 lane, lane, 2; sub.u32 r, $2, lane;"]
    lines += ["setp.lt.u32 low, r, $4; add.u32 w, r, 8; setp.lt.u32 high, w, $4;"]
    lines += ["add.u32 c, $1, lane; cvt.u64.u32 far, r; mul.wide.u32 at, c, $4; add.u64 at, at, far;"]
    lines += ["shl.b64 at, at, 1; add.u64 at, at, $0; mul.wide.u32 pitch, $4, 16;"]
    for i in range(0, columns // 2, 4):
        for e, word in enumerate("ab"):
            lines += [f"add.f32 v, ${8 + i + e}, $5; add.f32 u, ${10 + i + e}, $6;"]
            lines += [f"@bfloat cvt.rn.bf16x2.f32 {word}, u, v; @!bfloat cvt.rn.f16x2.f32 {word}, u, v;"]
        lines += ["selp.b32 other, a, b, odd; selp.b32 own, b, a, odd;"]
        lines += ["shfl.sync.bfly.b32 other, other, 4, 31, -1; setp.lt.u32 p, c, $3;"]
        lines += ["selp.b32 a, other, own, odd; selp.b32 b, own, other, odd;"]
        lines += ["prmt.b32 w, a, b, 0x5410; prmt.b32 own, a, b, 0x7632;"]
        lines += ["{.reg .pred q; and.pred q, p, low; @q st.global.b32 [at], w;"]
        lines += ["and.pred q, p, high; @q st.global.b32 [at + 16], own;}"]
        lines += ["add.u64 at, at, pitch; add.u32 c, c, 8;"]
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
