"""Sums of ``wgmma`` to rows of results that a list names: as thread_sums.py and outputs.py, but anywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from .assembly import WORD, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32, u64
from .language import SIMULATED, ir, types
from .outputs import SIZES, float_piece, narrow_piece
from .wgmma8 import unpacked

AT_ONCE = 8  # loads of the list that are under way


@cache
def scatterer(columns: int) -> Callable[..., Any]:
    """The device function (sums, y, list, column, count, row, n) for 64 rows of weights and so many columns.

    ``column``: the thread's first one, 2 t; the list, words of 32 bits of which the first is that of column
    0, says to which row of y, float32 [..., n], each of the first ``count`` columns goes.
    """
    count = columns // 2
    kind = types.UniTuple(f32, count)

    def scatter(sums: Any, y: Any, list: Any, column: Any, count: Any, row: Any, n: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        sums, *given = operands
        values = unpacked(builder, sums, count)
        constraints = [*"llrrrr", *"f" * count]
        emit_assembly(builder, ir.VoidType(), _text(columns), constraints, [*given, *values], effect=True)
        return context.get_dummy_value()

    if SIMULATED:
        return scatter
    found: Callable[..., Any] = as_intrinsic(scatter, types.void(kind, u64, u64, u32, u32, u32, u32), emit)
    return found


def _text(columns: int) -> str:
    """Operands: y, list, column, count, row, n, then the sums: of two columns and two rows, 8 columns on."""
    groups = columns // 8
    names = ", ".join(f"u{i}" for i in range(2 * min(groups, AT_ONCE)))
    lines = [f"{{.reg .pred low, high, p; .reg .b32 c, r, {names}; .reg .b64 at, of, far;"]
    lines += ["setp.lt.u32 low, $4, $5; add.u32 r, $4, 8; setp.lt.u32 high, r, $5;"]
    lines += ["mul.wide.u32 far, $4, 4; add.u64 far, far, $0; shl.b32 r, $5, 2;"]
    lines += ["mul.wide.u32 of, $2, 4; add.u64 of, of, $1;"]
    for first in range(0, groups, AT_ONCE):
        some = range(first, min(groups, first + AT_ONCE))
        for i in some:
            u = 2 * (i - first)
            lines += [f"ld.global.v2.u32 {{u{u}, u{u + 1}}}, [of + {32 * i}];"]
        for i in some:
            for e in range(2):
                lines += [f"add.u32 c, $2, {8 * i + e}; setp.lt.and.u32 p, c, $3, low;"]
                lines += [f"mul.wide.u32 at, u{2 * (i - first) + e}, r; add.u64 at, at, far;"]
                lines += [f"@p st.global.f32 [at], ${6 + 4 * i + e}; setp.lt.and.u32 p, c, $3, high;"]
                lines += [f"@p st.global.f32 [at + 32], ${8 + 4 * i + e};"]
    return "\n".join([*lines, "}"])


OF_TEXT = 32  # sums whose rows are looked up together: for all at once integers would not stay in registers


@cache
def row_scatterer(columns: int, halves: int, to: str) -> Callable[..., Any]:
    """The device function (sums, y, uses, first, count, column, n, lane, buffer, at): where uses are rows.

    ``uses``, a list, names the row of y, [..., n] of the kind ``to``, of each row of the tile; this warp's
    begin with ``first``, and only the first ``count`` of the tile are there. ``buffer``, ``at``: as of
    ``box_putter``. What 128 bytes of each of a warp's 16 rows hold goes through the buffer together; of
    these eight lanes have a row, 16 bytes each.
    """
    count = columns // 2
    kind = types.UniTuple(f32, halves * count)

    def scatter(
        sums: Any, y: Any, uses: Any, first: Any, count: Any, column: Any, n: Any, lane: Any, buffer: Any,
        at: Any,
    ) -> Any:  # fmt: skip
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        sums, *given = operands
        values = unpacked(builder, sums, halves * count)
        for first in range(0, halves * count, OF_TEXT):
            own, there = values[first : first + OF_TEXT], list(given)
            there[4] = builder.add(given[4], ir.Constant(WORD, 2 * (first % count)))
            text = _rows_text(64 * (first // count), to)
            constraints = [*"llrrrrrrr", *"f" * OF_TEXT]
            emit_assembly(builder, ir.VoidType(), text, constraints, [*there, *own], effect=True)
        return context.get_dummy_value()

    if SIMULATED:
        return scatter
    words = (u64, u64, *(u32,) * 7)
    found: Callable[..., Any] = as_intrinsic(scatter, types.void(kind, *words), emit)
    return found


def _rows_text(below: int, to: str) -> str:
    """Operands: y, uses, first, count, column, n, lane, buffer, at, then a thread's sums.

    A lane stores rows r, r + 4, r + 8 and r + 12, r its number / 8, and of a piece its c-th 16 bytes.
    """
    size = SIZES[to]
    lines = ["{.reg .pred whole, p, t<4>; .reg .b32 at, r, c, w, u<4>, s<2>, w<4>; .reg .b16 low, high;"]
    lines += [f".reg .b64 of, wide, far, to<4>; add.u32 at, $2, {below}; setp.ge.u32 p, at, $3;"]
    lines += ["@p bra over; shr.u32 r, $6, 3; and.b32 c, $6, 7;"]
    lines += ["xor.b32 w, r, c; shl.b32 w, w, 4; shl.b32 s0, r, 7; add.u32 s0, s0, $7; add.u32 s0, s0, w;"]
    lines += ["xor.b32 s1, s0, 64; add.u32 s1, s1, 512;"]
    lines += ["add.u32 r, r, at; mul.wide.u32 of, r, 4; add.u64 of, of, $1;"]
    lines += [f"mad.lo.u32 c, c, {16 // size}, $4; mul.wide.u32 far, c, {size}; add.u64 far, far, $0;"]
    lines += [f"mul.lo.u32 w, $5, {size}; mul.wide.u32 wide, w, 1; or.b64 wide, wide, $0;"]
    lines += ["and.b64 wide, wide, 15; setp.eq.u64 whole, wide, 0;"]
    for i in range(4):
        lines += [f"setp.lt.u32 t{i}, r, $3; mov.b32 u{i}, 0; add.u32 r, r, 4;"]
        lines += [f"@t{i} ld.global.u32 u{i}, [of + {16 * i}];"]
    for i in range(4):
        lines += [f"mul.wide.u32 to{i}, u{i}, w; add.u64 to{i}, to{i}, far;"]
    of_piece = 64 // size  # a thread's sums
    for piece in range(OF_TEXT // of_piece):
        own = [f"${9 + of_piece * piece + j}" for j in range(of_piece)]
        staged = float_piece("$8", own) if to == "float32" else narrow_piece(to, "$8", own)
        lines += ["bar.warp.sync -1;", *staged, "bar.warp.sync -1;", f"@!whole bra single{piece};"]
        for i in range(4):
            lines += [_taken(i), f"setp.lt.and.u32 p, c, $5, t{i};"]
            lines += [f"@p st.global.v4.b32 [to{i} + {128 * piece}], {{w0, w1, w2, w3}};"]
        lines += [f"bra over{piece}; single{piece}:"]
        for i in range(4):
            lines += [_taken(i)]
            for e in range(16 // size):
                lines += [f"add.u32 at, c, {e}; setp.lt.and.u32 p, at, $5, t{i};"]
                place = f"[to{i} + {128 * piece + size * e}]"
                if to == "float32":
                    lines += [f"@p st.global.b32 {place}, w{e};"]
                else:
                    half = ("low", "high")[e % 2]
                    lines += [f"mov.b32 {{low, high}}, w{e // 2}; @p st.global.b16 {place}, {half};"]
        lines += [f"over{piece}: add.u32 c, c, {128 // size};"]
    return "\n".join([*lines, "over: }"])


def _taken(i: int) -> str:
    return f"ld.shared.v4.b32 {{w0, w1, w2, w3}}, [s{i % 2} + {1024 * (i // 2)}];"
