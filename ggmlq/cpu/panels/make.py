"""Kernels that make the operands of products: x to rows of codes, blocks to panels."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ...formats import BlockFormat
from ...formats.format import Bytes
from ...formats.packing import RUN, halves
from ..atoms import verb
from ..lanes import narrow, recast, store
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, reader
from ..machine.simd import F32, FLOATS, I8, I32, I64, INTS, Simd, vec
from ..machine.target import Target
from ..unpack import unpacker
from .layout import ROWS, SUPER, WIDTH, Activations, Laying, PanelLayout, batch, layout_of, x_run_bytes

ROUND = 12582912.0  # 1.5 · 2**23: adding it leaves the nearest integer in the last bits, ties to even
INFINITY = 0x7F800000
U8, U16, U32 = types.uint8, types.uint16, types.uint32

activations = reader(Activations)


@cache
def quantizer(groups: int, offset: bool, target: Target) -> Any:
    """Compiled: quantize rows ``first`` … ``stop`` of ``Activations`` to codes, scales and sums."""
    write, together = _run_writer(groups, offset, target), inner(batch)
    size = x_run_bytes(PanelLayout(offset=offset, group=16 if groups == 2 else 32))

    def quantize(arguments: int, first: int, stop: int) -> None:
        fields = activations(arguments)
        begin = first // fields.most * fields.most  # of the batch
        rows = together(fields.rows - begin, fields.most)
        for row in range(first, stop):
            while row >= begin + rows:
                begin += rows
                rows = together(fields.rows - begin, fields.most)
            to = fields.x_rows + begin * fields.row_bytes + (row - begin) * size
            for run in range(fields.columns // RUN):
                values = fields.values + 4 * (row * fields.columns + RUN * run)
                write(values, to + run * rows * size, fields.zero, fields.start)

    return jit(quantize)


def _run_writer(groups: int, offset: bool, target: Target) -> Any:
    """An intrinsic for one run: (address of 32 floats, address of the run that they become, zero, start)."""
    return intrinsic_of(lambda builder, *words: _emit(Simd(builder, target), groups, offset, *words), 4)


def _emit(simd: Simd, groups: int, offset: bool, source: Any, to: Any, zero: Any, start: Any) -> None:
    b = simd.builder
    x = [simd.load(b.add(source, I64(64 * i)), FLOATS) for i in range(2)]
    bits = [b.and_(b.bitcast(part, INTS), _ints(0x7FFFFFFF)) for part in x]
    larger = b.select(b.icmp_signed(">", bits[0], bits[1]), bits[0], bits[1])
    most = simd.call("llvm.vector.reduce.smax.v16i32", I32, larger)  # NaN above infinity above numbers
    amax = b.bitcast(most, F32)
    scale = b.fdiv(amax, F32(127.0))
    inverse = simd.splat(b.fdiv(F32(127.0), amax))
    finite = simd.splat(b.sext(b.icmp_signed("<", most, I32(INFINITY)), I32))
    sums = []
    for i, part in enumerate(x):
        codes = b.and_(_codes(b, part, inverse), finite)
        simd.store(b.trunc(codes, vec(I8, 16)), b.add(to, I64(16 * i)))
        sums.append(simd.call("llvm.vector.reduce.add.v16i32", I32, codes))
    simd.store(scale, b.add(to, I64(RUN)))
    for group, total in enumerate(sums if groups == 2 else [b.add(*sums)]):
        at = RUN + 4 + 4 * group
        simd.store(b.sub(b.trunc(start, I32), b.mul(b.trunc(zero, I32), total)), b.add(to, I64(at)))
        if offset:
            s = b.fmul(scale, b.sitofp(b.neg(total), F32))
            simd.store(s, b.add(to, I64(at + 4 * groups)))


def _codes(b: Any, x: Any, inverse: Any) -> Any:
    """The integers nearest to x · inverse, as int32."""
    zeros = ir.Constant(FLOATS, None)
    v = b.select(b.fcmp_ordered("==", x, zeros), zeros, b.fmul(x, inverse))  # 0 · inf is not 0
    for limit, beyond in ((127.0, ">"), (-127.0, "<")):  # inverse is infinite where amax is tiny
        edge = ir.Constant(FLOATS, [limit] * 16)
        v = b.select(b.fcmp_ordered(beyond, v, edge), edge, v)
    rounded = b.fadd(v, ir.Constant(FLOATS, [ROUND] * 16))
    return b.sub(b.bitcast(rounded, INTS), _ints(0x4B400000))


def _ints(value: int) -> ir.Constant:
    return ir.Constant(INTS, [value] * 16)


# --- The kernel that makes panels of blocks -------------------------------------------------------
# Sixteen rows are unpacked, their scales go to their places, then run by run their codes: each line of a
# panel is written once.

laying = reader(Laying)


@cache
def placer(fmt: BlockFormat) -> Any:
    """Compiled: lay panels ``first`` … ``stop`` of ``Laying``."""
    layout = layout_of(fmt)
    assert layout is not None
    unpack, group, run_bytes, head = unpacker(fmt), fmt.group, layout.run_bytes, layout.head
    put_scales, put_stored = _scale_putter(fmt, layout), _storer(layout)
    places, low = layout.planes_at, [sum(layout.planes[:i]) for i in range(len(layout.planes))]
    putters = [_plane_putter(*plane) for plane in zip(layout.planes, places, low, strict=True)]
    put_first, put_last = putters[0], putters[-1]
    two, has_offset = len(putters) == 2, fmt.has_offset

    def place(arguments: int, first: int, stop: int) -> None:
        f = laying(arguments)
        columns, runs = f.columns, f.columns // RUN
        codes = np.empty((ROWS, columns), np.int8)
        scales = np.empty((ROWS, columns // group), np.float32)
        offsets = np.empty((ROWS, columns // group if has_offset else 1), np.float32)
        words = codes.view(np.uint32)
        for p in range(first, stop):
            panel = bytes_at(f.panels + p * f.panel_bytes, 1, f.panel_bytes)[0]
            rows = min(ROWS, f.rows - p * ROWS)
            if rows < ROWS:  # the others are zeros
                panel[:] = 0
            for r in range(rows):
                raw = bytes_at(f.raw + (p * ROWS + r) * f.pitch, 1, f.row_bytes)[0]
                unpack(raw, codes[r], scales[r], offsets[r])
                put_scales(panel, r, runs, raw, scales[r], offsets[r])
                put_stored(codes[r])
            to = panel.view(np.uint32)
            for run in range(runs):
                at = run * run_bytes + (run // SUPER + 1) * head
                put_first(words, run, rows, to, at)
                if two:
                    put_last(words, run, rows, to, at)

    return jit(place)


def _scale_putter(fmt: BlockFormat, layout: PanelLayout) -> Any:
    """Compiled: write the scales and offsets of row ``r``, and the halves above them, to a panel."""
    run_bytes, head, width = layout.run_bytes, layout.head, WIDTH[layout.scale]
    groups, group, beside = layout.groups, fmt.group, layout.scales
    if not layout.nested:
        put, apart = _float_putter(layout.scale), layout.offset

        def put_floats(panel: Any, r: int, runs: int, raw: Any, scales: Any, offsets: Any) -> None:
            for run in range(runs):
                for part in range(groups):
                    at = run * run_bytes + width * (ROWS * part + r)
                    g = (run * RUN + part * RUN // groups) // group
                    put(panel, at, scales[g])
                    if apart:
                        put(panel, at + beside, offsets[g])

        return inner(put_floats)
    size, how, several = fmt.dtype.itemsize, fmt.scales, SUPER * groups
    integer, half = verb(how.sub or _one), _half_reader(fmt)
    zero, sign, lower = how.zero, how.sign, verb(how.low or _one)
    halves, apart = 1 + layout.offset, layout.offset and not how.nibbles

    def put_integers(panel: Any, r: int, runs: int, raw: Any, scales: Any, offsets: Any) -> None:
        for above in range(runs // SUPER):
            block, start = raw[above * size :], above * (SUPER * run_bytes + head)
            for h in range(halves):
                bits = half(block, h)
                panel[start + 2 * (ROWS * h + r)] = bits & 255
                panel[start + 2 * (ROWS * h + r) + 1] = bits >> 8
            for g in range(several):
                at = start + head + g // groups * run_bytes + ROWS * (g % groups) + r
                panel[at] = np.uint8(integer(block, g) - zero & 255)
                if apart:
                    panel[at + beside] = np.uint8(sign * lower(block, g) & 255)

    return inner(put_integers)


def _one(block: Bytes, g: int) -> int:
    return 1


def _half_reader(fmt: BlockFormat) -> Any:
    """Compiled: the bits of half ``h`` above the scales of a block: d, then that of the offsets."""
    if fmt.scales.d is not None:
        d = verb(fmt.scales.d)
        return inner(lambda block, h: int(d(block)))
    assert fmt.dtype.fields is not None
    first, *more = (fmt.dtype.fields[name][1] for name in halves(fmt))
    apart = more[0] - first if more else 0

    def half(block: Any, h: int) -> int:
        at = first + h * apart
        return int(block[at]) | int(block[at + 1]) << 8

    return inner(half)


def _float_putter(scale: str) -> Any:
    """Compiled: write a scale, which its type holds as it is, to bytes at a place."""

    def put_single(panel: Any, at: int, x: Any) -> None:
        store(panel, at, recast(x, U8))

    def put_half(panel: Any, at: int, x: Any) -> None:
        store(panel, at, recast(narrow(x), U8))

    def put_upper(panel: Any, at: int, x: Any) -> None:
        store(panel, at, recast(U16(recast(x, U32) >> 16), U8))

    return inner({"f32": put_single, "f16": put_half, "bf16": put_upper}[scale])


def _storer(layout: PanelLayout) -> Any:
    """Compiled: make codes what a panel stores: with its zero added, or their places in its table."""
    zero, table = layout.zero, np.array(layout.table or [0])
    stored = np.abs(np.arange(-128, 128)[:, None] - table).argmin(axis=1).astype(np.int8)

    def look_up(codes: Any) -> None:
        for i in range(len(codes)):
            codes[i] = stored[codes[i] + 128]

    def add(codes: Any) -> None:
        for i in range(len(codes)):
            codes[i] = np.int8(codes[i] + zero)

    return inner(look_up if layout.table else add)


def _plane_putter(bits: int, plane: int, low: int) -> Any:
    """Compiled: write the ``bits`` from bit ``low`` on of the codes of a run, all rows of each vector."""
    count, ones = 8 // bits, np.uint32(((1 << bits) - 1) * 0x01010101)

    def put(words: Any, run: int, rows: int, to: Any, at: int) -> None:
        for vector in range(bits):
            for r in range(rows):
                word = np.uint32(0)
                for i in range(count):
                    four = vector + 4 * i if bits == 4 else vector * count + i
                    part = words[r, run * (RUN // 4) + four] >> np.uint32(low) & ones
                    word |= part << np.uint32(bits * i)
                to[(at + plane) // 4 + ROWS * vector + r] = word

    return inner(put)
