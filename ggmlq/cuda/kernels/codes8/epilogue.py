"""The epilogue of products of 8-bit codes: add a bias, convert results to floats or codes, store them.

    out_args  bias: float32 [N], or 0 · scales: float32 · bytes from one row of scales to the next, and from
              one column to the next: 0 where one scale serves all

Codes are those of ``quantize_scaled``, made by its functions. A kernel whose threads hold four neighbours
of a row (small_m.py) loads their bias and scales before it has the sums, and then writes
all four. The sums of a warpgroup of persistent blocks go through a buffer of their warp, 16 rows and 32
columns at a time: a lane gets 16 neighbours of a row, so that its conversions do not wait for each other.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ....codes import CODES
from ...intrinsics import hopper, ptx
from ...intrinsics.assembly import (
    FLOAT,
    LONG,
    WORD,
    emit_assembly,
    emitted,
    f32,
    i32,
    parts,
    u32,
    u64,
)
from ...intrinsics.atoms import inlined
from ...intrinsics.hopper import BOX_ROWS, COMMIT, PUT, UNTIL_READ
from ...intrinsics.lane import address
from ...intrinsics.language import cuda, float32, ir, types, uint32, uint64
from ...layouts.groups import HEAD
from ..quantize_scaled._codes import WORDS, Conversion, divider, storing, to_word
from .tiles import NARROW, SIZES, OutputKind, Variant, columns_of_box

# --- sums of wgmma: integers to floats, stores of a tile, exchange in a cluster -------------------
#
# Sums are a tuple, ``halves`` of 64 rows each; a thread has rows g and g + 8 of its warp's 16, columns 8 j +
# 2 t and 8 j + 2 t + 1 (intrinsics/wgmma.py). A tuple is taken apart while the code is made, so that all
# values stay in registers.

VOID = ir.VoidType()


@cache
def box_putter(columns: int, halves: int, kind: str) -> Any:
    """The device function ``put(totals, lane, buffer, at, map, column, row)``: boxes write a warp's outputs.

    ``buffer``: 2048 bytes of shared memory of a warp, ``at``: this thread's place in it, from
    kernels/codes8/kernel.py:thread_placer.
    """
    sums, box_sums = columns // 2, columns_of_box(kind) // 2
    totals_kind = types.UniTuple(f32, halves * sums)
    text = _box_text(kind)

    @emitted(None, totals_kind, u32, u32, u32, u64, u32, u32)
    def put(
        builder: Any, totals: Any, lane: Any, buffer: Any, at: Any, map: Any, column: Any, row: Any
    ) -> None:
        values = parts(builder, totals, halves * sums)
        for first in range(0, halves * sums, box_sums):
            half, part = first // sums, first % sums // box_sums
            across = builder.add(column, ir.Constant(WORD, part * columns_of_box(kind)))
            down = builder.add(row, ir.Constant(WORD, 64 * half))
            arguments = [lane, buffer, at, map, across, down, *values[first : first + box_sums]]
            emit_assembly(builder, VOID, text, [*"rrrlrr", *"f" * box_sums], arguments, effect=True)

    return put


def _box_text(kind: str) -> str:
    lines = ["{.reg .pred other; .reg .b32 at, w<4>; setp.ne.u32 other, $0, 0;"]
    # The warp's box before is read from the same buffer: its lanes overwrite it only when the first, which
    # started the box, has seen it read.
    lines += [f"@other bra free; {UNTIL_READ} free: bar.warp.sync -1;"]
    if kind == "float32":
        lines += float_patch("$2", [f"${6 + i}" for i in range(16)])
    else:
        lines += narrow_patch(kind, "$2", [f"${6 + i}" for i in range(32)])
    # The copy engine reads shared memory through another proxy: each lane's fence shows it what that lane
    # wrote, and the first lane starts the box when all lanes are past theirs.
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

    @emitted(None, totals_kind, u64, u32, u32, u32, u32)
    def store(builder: Any, totals: Any, y: Any, column: Any, row: Any, m: Any, n: Any) -> None:
        values = parts(builder, totals, halves * sums)
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

    return store


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

    @emitted(None, totals_kind, u32)
    def stage(builder: Any, totals: Any, at: Any) -> None:
        for i, value in enumerate(parts(builder, totals, count)):
            offset = (i // 4 * 8 + i % 2) * pitch + i // 2 % 2 * 32
            text = f"st.shared.{word} [$0 + {offset}], $1;"
            emit_assembly(builder, VOID, text, ["r", letter], [at, value], effect=True)

    return stage


@cache
def row_stager(columns: int, halves: int, pitch: int) -> Any:
    """The device function ``stage(totals, at)``: it puts sums as floats into shared memory, row by row.

    The columns of a row lie side by side, rows ``pitch`` bytes apart. ``at``: the address of row g,
    column 2 t.
    """
    sums = columns // 2
    totals_kind = types.UniTuple(f32, halves * sums)

    @emitted(None, totals_kind, u32)
    def stage(builder: Any, totals: Any, at: Any) -> None:
        values = parts(builder, totals, halves * sums)
        for i in range(0, halves * sums, 2):
            half, j, low = i // sums, i % sums // 4, i // 2 % 2
            offset = (64 * half + 8 * low) * pitch + 32 * j
            text = f"st.shared.v2.f32 [$0 + {offset}], {{$1, $2}};"
            emit_assembly(builder, VOID, text, ["r", "f", "f"], [at, *values[i : i + 2]], effect=True)

    return stage


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

    @emitted(None, totals_kind, u32, u32, u32, u32)
    def push(builder: Any, totals: Any, at: Any, column: Any, share: Any, source: Any) -> None:
        values, constraints = parts(builder, totals, count), [*"rrrr", letter, letter]
        for j in range(columns // 8):
            for c in range(2):
                operands = [at, column, share, source, values[4 * j + c], values[4 * j + 2 + c]]
                emit_assembly(builder, VOID, text.format(8 * j + c), constraints, operands, effect=True)

    return push


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

    def pair_at(builder: Any, address: Any, j: int, kind: Any) -> list[Any]:
        letter, word = ("f", "f32") if kind is FLOAT else ("r", "b32")
        text = f"ld.global.nc.v2.{word} {{$0, $1}}, [$2 + {32 * j}];"
        pair = ir.LiteralStructType([kind] * 2)
        results = emit_assembly(
            builder, pair, text, [f"={letter}", f"={letter}", "l"], [address], effect=True
        )
        return parts(builder, results, 2)

    pairs = types.UniTuple(i32, 2 * count)

    @emitted(floats, ints, types.UniTuple(f32, count), u64, pairs, u64, u64)
    def finish(
        builder: Any, totals: Any, rows: Any, scales_w: Any, rows_zeros: Any, points_w: Any, others_w: Any
    ) -> list[Any]:
        values = parts(builder, totals, halves * sums)
        scales, about = parts(builder, rows, count), parts(builder, rows_zeros, 2 * count)
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
        return results

    return finish


# Stores of sums of ``wgmma`` to rows of results that a list of uses names.

TEXT_SUMS = 32  # sums whose rows are looked up together; for more, integers would not stay in registers


@cache
def row_scatterer(columns: int, halves: int, to: str) -> Any:
    """The device function that stores a tile whose rows are uses.

    The arguments: sums, y, uses, first, count, column, n, lane, buffer, at.

    ``uses``, a list, names the row of y, [..., n] of the kind ``to``, for each row of the tile; this warp's
    begin with ``first``, and only the first ``count`` rows of the tile are real. ``buffer``, ``at``: as of
    ``box_putter``. 128 bytes of each of a warp's 16 rows go through the buffer together; eight lanes have a
    row, 16 bytes each.
    """
    count = columns // 2
    kind = types.UniTuple(f32, halves * count)

    @emitted(None, kind, u64, u64, *(u32,) * 7)
    def scatter(
        builder: Any, sums: Any, y: Any, uses: Any, first_row: Any, rows: Any, column: Any, n: Any, lane: Any,
        buffer: Any, at: Any,
    ) -> None:  # fmt: skip
        values, arguments = (
            parts(builder, sums, halves * count),
            [y, uses, first_row, rows, column, n, lane, buffer, at],
        )
        for first in range(0, halves * count, TEXT_SUMS):
            patch_sums, shifted = values[first : first + TEXT_SUMS], list(arguments)
            shifted[4] = builder.add(arguments[4], ir.Constant(WORD, 2 * (first % count)))
            text = _rows_text(64 * (first // count), to)
            constraints = [*"llrrrrrrr", *"f" * TEXT_SUMS]
            emit_assembly(builder, VOID, text, constraints, [*shifted, *patch_sums], effect=True)

    return scatter


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
        # Lanes take rows that others have put: the first barrier waits until the patch before is taken, the
        # second until this one is there.
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


# --- steps on a thread's sums: add a bias, stage patches for codes ---------------------------------
#
# A bias is added in registers. Where results become codes, patches of 16 rows × 32 columns go through a
# buffer of shared memory, so that a thread gets 16 neighbours of a row.

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

    @emitted(totals_kind, totals_kind, u64, u32, u32)
    def add(builder: Any, totals: Any, bias: Any, column: Any, n: Any) -> list[Any]:
        operands = [*parts(builder, totals, count), bias, column, n]
        return parts(builder, emit_assembly(builder, result, text, constraints, operands, effect=True), count)

    return add


@cache
def patch_stager(columns: int, halves: int) -> Any:
    """The device function ``stage(totals, number, at)``: it puts a patch into a warp's buffer.

    The places are those of ``box_putter``. Patches of a half lie side by side. ``number`` is no
    constant, so that the code for a patch is compiled once; the sums stay in registers, for each patch has a
    branch of its own.
    """
    patch_length, totals_kind = PATCH_COLUMNS // 2, types.UniTuple(f32, halves * columns // 2)
    text = "\n".join(["{.reg .b32 at;", *float_patch("$0", [f"${1 + i}" for i in range(patch_length)]), "}"])

    @emitted(None, totals_kind, u32, u32)
    def stage(builder: Any, totals: Any, number: Any, at: Any) -> None:
        values = parts(builder, totals, totals_kind.count)
        over = builder.append_basic_block("over")
        which = builder.switch(number, over)
        for i in range(totals_kind.count // patch_length):
            block = builder.append_basic_block(f"patch{i}")
            which.add_case(i, block)
            builder.position_at_end(block)
            patch_sums = values[i * patch_length : (i + 1) * patch_length]
            emit_assembly(builder, VOID, text, ["r", *"f" * patch_length], [at, *patch_sums], effect=True)
            builder.branch(over)
        builder.position_at_end(over)

    return stage


LANE_CODES = 16  # neighbours of a row that a lane converts


# --- four neighbours of a row ------------------------------------------------------------------


def quad_scale_loader(out: OutputKind) -> Any:
    """The device function that loads the scales of four columns, ``last`` at most; zeros for floats."""
    if not out.coded:

        @inlined
        def no_scales(out_args: Any, row: Any, column: Any, last: Any) -> Any:
            return float32(0), float32(0), float32(0), float32(0)

        return no_scales
    column_scales = out.column_scales

    @inlined
    def scales(out_args: Any, row: Any, column: Any, last: Any) -> Any:
        _, at, down, along = out_args
        at += row * down
        if column_scales:
            return (
                ptx.load_float(at + uint64(min(column, last)) * along),
                ptx.load_float(at + uint64(min(uint32(column + uint32(1)), last)) * along),
                ptx.load_float(at + uint64(min(uint32(column + uint32(2)), last)) * along),
                ptx.load_float(at + uint64(min(uint32(column + uint32(3)), last)) * along),
            )
        s = ptx.load_float(at)
        return s, s, s, s

    return scales


def quad_storer(kind: str) -> Any:
    """The device function that stores four floats."""
    size = SIZES[kind]
    narrow = ptx.half_bits if kind == "float16" else ptx.bfloat_bits

    @inlined
    def wide(at: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        if size == 4:
            ptx.store16(at, ptx.bits_of(a), ptx.bits_of(b), ptx.bits_of(c), ptx.bits_of(d))
        else:
            low, high = narrow(a) | narrow(b) << 16, narrow(c) | narrow(d) << 16
            ptx.store_pair(at, ptx.float_of(uint32(low)), ptx.float_of(uint32(high)))

    @inlined
    def one(at: Any, value: Any) -> None:
        if size == 4:
            ptx.store_float(at, value)
        else:
            ptx.store2(at, narrow(value))

    @inlined
    def store(
        y: Any, row: Any, column: Any, n: Any, _: Any, a: Any, b: Any, c: Any, d: Any
    ) -> None:  # fmt: skip
        at = address(y, row, n, column, size)
        if uint32(column + 3) < n and at & 4 * size - 1 == 0:
            wide(at, a, b, c, d)
        else:
            if column < n:
                one(at, a)
            if uint32(column + 1) < n:
                one(at + size, b)
            if uint32(column + 2) < n:
                one(at + 2 * size, c)
            if uint32(column + 3) < n:
                one(at + 3 * size, d)

    return store


def conversion_of(out: OutputKind) -> Conversion:
    """The conversion from floats to the codes of the outputs."""
    return Conversion(out.kind, "float32", "half_even", False, out.kind in WORDS)


def quad_encoder(out: OutputKind) -> Any:
    """The device function that stores four codes under their scales."""
    word, divide, store_word = to_word(conversion_of(out)), quad_divider(out), word_storer()

    @inlined
    def store(
        y: Any, row: Any, column: Any, n: Any, scales: Any, a: Any, b: Any, c: Any, d: Any
    ) -> None:  # fmt: skip
        v = cuda.local.array(4, float32)
        v[0], v[1], v[2], v[3] = a, b, c, d
        divide(v, scales)
        store_word(address(y, row, n, column, 1), column, n, word(v, 0, uint32(0)))

    return store


def quad_divider(out: OutputKind) -> Any:
    """The device function that divides v[0] … v[3] by four scales."""
    code = CODES[out.kind]
    (prepare, divide), (_, divide_one) = (divider(code, False, "float32", count) for count in (4, 1))

    @inlined
    def by_one_scale(v: Any, scales: Any) -> None:
        divide(v, scales[0], prepare(scales[0]))

    @inlined
    def by_four_scales(v: Any, scales: Any) -> None:
        one = cuda.local.array(1, float32)
        for i in range(4):
            one[0] = v[i]
            divide_one(one, scales[i], prepare(scales[i]))
            v[i] = one[0]

    return by_four_scales if out.column_scales else by_one_scale


def word_storer() -> Any:
    """The device function that stores a word of codes, or those of its bytes that lie within the row."""

    @inlined
    def store(at: Any, column: Any, n: Any, word: Any) -> None:
        if uint32(column + 3) < n and at & 3 == 0:
            ptx.store4(at, word)
        else:
            for i in range(4):
                if uint32(column + uint32(i)) < n:
                    ptx.store1(at + uint64(i), uint32(word >> uint32(8 * i)))

    return store


# --- a warp's part of a tile -------------------------------------------------------------------


def writer(variant: Variant) -> Any:
    """The device function that writes a warp's part of a tile as floats; ``finals`` is not used."""
    form, boxed = variant.form, variant.boxed
    kind = variant.out.kind
    put, store = box_putter(form.columns, form.halves, kind), storer(form.columns, form.halves, kind)

    @inlined
    def write(
        totals: Any, place: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, finals: Any,
    ) -> None:  # fmt: skip
        lane, inner, buffer, at = place.lane, place.row, place.buffer, place.at
        row = uint32(row + inner)
        if boxed:
            put(totals, lane, buffer, at, y, column, row)
        else:
            g, t = uint32(lane >> 2), uint32(lane & 3)
            store(totals, y, uint32(column + uint32(t << 1)), uint32(row + g), m, n)

    return write


def tile_writer(variant: Variant) -> Any:
    """The device function that adds a bias to a warp's part of a tile and writes it, as floats or as codes.

    Its arguments are those of :func:`writer`.
    """
    if variant.out.coded:
        return _code_writer(variant)
    add, write = bias_adder(variant.form.columns, variant.form.halves), writer(variant)

    @inlined
    def end_plainly(
        totals: Any, place: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, finals: Any
    ) -> None:  # fmt: skip
        pair = uint32(uint32(place.lane & 3) << 1)
        totals = add(totals, finals[0], uint32(column + pair), n)
        write(totals, place, ring, y, column, row, m, n, 0)

    return end_plainly


def _code_writer(variant: Variant) -> Any:
    columns, halves = variant.form.columns, variant.form.halves
    add, stage, code = bias_adder(columns, halves), patch_stager(columns, halves), lane_encoder(variant.out)
    across, fours = columns // PATCH_COLUMNS, LANE_CODES // 4

    @inlined
    def end_in_codes(
        totals: Any, place: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, finals: Any
    ) -> None:  # fmt: skip
        lane, inner, buffer, at = place.lane, place.row, place.buffer, place.at
        pair = uint32(uint32(lane & uint32(3)) << uint32(1))
        totals = add(totals, finals[0], uint32(column + pair), n)
        number, r, q = uint32(0), uint32(lane & uint32(BOX_ROWS - 1)), uint32(lane >> uint32(4))
        row_at, v = uint32(buffer + r * uint32(128)), cuda.local.array(LANE_CODES, float32)
        while number < uint32(halves * across):
            hopper.sync_warp()  # nobody reads the patch before any more
            stage(totals, number, at)
            hopper.sync_warp()  # all lanes have put theirs
            below = uint32(row + inner + r + uint32(number // uint32(across)) * uint32(64))
            along = uint32(
                column + uint32(number % uint32(across)) * uint32(PATCH_COLUMNS) + q * uint32(LANE_CODES)
            )
            for i in range(fours):
                chunk = uint32(uint32(q * uint32(fours) + uint32(i)) ^ uint32(r & uint32(7)))
                four = ptx.take_floats(uint32(row_at + uint32(chunk << uint32(4))))
                v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3] = four
            if below < m and along < n:
                code(y, below, along, n, finals, v)
            number = uint32(number + uint32(1))

    return end_in_codes


def lane_encoder(out: OutputKind) -> Any:
    """The device function that writes 16 neighbours of a row as codes, or those that lie within the row."""
    conversion = conversion_of(out)
    prepare, divide = divider(CODES[out.kind], False, "float32", LANE_CODES)
    store, store_word, word = storing(conversion, LANE_CODES), word_storer(), to_word(conversion)
    divide_quad, load_quad_scales, column_scales = (
        quad_divider(out),
        quad_scale_loader(out),
        out.column_scales,
    )

    @inlined
    def code(y: Any, row: Any, column: Any, n: Any, out_args: Any, v: Any) -> None:
        if column_scales:
            four = cuda.local.array(4, float32)
            for i in range(0, LANE_CODES, 4):
                scales = load_quad_scales(out_args, row, uint32(column + uint32(i)), uint32(n - uint32(1)))
                for j in range(4):
                    four[j] = v[i + j]
                divide_quad(four, scales)
                for j in range(4):
                    v[i + j] = four[j]
        else:
            s = ptx.load_float(out_args[1] + uint64(row) * out_args[2])
            divide(v, s, prepare(s))
        at = address(y, row, n, column, 1)
        if uint32(column + uint32(LANE_CODES - 1)) < n and at & uint64(LANE_CODES - 1) == uint64(0):
            store(at, v, 0, uint32(0))
        else:
            for i in range(0, LANE_CODES, 4):
                store_word(at + uint64(i), uint32(column + uint32(i)), n, word(v, i, uint32(0)))

    return code


# --- listed rows ------------------------------------------------------------------------------


def row_writer(variant: Variant) -> Any:
    """The device function that writes a warp's part of a tile of experts to the rows of its uses.

    ``finals``: a plan (layouts/groups.py), and the use of each of its rows.
    """
    rows, scatter = (
        variant.tile.rows,
        row_scatterer(variant.form.columns, variant.form.halves, variant.out.kind),
    )

    @inlined
    def write(
        totals: Any, place: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, finals: Any
    ) -> None:  # fmt: skip
        lane, inner, buffer, at = place.lane, place.row, place.buffer, place.at
        plan, use_of_row = finals
        slot = uint32(row // rows)
        v = ptx.load_words(plan + 4 * HEAD + uint64(slot) * 16)
        count = uint32(v[3] - uint32(uint32(slot - v[1]) * rows))
        uses = use_of_row + uint64(row) * 4
        scatter(totals, y, uses, inner, count, column, n, lane, buffer, at)

    return write
