"""Kernels that make the operands of products: x to rows of codes, blocks to panels."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from ...formats import BlockFormat
from ...formats.packing import RUN
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at, reader
from ..machine.simd import F32, FLOATS, I8, I32, I64, INTS, Simd, vec
from ..machine.target import Target
from ..unpack import unpacker
from .layout import ROWS, SUPER, Activations, Assembly, PanelLayout, Splitting, batch, x_run_bytes

ROUND = 12582912.0  # 1.5 · 2**23: adding it leaves the nearest integer in the last bits, ties to even
INFINITY = 0x7F800000


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


# --- The kernels that make panels of blocks: one splits rows into codes and scales, one lays 16 side by
# side

rows_of_blocks, rows_of_codes = reader(Splitting), reader(Assembly)


@cache
def splitter(fmt: BlockFormat) -> Any:
    """Compiled: split rows ``first`` … ``stop`` of blocks into codes, scales and offsets."""
    unpack, has_offset = unpacker(fmt), fmt.has_offset

    def split(arguments: int, first: int, stop: int) -> None:
        fields = rows_of_blocks(arguments)
        columns, groups = fields.columns, fields.groups
        for row in range(first, stop):
            raw = bytes_at(fields.raw + row * fields.row_bytes, 1, fields.row_bytes)[0]
            codes = bytes_at(fields.codes + row * columns, 1, columns)[0].view(np.int8)
            scales = floats_at(fields.scales + 4 * row * groups, 1, groups)[0]
            offsets = scales
            if has_offset:
                offsets = floats_at(fields.offsets + 4 * row * groups, 1, groups)[0]
            unpack(raw, codes, scales, offsets)

    return jit(split)


@cache
def assembler(layout: PanelLayout) -> Any:
    """Compiled: lay rows ``first`` … ``stop`` of codes and scales into panels.

    A word has four codes of a row, neighbours. A plane takes some bits of each of the eight words of a run.
    """
    planes = np.array([layout.planes, layout.planes_at]).T
    groups, run_bytes, head = layout.groups, layout.run_bytes, layout.head
    scales_bytes, nested, packed = layout.scales, layout.nested, layout.scale == "i4"
    apart, by_table, zero = layout.offset and not packed, bool(layout.table), layout.zero

    def assemble(arguments: int, first: int, stop: int) -> None:
        fields = rows_of_codes(arguments)
        runs, width, size = fields.columns // RUN, fields.width, fields.above_bytes
        pitch = runs * groups * width
        stored = bytes_at(fields.stored, 1, 256)[0]
        fours = np.empty(RUN // 4, np.uint32)
        mapped = fours.view(np.uint8)
        for row in range(first, stop):
            panel = bytes_at(fields.panels + row // ROWS * fields.panel_bytes, 1, fields.panel_bytes)[0]
            words = panel.view(np.uint32)
            codes = bytes_at(fields.codes + row * fields.columns, 1, fields.columns)[0].view(np.int8)
            scales = bytes_at(fields.scales + row * pitch, 1, pitch)[0]
            offsets = bytes_at(fields.offsets + row * pitch, 1, pitch)[0]
            above = bytes_at(fields.above + row * (runs // SUPER * size), 1, runs // SUPER * size)[0]
            r = row % ROWS
            for run in range(runs):
                at = run * run_bytes + (run // SUPER + 1) * head
                if nested and run % SUPER == 0:
                    for i in range(size):
                        panel[at - head + (i // 2 * ROWS + r) * 2 + i % 2] = above[run // SUPER * size + i]
                for part in range(groups):
                    g = (run * groups + part) * width
                    to = at + (ROWS * part + r) * width
                    for i in range(width):
                        panel[to + i] = scales[g + i]
                        if packed:
                            panel[to + i] |= offsets[g + i] << 4
                        elif apart:
                            panel[to + scales_bytes + i] = offsets[g + i]
                if by_table:
                    for i in range(RUN):
                        mapped[i] = stored[codes[run * RUN + i] + 128]
                else:
                    for i in range(RUN):
                        mapped[i] = np.uint8(codes[run * RUN + i] + zero)
                below = 0
                for bits, plane in planes:
                    count, ones = 8 // bits, np.uint32(((1 << bits) - 1) * 0x01010101)
                    to = (at + plane) // 4 + r
                    for j in range(RUN // 4):
                        vector, bit = (j % 4, j // 4 * 4) if bits == 4 else (j // count, j % count * bits)
                        words[to + 16 * vector] |= (fours[j] >> np.uint32(below) & ones) << np.uint32(bit)
                    below += bits

    return jit(assemble)
