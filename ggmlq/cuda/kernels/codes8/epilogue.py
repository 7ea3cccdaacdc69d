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
from ...intrinsics import barrier as barriers
from ...intrinsics import codes, ptx
from ...intrinsics.assembly import FLOAT, as_intrinsic, emit_assembly, f32, only_on_a_gpu, u32, u64
from ...intrinsics.atoms import inlined
from ...intrinsics.boxes import ROWS
from ...intrinsics.lane import address
from ...intrinsics.language import SIMULATED, cuda, float32, ir, types, uint32, uint64
from ...intrinsics.wgmma import unpacked
from ...layouts.groups import HEAD
from ..quantize_scaled._codes import WORDS, Conversion, divider, storing, to_word
from .variant import OutputKind, Variant
from .wgmma_sums import SIZES, box_putter, float_patch, row_scatterer, storer

# Steps of the epilogue on a thread's sums of ``wgmma`` (wgmma_sums.py): add a bias, stage patches for codes.
#
# A bias is added in registers. Where results become codes, patches of 16 rows × 32 columns go through a
# buffer of shared memory, so that a thread gets 16 neighbours of a row (kernels/codes8/epilogue.py).

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
    store16, store2, store_float, bits_of = ptx.store16, ptx.store2, ptx.store_float, ptx.bits_of
    store_pair, float_of = ptx.store_pair, ptx.float_of
    narrow = ptx.half_bits if kind == "float16" else ptx.bfloat_bits

    @inlined
    def wide(at: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        if size == 4:
            store16(at, bits_of(a), bits_of(b), bits_of(c), bits_of(d))
        else:
            low, high = narrow(a) | narrow(b) << 16, narrow(c) | narrow(d) << 16
            store_pair(at, float_of(uint32(low)), float_of(uint32(high)))

    @inlined
    def one(at: Any, value: Any) -> None:
        if size == 4:
            store_float(at, value)
        else:
            store2(at, narrow(value))

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
    store4, store1 = ptx.store4, ptx.store1

    @inlined
    def store(at: Any, column: Any, n: Any, word: Any) -> None:
        if uint32(column + 3) < n and at & 3 == 0:
            store4(at, word)
        else:
            for i in range(4):
                if uint32(column + uint32(i)) < n:
                    store1(at + uint64(i), uint32(word >> uint32(8 * i)))

    return store


# --- a warp's part of a tile -------------------------------------------------------------------


def writer(variant: Variant) -> Any:
    """The device function that writes a warp's part of a tile as floats; ``finals`` is not used."""
    form, boxed = variant.form, variant.boxed
    kind = variant.out.kind
    put, store = box_putter(form.columns, form.halves, kind), storer(form.columns, form.halves, kind)

    @inlined
    def write(
        totals: Any, position: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, finals: Any,
    ) -> None:  # fmt: skip
        lane, inner, buffer, at = position
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
        totals: Any, position: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, finals: Any
    ) -> None:  # fmt: skip
        pair = uint32(uint32(position[0] & 3) << 1)
        totals = add(totals, finals[0], uint32(column + pair), n)
        write(totals, position, ring, y, column, row, m, n, 0)

    return end_plainly


def _code_writer(variant: Variant) -> Any:
    columns, halves = variant.form.columns, variant.form.halves
    add, stage, code = bias_adder(columns, halves), patch_stager(columns, halves), lane_encoder(variant.out)
    sync_warp, take_floats, across, fours = (
        barriers.sync_warp, ptx.take_floats, columns // PATCH_COLUMNS, LANE_CODES // 4,
    )  # fmt: skip

    @inlined
    def end_in_codes(
        totals: Any, position: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, finals: Any
    ) -> None:  # fmt: skip
        lane, inner, buffer, at = position
        pair = uint32(uint32(lane & uint32(3)) << uint32(1))
        totals = add(totals, finals[0], uint32(column + pair), n)
        number, r, q = uint32(0), uint32(lane & uint32(ROWS - 1)), uint32(lane >> uint32(4))
        row_at, v = uint32(buffer + r * uint32(128)), cuda.local.array(LANE_CODES, float32)
        while number < uint32(halves * across):
            sync_warp()  # nobody reads the patch before any more
            stage(totals, number, at)
            sync_warp()
            below = uint32(row + inner + r + uint32(number // uint32(across)) * uint32(64))
            along = uint32(
                column + uint32(number % uint32(across)) * uint32(PATCH_COLUMNS) + q * uint32(LANE_CODES)
            )
            for i in range(fours):
                chunk = uint32(uint32(q * uint32(fours) + uint32(i)) ^ uint32(r & uint32(7)))
                four = take_floats(uint32(row_at + uint32(chunk << uint32(4))))
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
    divide_quad, load_quad_scales, load_float, column_scales = (
        quad_divider(out), quad_scale_loader(out), ptx.load_float, out.column_scales,
    )  # fmt: skip

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
            s = load_float(out_args[1] + uint64(row) * out_args[2])
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
    load_words = codes.load_words

    @inlined
    def write(
        totals: Any, position: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, finals: Any
    ) -> None:  # fmt: skip
        (lane, inner, buffer, at), (plan, use_of_row) = position, finals
        slot = uint32(row // rows)
        v = load_words(plan + 4 * HEAD + uint64(slot) * 16)
        count = uint32(v[3] - uint32(uint32(slot - v[1]) * rows))
        uses = use_of_row + uint64(row) * 4
        scatter(totals, y, uses, inner, count, column, n, lane, buffer, at)

    return write
