"""From the sums of ``wgmma`` to results: int32 to floats, stores of a tile of floats, exchange in a cluster.

Sums are a tuple, ``halves`` of 64 rows each; a thread has rows g and g + 8 of its warp's 16, columns 8 j +
2 t and 8 j + 2 t + 1 (intrinsics/wgmma.py). A tuple is taken apart while the code is made, so that all
values stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ...intrinsics.assembly import (
    FLOAT,
    LONG,
    WORD,
    as_intrinsic,
    emit_assembly,
    f32,
    i32,
    only_on_a_gpu,
    u32,
    u64,
)
from ...intrinsics.boxes import COMMIT, PUT, UNTIL_READ
from ...intrinsics.language import SIMULATED, ir, types
from ...intrinsics.wgmma import unpacked

SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
NARROW = {"float16": "f16", "bfloat16": "bf16"}
VOID = ir.VoidType()


def columns_of_box(kind: str) -> int:
    """Columns of outputs in 128 bytes."""
    return 128 // SIZES[kind]


@cache
def box_putter(columns: int, halves: int, kind: str) -> Any:
    """The device function ``put(totals, lane, buffer, at, map, column, row)``: boxes write a warp's outputs.

    ``buffer``: 2048 bytes of shared memory of a warp, ``at``: this thread's place in it, from
    kernels/codes8/schedules.py:thread_placer.
    """
    sums, box_sums = columns // 2, columns_of_box(kind) // 2
    totals_kind = types.UniTuple(f32, halves * sums)
    text = _box_text(kind)

    def put(totals: Any, lane: Any, buffer: Any, at: Any, map: Any, column: Any, row: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, lane, buffer, at, to, column, row = operands
        values = unpacked(builder, totals, halves * sums)
        for first in range(0, halves * sums, box_sums):
            half, part = first // sums, first % sums // box_sums
            across = builder.add(column, ir.Constant(WORD, part * columns_of_box(kind)))
            down = builder.add(row, ir.Constant(WORD, 64 * half))
            arguments = [lane, buffer, at, to, across, down, *values[first : first + box_sums]]
            emit_assembly(builder, VOID, text, [*"rrrlrr", *"f" * box_sums], arguments, effect=True)
        return context.get_dummy_value()

    if SIMULATED:
        return put
    return as_intrinsic(put, types.void(totals_kind, u32, u32, u32, u64, u32, u32), emit)


def _box_text(kind: str) -> str:
    lines = ["{.reg .pred other; .reg .b32 at, w<4>; setp.ne.u32 other, $0, 0;"]
    lines += [f"@other bra free; {UNTIL_READ} free: bar.warp.sync -1;"]
    if kind == "float32":
        lines += float_patch("$2", [f"${6 + i}" for i in range(16)])
    else:
        lines += narrow_patch(kind, "$2", [f"${6 + i}" for i in range(32)])
    lines += ["fence.proxy.async.shared::cta; bar.warp.sync -1;"]
    lines += [f"@other bra over; {PUT} [$3, {{$4, $5}}], [$1]; {COMMIT} over:", "}"]
    return "\n".join(lines)


def float_patch(place: str, values: list[str]) -> list[str]:
    """Assembly that puts a thread's 16 floats, of 32 columns, into its warp's buffer, with a word ``at``."""
    lines = []
    for j in range(4):
        v = values[4 * j : 4 * j + 4]
        lines += [f"xor.b32 at, {place}, {32 * j}; st.shared.v2.f32 [at], {{{v[0]}, {v[1]}}};"]
        lines += [f"st.shared.v2.f32 [at + 1024], {{{v[2]}, {v[3]}}};"]
    return lines


def narrow_patch(kind: str, place: str, values: list[str]) -> list[str]:
    """Assembly that puts 32 floats as 16-bit ones, of 64 columns; with words ``at`` and ``w0`` to ``w3``."""
    lines = []
    for j in range(0, 8, 2):
        for i in range(4):
            low, high = values[4 * j + 2 * i : 4 * j + 2 * i + 2]
            lines += [f"cvt.rn.{NARROW[kind]}x2.f32 w{i}, {high}, {low};"]
        lines += [f"xor.b32 at, {place}, {16 * j};"]
        lines += ["stmatrix.sync.aligned.m8n8.x4.shared.b16 [at], {w0, w1, w2, w3};"]
    return lines


@cache
def storer(columns: int, halves: int, kind: str) -> Any:
    """The device function ``store(totals, y, column, row, m, n)``: it writes a thread's outputs one by one.

    It leaves out those beyond [m, n]. ``column``, ``row``: of the thread's first sum.
    """
    sums, size = columns // 2, SIZES[kind]
    totals_kind = types.UniTuple(f32, halves * sums)

    def store(totals: Any, y: Any, column: Any, row: Any, m: Any, n: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, y, column, row, m, n = operands
        values = unpacked(builder, totals, halves * sums)
        text = _store_text(columns, kind)
        for i in range(2 * halves):
            row_at = builder.add(row, ir.Constant(WORD, 64 * (i // 2) + 8 * (i % 2)))
            index = builder.mul(builder.zext(row_at, LONG), builder.zext(n, LONG))
            index = builder.add(index, builder.zext(column, LONG))
            at = builder.add(y, builder.mul(index, ir.Constant(LONG, size)))
            first = i // 2 * sums + 2 * (i % 2)
            pairs = [values[first + 4 * j + c] for j in range(columns // 8) for c in range(2)]
            arguments = [at, row_at, m, column, n, *pairs]
            emit_assembly(builder, VOID, text, [*"lrrrr", *"f" * len(pairs)], arguments, effect=True)
        return context.get_dummy_value()

    if SIMULATED:
        return store
    return as_intrinsic(store, types.void(totals_kind, u64, u32, u32, u32, u32), emit)


def _store_text(columns: int, kind: str) -> str:
    size = SIZES[kind]
    lines = ["{.reg .pred in, p; .reg .b32 c; .reg .b16 h; setp.lt.u32 in, $1, $2;"]
    for j in range(columns // 8):
        for c in range(2):
            value, offset = f"${5 + 2 * j + c}", (8 * j + c) * size
            lines += [f"add.u32 c, $3, {8 * j + c}; setp.lt.and.u32 p, c, $4, in;"]
            if kind == "float32":
                lines += [f"@p st.global.f32 [$0 + {offset}], {value};"]
            else:
                lines += [f"cvt.rn.{NARROW[kind]}.f32 h, {value}; @p st.global.b16 [$0 + {offset}], h;"]
    return "\n".join([*lines, "}"])


@cache
def column_stager(columns: int, integer: bool, pitch: int) -> Any:
    """The device function ``stage(totals, at)``: it puts 64 rows into shared memory, column by column.

    The rows of a column lie side by side, columns ``pitch`` bytes apart. ``at``: the address of row g,
    column 2 t.
    """
    count, letter, word = columns // 2, "r" if integer else "f", "b32" if integer else "f32"
    totals_kind = types.UniTuple(i32 if integer else f32, count)

    def stage(totals: Any, at: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, at = operands
        for i, value in enumerate(unpacked(builder, totals, count)):
            offset = (i // 4 * 8 + i % 2) * pitch + i // 2 % 2 * 32
            text = f"st.shared.{word} [$0 + {offset}], $1;"
            emit_assembly(builder, VOID, text, ["r", letter], [at, value], effect=True)
        return context.get_dummy_value()

    return stage if SIMULATED else as_intrinsic(stage, types.void(totals_kind, u32), emit)


@cache
def row_stager(columns: int, halves: int, pitch: int) -> Any:
    """The device function ``stage(totals, at)``: it puts sums as floats into shared memory, row by row.

    The columns of a row lie side by side, rows ``pitch`` bytes apart. ``at``: the address of row g,
    column 2 t.
    """
    sums = columns // 2
    totals_kind = types.UniTuple(f32, halves * sums)

    def stage(totals: Any, at: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, at = operands
        values = unpacked(builder, totals, halves * sums)
        for i in range(0, halves * sums, 2):
            half, j, low = i // sums, i % sums // 4, i // 2 % 2
            offset = (64 * half + 8 * low) * pitch + 32 * j
            text = f"st.shared.v2.f32 [$0 + {offset}], {{$1, $2}};"
            emit_assembly(builder, VOID, text, ["r", "f", "f"], [at, *values[i : i + 2]], effect=True)
        return context.get_dummy_value()

    return stage if SIMULATED else as_intrinsic(stage, types.void(totals_kind, u32), emit)


@cache
def cluster_pusher(columns: int, integer: bool, pitch: int) -> Any:
    """The device function ``push(totals, at, column, share, source)``: it sends sums to a cluster's blocks.

    The sums are of 64 rows. Block i finishes columns i << share to (i + 1) << share. There column c of these
    lies at ``pitch`` · (c + ``source``), its rows side by side. ``at``: the address of row g of column 0;
    ``column``: 2 t.
    """
    count, letter, word = columns // 2, "r" if integer else "f", "b32" if integer else "f32"
    totals_kind = types.UniTuple(i32 if integer else f32, count)
    text = (
        "{{.reg .b32 c, own, at; add.u32 c, $1, {0}; shr.u32 own, c, $2; shl.b32 at, own, $2; "
        f"sub.u32 at, c, at; add.u32 at, at, $3; mad.lo.u32 at, at, {pitch}, $0; "
        "mapa.shared::cluster.u32 at, at, own; "
        f"st.shared::cluster.{word} [at], $4; st.shared::cluster.{word} [at + 32], $5;}}}}"
    )

    def push(totals: Any, at: Any, column: Any, share: Any, source: Any) -> Any:
        only_on_a_gpu()

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, *arguments = operands
        values = unpacked(builder, totals, count)
        for j in range(columns // 8):
            for c in range(2):
                pair = [values[4 * j + c], values[4 * j + 2 + c]]
                line = text.format(8 * j + c)
                emit_assembly(
                    builder, VOID, line, [*"rrrr", letter, letter], [*arguments, *pair], effect=True
                )
        return context.get_dummy_value()

    return push if SIMULATED else as_intrinsic(push, types.void(totals_kind, u32, u32, u32, u32), emit)


@cache
def integer_epilogue(columns: int, halves: int, zeros: bool) -> Any:
    """The device function ``finish(totals, rows, scales_w, rows_zeros, points_w, others_w)``.

    It returns sums of integers as floats. ``rows``: 2 · halves scales of a thread's rows; ``scales_w``: the
    address of the scale of column 2 t. With zero points: ``rows_zeros`` are the 2 · halves points
    of its rows, then the factors of w's points; ``points_w`` and ``others_w`` are addresses
    (kernels/codes8/rows.py). A sum is multiplied once, by the product of both scales.
    """
    sums, count = columns // 2, 2 * halves
    ints, floats = types.UniTuple(i32, halves * sums), types.UniTuple(f32, halves * sums)

    def finish(totals: Any, rows: Any, scales_w: Any, rows_zeros: Any, points_w: Any, others_w: Any) -> Any:
        only_on_a_gpu()

    def pair_at(builder: Any, address: Any, j: int, kind: Any) -> list[Any]:
        letter, word = ("f", "f32") if kind is FLOAT else ("r", "b32")
        text = f"ld.global.nc.v2.{word} {{$0, $1}}, [$2 + {32 * j}];"
        pair = ir.LiteralStructType([kind] * 2)
        results = emit_assembly(
            builder, pair, text, [f"={letter}", f"={letter}", "l"], [address], effect=True
        )
        return unpacked(builder, results, 2)

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        totals, rows, scales_w, rows_zeros, points_w, others_w = operands
        values = unpacked(builder, totals, halves * sums)
        scales, about = unpacked(builder, rows, count), unpacked(builder, rows_zeros, 2 * count)
        results, nothing = [None] * (halves * sums), ir.Constant(FLOAT, 0.0)
        for j in range(columns // 8):
            across = pair_at(builder, scales_w, j, FLOAT)
            points = pair_at(builder, points_w, j, WORD) if zeros else []
            others = pair_at(builder, others_w, j, WORD) if zeros else []
            for row in range(count):
                for c in range(2):
                    i = row // 2 * sums + 4 * j + 2 * (row % 2) + c
                    value = values[i]
                    if zeros:
                        value = builder.sub(value, builder.mul(about[row], others[c]))
                        value = builder.sub(value, builder.mul(about[count + row], points[c]))
                    value = builder.sitofp(value, FLOAT)
                    results[i] = builder.fma(value, builder.fmul(scales[row], across[c]), nothing)
        return context.make_tuple(builder, floats, results)

    if SIMULATED:
        return finish
    pairs = types.UniTuple(i32, 2 * count)
    return as_intrinsic(finish, floats(ints, types.UniTuple(f32, count), u64, pairs, u64, u64), emit)


# Stores of sums of ``wgmma`` to rows of results that a list of uses names.

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
