"""Stores of sums of ``wgmma`` to rows of results that a list names: the uses of experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ..intrinsics.assembly import LONG, WORD, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32, u64
from ..intrinsics.language import SIMULATED, ir, types
from ..intrinsics.wgmma8 import unpacked
from .wgmma_sums import SIZES, float_patch, narrow_patch

LANES, NOBODY = 32, 0xFFFFFFFF


@cache
def holder(columns: int) -> Callable[..., Any]:
    """The device function (list, lane, count) by which a warp loads the list of columns into registers.

    A lane holds the entries of columns ``lane``, ``lane`` + 32 and so on; NOBODY from ``count`` on. Entries
    that are loaded before a tile is multiplied have arrived when the tile is written.
    """
    kind = types.UniTuple(u32, -(-columns // LANES))

    def hold(list: Any, lane: Any, count: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        list, lane, count = operands
        at = builder.add(list, builder.zext(builder.mul(lane, ir.Constant(WORD, 4)), LONG))
        most, registers = ir.Constant(WORD, columns), []
        count = builder.select(builder.icmp_unsigned("<", count, most), count, most)
        for first in range(0, columns, LANES):
            text = f"{{.reg .pred p; .reg .b32 c; add.u32 c, $2, {first}; setp.lt.u32 p, c, $3; "
            text += f"mov.b32 $0, {NOBODY}; @p ld.global.u32 $0, [$1 + {4 * first}];}}"
            arguments = [at, lane, count]
            registers.append(
                emit_assembly(builder, WORD, text, ["=&r", "l", "r", "r"], arguments, effect=True)
            )
        return context.make_tuple(builder, signature.return_type, registers)

    if SIMULATED:
        return hold
    intrinsic: Callable[..., Any] = as_intrinsic(hold, kind(u64, u32, u32), emit)
    return intrinsic


@cache
def scatterer(columns: int) -> Callable[..., Any]:
    """The device function (sums, y, rows, column, row, n) that stores a tile whose columns are uses.

    The tile has 64 rows of weights × ``columns`` columns.
    ``column``: the thread's first one, 2 t; ``rows``, from ``holder``: the row of y, float32 [..., n], of
    each column.
    """
    count, list_words = columns // 2, -(-columns // LANES)
    kind, rows_kind = types.UniTuple(f32, count), types.UniTuple(u32, list_words)

    def scatter(sums: Any, y: Any, rows: Any, column: Any, row: Any, n: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        sums, y, rows, *arguments = operands
        values = [*unpacked(builder, rows, list_words), *unpacked(builder, sums, count)]
        constraints = [*"lrrr", *"r" * list_words, *"f" * count]
        text = _text(columns, list_words)
        emit_assembly(builder, ir.VoidType(), text, constraints, [y, *arguments, *values], effect=True)
        return context.get_dummy_value()

    if SIMULATED:
        return scatter
    words = (u64, rows_kind, *(u32,) * 3)
    intrinsic: Callable[..., Any] = as_intrinsic(scatter, types.void(kind, *words), emit)
    return intrinsic


def _text(columns: int, list_words: int) -> str:
    """The assembly of ``scatter``. Operands: y, column, row, n, the list, then the sums: two columns × two
    rows, 8 columns on.
    """
    lines = ["{.reg .pred low, high, p; .reg .b32 c, r, u; .reg .b64 at, far;"]
    lines += ["setp.lt.u32 low, $2, $3; add.u32 r, $2, 8; setp.lt.u32 high, r, $3;"]
    lines += ["mul.wide.u32 far, $2, 4; add.u64 far, far, $0; shl.b32 r, $3, 2;"]
    for i in range(columns // 8):
        register, lane = 8 * i // LANES, 8 * i % LANES
        for e in range(2):
            value = 4 + list_words + 4 * i + e
            lines += [f"add.u32 c, $1, {lane + e}; shfl.sync.idx.b32 u, ${4 + register}, c, 31, -1;"]
            lines += [f"mul.wide.u32 at, u, r; add.u64 at, at, far; setp.ne.and.u32 p, u, {NOBODY}, low;"]
            lines += [f"@p st.global.f32 [at], ${value}; setp.ne.and.u32 p, u, {NOBODY}, high;"]
            lines += [f"@p st.global.f32 [at + 32], ${value + 2};"]
    return "\n".join([*lines, "}"])


TEXT_SUMS = 32  # sums whose rows are looked up together; for more, integers would not stay in registers


@cache
def row_scatterer(columns: int, halves: int, to: str) -> Callable[..., Any]:
    """The device function that stores a tile whose rows are uses.

    The arguments: sums, y, uses, first, count, column, n, lane, buffer, at.

    ``uses``, a list, names the row of y, [..., n] of the kind ``to``, for each row of the tile; this warp's
    begin with ``first``, and only the first ``count`` rows of the tile are real. ``buffer``, ``at``: as of
    ``box_putter``. 128 bytes of each of a warp's 16 rows go through the buffer together; eight lanes have a
    row, 16 bytes each.
    """
    count = columns // 2
    kind = types.UniTuple(f32, halves * count)

    def scatter(
        sums: Any, y: Any, uses: Any, first: Any, count: Any, column: Any, n: Any, lane: Any, buffer: Any,
        at: Any,
    ) -> Any:  # fmt: skip
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        sums, *arguments = operands
        values = unpacked(builder, sums, halves * count)
        for first in range(0, halves * count, TEXT_SUMS):
            patch_sums, shifted = values[first : first + TEXT_SUMS], list(arguments)
            shifted[4] = builder.add(arguments[4], ir.Constant(WORD, 2 * (first % count)))
            text = _rows_text(64 * (first // count), to)
            constraints = [*"llrrrrrrr", *"f" * TEXT_SUMS]
            emit_assembly(builder, ir.VoidType(), text, constraints, [*shifted, *patch_sums], effect=True)
        return context.get_dummy_value()

    if SIMULATED:
        return scatter
    words = (u64, u64, *(u32,) * 7)
    intrinsic: Callable[..., Any] = as_intrinsic(scatter, types.void(kind, *words), emit)
    return intrinsic


def _rows_text(below: int, to: str) -> str:
    """The assembly of ``row_scatterer``. Operands: y, uses, first, count, column, n, lane, buffer, at, then
    a thread's sums.

    A lane stores rows r, r + 4, r + 8 and r + 12, r its number / 8, and of a patch its c-th 16 bytes.
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
    patch_length = 64 // size  # sums of a thread
    for patch in range(TEXT_SUMS // patch_length):
        patch_sums = [f"${9 + patch_length * patch + j}" for j in range(patch_length)]
        staged = float_patch("$8", patch_sums) if to == "float32" else narrow_patch(to, "$8", patch_sums)
        lines += ["bar.warp.sync -1;", *staged, "bar.warp.sync -1;", f"@!whole bra single{patch};"]
        for i in range(4):
            lines += [_taken(i), f"setp.lt.and.u32 p, c, $5, t{i};"]
            lines += [f"@p st.global.v4.b32 [to{i} + {128 * patch}], {{w0, w1, w2, w3}};"]
        lines += [f"bra over{patch}; single{patch}:"]
        for i in range(4):
            lines += [_taken(i)]
            for e in range(16 // size):
                lines += [f"add.u32 at, c, {e}; setp.lt.and.u32 p, at, $5, t{i};"]
                place = f"[to{i} + {128 * patch + size * e}]"
                if to == "float32":
                    lines += [f"@p st.global.b32 {place}, w{e};"]
                else:
                    half = ("low", "high")[e % 2]
                    lines += [f"mov.b32 {{low, high}}, w{e // 2}; @p st.global.b16 {place}, {half};"]
        lines += [f"over{patch}: add.u32 c, c, {128 // size};"]
    return "\n".join([*lines, "over: }"])


def _taken(i: int) -> str:
    return f"ld.shared.v4.b32 {{w0, w1, w2, w3}}, [s{i % 2} + {1024 * (i // 2)}];"
