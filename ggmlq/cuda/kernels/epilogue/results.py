"""Results of products with packed weights: a bias is added to a sum, then it is rounded once and stored.

Result      y and its bias, as kernels take them
residual    added to sums
gate        multiplies sums by the function of another product's
ThreadSums  a thread's sums of ``wgmma``: written, stored as partial sums, or sent
lists       rows of y that a list names: the uses of experts
kernels     that add partial sums, or a bias where no epilogue does
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import log, pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from ....base.slots import Slot, following
from ....dispatch.epilogue import Epilogue
from ...driver.launch import Kernel, Launch, family
from ...driver.recorded import RecordedLaunches, X, Y
from ...intrinsics import hopper, ptx
from ...intrinsics.assembly import (
    FLOAT,
    LONG,
    WORD,
    as_intrinsic,
    emit_assembly,
    emitted,
    f32,
    instruction,
    only_on_a_gpu,
    parts,
    u32,
    u64,
    without_meaning,
)
from ...intrinsics.assembly import KINDS as REGISTERS
from ...intrinsics.atoms import inlined
from ...intrinsics.floats import KINDS
from ...intrinsics.lane import address, four_into
from ...intrinsics.language import SIMULATED, cuda, float32, ir, types, uint32, uint64
from ...layouts.floats import NAMES

KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
LETTERS = {"f": 0, "e": 1, "H": 2}  # the same, by NumPy's letters
NOTHING = np.float32(-0.0)  # it changes no sum, not even one of -0


class Result(NamedTuple):
    """The result of a product, as kernels take it, in this order; kinds are places in KINDS."""

    at: Any  # address of y [m, n]
    kind: Any  # of its floats
    bias: Any  # address of a bias [n], or 0
    bias_kind: Any  # of its floats


def result_of(y: Any, bias: Any) -> tuple[Any, int, Any, int]:
    """The result that a launch is given; ``bias``: an array, or None."""
    about = (0, 0) if bias is None else (bias, LETTERS[bias.dtype.char])
    return y, LETTERS[y.dtype.char], *about


@inlined
def load_number(base: Any, index: Any, kind: Any) -> Any:
    """Number ``index`` of an array of floats of a kind, as float32."""
    if kind == 0:
        value = ptx.load_float(base + uint64(index) * 4)
    else:
        bits = ptx.load2(base + uint64(index) * 2)
        value = ptx.half_value(bits) if kind == 1 else ptx.float_of(bits << 16)
    return value


@cache
def bias_loader() -> Any:
    """The device function for the bias of a row of weights."""

    @inlined
    def load_bias(result: Any, row: Any, n: Any) -> Any:
        value = NOTHING
        if result.bias != 0 and row < n:
            value = load_number(result.bias, row, result.bias_kind)
        return value

    return load_bias


@instruction(
    "{.reg .pred wide, half; .reg .b16 h; setp.eq.u32 wide, $2, 0; setp.eq.u32 half, $2, 1; "
    "@wide st.global.f32 [$0], $1; @half cvt.rn.f16.f32 h, $1; @!half cvt.rn.bf16.f32 h, $1; "
    "@!wide st.global.b16 [$0], h;}",
    None, u64, f32, u32, effect=True,
)  # fmt: skip
def store_as(at: Any, value: Any, kind: Any) -> Any:
    """Store a value as a kind of floats."""
    only_on_a_gpu()


@inlined
def store_result(result: Any, column: Any, row: Any, n: Any, value: Any) -> None:
    """Store a result, y[column, row]; ``value`` has its bias."""
    size = uint32(4) if result.kind == 0 else uint32(2)
    store_as(address(result.at, column, n, row, size), value, result.kind)


# A thread's sums are a tuple, and what is done with all of them is one piece of assembly.


def assembly_on_sums(
    name: str, count: int, text: str, *takes: Any, returns: bool = False
) -> Callable[..., Any]:
    """The device function ``name(sums, …)`` with ``count`` sums and arguments of the types ``takes``.

    Operands of the assembly: the arguments that are numbers, then those that are tuples, then the sums.
    ``returns``: first come the results, which are the sums, and the sums again, which lie in their registers.
    """
    meaning, sums_kind = without_meaning(name, 1 + len(takes)), types.UniTuple(f32, count)
    if SIMULATED:
        return meaning

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        values, pairs = parts(builder, operands[0], count), list(zip(takes, operands[1:], strict=True))
        numbers = [(REGISTERS[kind][0], value) for kind, value in pairs if kind in REGISTERS]
        lists = [parts(builder, value, kind.count) for kind, value in pairs if kind not in REGISTERS]
        letters, words = zip(*numbers, *(("r", word) for each in lists for word in each), strict=True)
        if not returns:
            constraints, values = [*letters, *"f" * count], [*words, *values]
            emit_assembly(builder, ir.VoidType(), text, constraints, values, effect=True)
            return context.get_dummy_value()
        constraints = [*["=f"] * count, *map(str, range(count)), *letters]
        struct = ir.LiteralStructType([FLOAT] * count)
        results = emit_assembly(builder, struct, text, constraints, [*values, *words], effect=True)
        return context.make_tuple(builder, sums_kind, parts(builder, results, count))

    signature = (sums_kind if returns else types.void)(sums_kind, *takes)
    intrinsic: Callable[..., Any] = as_intrinsic(meaning, signature, emit)
    return intrinsic


# The residual of a product: an array of the result's shape, added to sums of ``wgmma`` or ``mma``.
#
# It is float32, float16 or bfloat16, whatever the result is, [m, n] with even n. A residual of 16 bits is
# read in words, of which a thread takes its half. The order of sums is that of ThreadSums.

# Sums whose residuals are loaded while as many before them are added; so many as registers are free then.

MAX_NARROW_COLUMNS, NARROW_SUMS_AT_ONCE, WIDE_SUMS_AT_ONCE = 160, 8, 12  # columns of a tile, sums


def residual_of(residual: Any) -> tuple[Any, int]:
    """The residual that a launch is given: an array, or 0 for None, and its kind."""
    return (0, 0) if residual is None else (residual, LETTERS[residual.dtype.char])


@cache
def residual_loader() -> Any:
    """The device function (residual, kind, column, row, n) for a number of a residual; -0.0 without one."""

    @inlined
    def load(residual: Any, kind: Any, column: Any, row: Any, n: Any) -> Any:
        value = NOTHING
        if residual != 0:
            if kind == 0:
                value = ptx.load_float(address(residual, column, n, row, 4))
            else:
                bits = ptx.load2(address(residual, column, n, row, 2))
                value = ptx.half_value(bits) if kind == 1 else ptx.float_of(bits << 16)
        return value

    return load


@cache
def residual_adder(columns: int, paced: bool) -> Callable[..., Any]:
    """The device function (sums, residual, kind, column, row, m, n, low, high) for sums with their residual.

    A bias, ``low`` of row g and ``high`` of row g + 8, is added first. ``paced``: the assembler may not load
    all at once, for which kernels with many numbers beside the sums have no registers.
    """
    takes = u64, *(u32,) * 5, f32, f32
    return assembly_on_sums("add", columns // 2, _adding(columns, paced), *takes, returns=True)


def _adding(columns: int, paced: bool) -> str:
    """The assembly of ``add``. Operands: the sums twice, then those of ``add`` in their order.

    ``which`` takes float32 from a word, or bfloat16 as the upper half of one, or float16 as the lower half.
    """
    count, at_once = columns // 2, NARROW_SUMS_AT_ONCE if columns <= MAX_NARROW_COLUMNS else WIDE_SUMS_AT_ONCE

    def word_of(i: int) -> str:
        return f"w{i % (2 * at_once)}"

    residual, kind, column, row, m, n, low, high = (f"${2 * count + i}" for i in range(8))
    lines = ["{.reg .pred wide, half, p, low, high; .reg .b32 c, r, which, size; .reg .b16 h, k;"]
    lines += [f".reg .b32 w<{2 * at_once}>; .reg .f32 v; .reg .b64 at, above, pitch, far;"]
    # ``size``: the shift from numbers to bytes. A number of 16 bits lies in the word of the even row.
    lines += [f"setp.eq.u32 wide, {kind}, 0; setp.eq.u32 half, {kind}, 1; selp.b32 size, 2, 1, wide;"]
    lines += [f"setp.lt.u32 low, {row}, {n}; add.u32 r, {row}, 8; setp.lt.u32 high, r, {n};"]
    lines += [f"and.b32 r, {row}, 1; selp.b32 which, 0x4410, 0x1044, half; selp.b32 c, 0x22, 0x2200, half;"]
    lines += ["mad.lo.u32 which, c, r, which; selp.b32 which, 0x3210, which, wide;"]
    lines += [f"selp.b32 r, 0, r, wide; sub.u32 r, {row}, r; cvt.u64.u32 far, r;"]
    lines += [f"mul.wide.u32 at, {column}, {n}; add.u64 at, at, far; shl.b64 at, at, size;"]
    lines += [f"add.u64 at, at, {residual}; selp.b32 c, 32, 16, wide; cvt.u64.u32 far, c;"]
    lines += [f"add.u64 above, at, far; shl.b32 c, {n}, size; cvt.u64.u32 pitch, c; mul.wide.u32 far, c, 7;"]
    groups = [range(first, min(first + at_once, count), 4) for first in range(0, count, at_once)]
    # While one group of sums is added, the residuals of the next are on their way.
    for group, after in zip([range(0), *groups], [*groups, range(0)], strict=True):
        lines += ["bar.warp.sync -1;"] if paced and group and after else []  # loads do not pass it
        for i in after:
            for e, step in enumerate(("pitch", "far")):
                word, below = word_of(i + e), word_of(i + e + 2)
                lines += [f"add.u32 c, {column}, {2 * i + e}; setp.lt.and.u32 p, c, {m}, low;"]
                lines += [f"mov.b32 {word}, 0; @p ld.global.b32 {word}, [at];"]
                lines += [f"setp.lt.and.u32 p, c, {m}, high;"]
                lines += [f"mov.b32 {below}, 0; @p ld.global.b32 {below}, [above];"]
                lines += [f"add.u64 at, at, {step}; add.u64 above, above, {step};"]
        for i in group:
            for e, bias in enumerate((low, low, high, high)):
                word = word_of(i + e)
                lines += [f"prmt.b32 {word}, {word}, 0, which; mov.b32 v, {word}; mov.b32 {{h, k}}, {word};"]
                lines += [f"@half cvt.f32.f16 v, h; add.rn.f32 ${i + e}, ${i + e}, {bias};"]
                lines += [f"add.rn.f32 ${i + e}, ${i + e}, v;"]
    return "\n".join([*lines, "}"])


# The function of a gate as a factor: ``act(g)`` times the sums of ``wgmma`` of another product.
#
# g is the float32 result of the gate's product, [m, n] like that of this one. Blocks that share a tile
# multiply each its part of the sums, for a factor is the same for all parts; where that part overflows, the
# result is infinite or NaN. Sums and places are those of a residual.
#
#     silu    g / (1 + exp(-g))
#     gelu    g / (1 + exp(-g (SLOPE + CUBE g²))), which is that by tanh

MAX_GATED_COLUMNS = 96  # of a tile; with wider ones a kernel behind (gates.py) is faster
GATE_FACTORS = ("silu", "gelu")
FIRST_GATE = 4  # the kind of the first of them; kinds of residuals come before
SLOPE, CUBE = sqrt(8 / pi), 0.044715 * sqrt(8 / pi)  # of gelu


def addend_of(end: Epilogue) -> tuple[Any, int]:
    """The residual or the gate's sums that a launch is given, or 0 for neither, and its kind."""
    return (
        residual_of(end.residual)
        if end.gate is None
        else (end.residual, FIRST_GATE + GATE_FACTORS.index(end.gate))
    )


@cache
def gate_multiplier(columns: int) -> Any:
    """The device function (sums, gate's sums, kind, column, row, m, n) for sums times the factor."""
    count = columns // 2
    return assembly_on_sums("multiply", count, _multiplying(count), u64, *(u32,) * 5, returns=True)


def _word(value: float) -> str:
    """A float32 as assembly has it."""
    return f"0f{int(np.float32(value).view(np.uint32)):08X}"


def _multiplying(count: int) -> str:
    """The assembly of ``multiply``. Operands: the sums twice, then the others in their order."""
    one, straight, slope, cube = (_word(value) for value in (1, *(-f / log(2) for f in (1, SLOPE, CUBE))))
    gate, which, column, row, m, n = (f"${2 * count + i}" for i in range(6))
    lines = [f"{{.reg .pred gelu, p, low, high; .reg .b32 c; .reg .f32 v, e, w<{NARROW_SUMS_AT_ONCE}>;"]
    lines += [".reg .b64 at, above, pitch, far, of_row;"]
    lines += [f"setp.ne.u32 gelu, {which}, {FIRST_GATE}; setp.lt.u32 low, {row}, {n};"]
    lines += [f"add.u32 c, {row}, 8; setp.lt.u32 high, c, {n};"]
    lines += [f"mul.wide.u32 at, {column}, {n}; cvt.u64.u32 of_row, {row}; add.u64 at, at, of_row;"]
    lines += [f"shl.b64 at, at, 2; add.u64 at, at, {gate}; add.u64 above, at, 32;"]
    lines += [f"mul.wide.u32 pitch, {n}, 4; mul.lo.u64 far, pitch, 7;"]
    for first in range(0, count, NARROW_SUMS_AT_ONCE):
        group = range(first, min(first + NARROW_SUMS_AT_ONCE, count))
        lines += ["bar.warp.sync -1;"] if first else []  # loads do not pass it, for want of registers
        for i in group[::4]:
            for e, step in enumerate(("pitch", "far")):
                lines += [f"add.u32 c, {column}, {2 * i + e};"]
                for side, place, more in (("low", "at", 0), ("high", "above", 2)):
                    word = f"w{i + e + more - first}"
                    lines += [f"setp.lt.and.u32 p, c, {m}, {side}; mov.b32 {word}, 0;"]
                    lines += [f"@p ld.global.f32 {word}, [{place}]; add.u64 {place}, {place}, {step};"]
        for i in group:
            v = f"w{i - first}"
            lines += [f"mul.f32 e, {v}, {v}; fma.rn.f32 e, e, {cube}, {slope};"]
            lines += [f"@!gelu mov.f32 e, {straight}; mul.f32 e, {v}, e; ex2.approx.f32 e, e;"]
            lines += [f"add.f32 e, e, {one}; rcp.approx.f32 e, e; mul.f32 v, {v}, e;"]
            lines += [f"mul.f32 ${i}, ${i}, v;"]
    return "\n".join([*lines, "}"])


# A thread's sums of ``wgmma`` with packed weights: written, stored as partial sums, or sent to blocks.
#
# Sums are a tuple. Four of them are those of columns 2 t, 2 t + 1 of row g and of row g + 8; the next four
# are 8 columns on (intrinsics/wgmma.py). Rows are those of the weights, columns those of the activations,
# so a result lies at [column, row]; the eight lanes with one t write 32 neighbouring bytes. Where results
# have 16 bits, lanes of two neighbouring rows swap, and each stores a pair of one column.


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
    places, kind = (u64, *(u32,) * 4, f32, f32), types.UniTuple(f32, count)

    @emitted(None, kind, u64, u32)
    def store(builder: Any, sums: Any, at: Any, apart: Any) -> None:
        values = parts(builder, sums, count)
        for first in range(0, count, 4):
            text = "st.global.v4.f32 [$0], {$1, $2, $3, $4};"
            arguments = [at, *values[first : first + 4]]
            emit_assembly(builder, ir.VoidType(), text, ["l", *"ffff"], arguments, effect=True)
            at = builder.add(at, builder.zext(apart, LONG))

    return ThreadSums(
        assembly_on_sums("write", count, _writing(columns), *places),
        assembly_on_sums("write16", count, _writing16(columns), *places, u32),
        store,
        assembly_on_sums("send", count, _sending(columns, counts_bytes(columns)), *(u32,) * 4),
    )


def _writing(columns: int) -> str:
    """The assembly of ``write``. Operands: y, column, row, m, n, the bias of both rows, then the sums."""
    lines = ["{.reg .pred low, high, p; .reg .b32 c, r; .reg .f32 v; .reg .b64 at, pitch, far;"]
    # Rows beyond n and columns beyond m are not stored: ``low`` and ``high`` say it of rows g and g + 8.
    lines += ["setp.lt.u32 low, $2, $4; add.u32 r, $2, 8; setp.lt.u32 high, r, $4;"]
    lines += ["cvt.u64.u32 far, $2; mul.wide.u32 at, $1, $4; add.u64 at, at, far; shl.b64 at, at, 2;"]
    # From column 2 t to 2 t + 1 it is one row of y, from there to 2 t of the next eight columns seven.
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
        # ``a`` and ``b`` are columns 2 t and 2 t + 1 of rows g and g + 8. A lane keeps the one that it
        # stores and swaps the other; all lanes of a warp take part, also those that store nothing.
        lines += ["selp.b32 other, a, b, odd; selp.b32 own, b, a, odd;"]
        lines += ["shfl.sync.bfly.b32 other, other, 4, 31, -1; setp.lt.u32 p, c, $3;"]
        # Now ``a`` has the even rows and ``b`` the odd ones: two neighbours become one word.
        lines += ["selp.b32 a, other, own, odd; selp.b32 b, own, other, odd;"]
        lines += ["prmt.b32 w, a, b, 0x5410; prmt.b32 own, a, b, 0x7632;"]
        lines += ["{.reg .pred q; and.pred q, p, low; @q st.global.b32 [at], w;"]
        lines += ["and.pred q, p, high; @q st.global.b32 [at + 16], own;}"]
        lines += ["add.u64 at, at, pitch; add.u32 c, c, 8;"]
    return "\n".join([*lines, "}"])


def counts_bytes(columns: int) -> bool:
    """True if a barrier counts the bytes that arrive; for many columns plain stores are faster."""
    return columns < 128


def _sending(columns: int, counts: bool) -> str:
    """The assembly of ``send``. Operands: at, apart, blocks, barrier, then the sums.

    Fours go to the last block, the one before it and so on, and again from the last one on, ``apart`` bytes
    further. ``counts``: each also counts at the barrier there.
    """
    lines = ["{.reg .pred again; .reg .b32 at, rank, there, barrier;"]
    lines += ["mov.b32 at, $0; sub.u32 rank, $2, 1;"]
    for i in range(4, columns // 2 + 4, 4):
        four = f"{{${i}, ${i + 1}, ${i + 2}, ${i + 3}}}"
        # The same place in the shared memory of block ``rank`` of the cluster.
        lines += ["mapa.shared::cluster.u32 there, at, rank;"]
        if counts:  # else all blocks of the cluster meet behind the stores
            lines += ["mapa.shared::cluster.u32 barrier, $3, rank;"]
            lines += [
                f"st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {four}, [barrier];"
            ]
        else:
            lines += [f"st.shared::cluster.v4.f32 [there], {four};"]
        lines += ["setp.eq.u32 again, rank, 0; sub.u32 rank, rank, 1;"]
        lines += ["@again sub.u32 rank, $2, 1; @again add.u32 at, at, $1;"]
    return "\n".join([*lines, "}"])


# Stores of sums of ``wgmma`` to rows of results that a list names: the uses of experts.

LANES, NOBODY = 32, 0xFFFFFFFF


@cache
def holder(columns: int) -> Any:
    """The device function (list, lane, count) by which a warp loads the list of columns into registers.

    A lane holds the entries of columns ``lane``, ``lane`` + 32 and so on; NOBODY from ``count`` on. Entries
    that are loaded before a tile is multiplied have arrived when the tile is written.
    """
    kind = types.UniTuple(u32, -(-columns // LANES))

    @emitted(kind, u64, u32, u32)
    def hold(builder: Any, list: Any, lane: Any, count: Any) -> Any:
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
        return registers

    return hold


@cache
def scatterer(columns: int) -> Callable[..., Any]:
    """The device function (sums, y, rows, column, row, n) that stores a tile whose columns are uses.

    The tile has 64 rows of weights × ``columns`` columns.
    ``column``: the thread's first one, 2 t; ``rows``, from ``holder``: the row of y, float32 [..., n], of
    each column.
    """
    list_words = -(-columns // LANES)

    takes = u64, types.UniTuple(u32, list_words), *(u32,) * 3
    return assembly_on_sums("scatter", columns // 2, _scattering(columns, list_words), *takes)


def _scattering(columns: int, list_words: int) -> str:
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
            # The lane that has the column's entry gives it to all: they ask before anyone decides to store.
            lines += [f"add.u32 c, $1, {lane + e}; shfl.sync.idx.b32 u, ${4 + register}, c, 31, -1;"]
            lines += [f"mul.wide.u32 at, u, r; add.u64 at, at, far; setp.ne.and.u32 p, u, {NOBODY}, low;"]
            lines += [f"@p st.global.f32 [at], ${value}; setp.ne.and.u32 p, u, {NOBODY}, high;"]
            lines += [f"@p st.global.f32 [at + 32], ${value + 2};"]
    return "\n".join([*lines, "}"])


# The kernel that adds the partial sums of columns that were split among blocks, and writes results.

ADDERS, FOUR = 256, 4  # threads of a block; results of a thread


@family()
def split_adder() -> Kernel:
    """The kernel that adds the partial sums of each result, the first part first, then bias and residual."""
    load_floats, take_turn = ptx.load_floats, hopper.take_turn
    load_bias, load_residual, store = bias_loader(), residual_loader(), store_result

    def add(
        partials: Any,  # float32 [count, m, fours, 4]
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [m, n]: Result
        count: Any, m: Any, n: Any, fours: Any,
        residual: Any, residual_kind: Any,  # of y's shape, or 0
    ) -> None:  # fmt: skip
        take_turn()
        i = uint64(cuda.blockIdx.x) * ADDERS + uint64(cuda.threadIdx.x)
        length = uint64(m) * fours
        if i < length:
            # One part after the other: floats in another order would be another sum.
            total = cuda.local.array(FOUR, float32)
            four_into(total, 0, load_floats(partials + i * (4 * FOUR)))
            for part in range(1, count):
                v = load_floats(address(partials, part, length, i, 4 * FOUR))
                for j in range(FOUR):
                    total[j] += v[j]
            column, first = uint32(i // fours), uint32(i % fours) * FOUR
            result = Result(y, y_kind, bias, bias_kind)
            for j in range(FOUR):
                row = first + uint32(j)
                if row < n:
                    value = total[j] + load_bias(result, row, n)
                    more = load_residual(residual, residual_kind, column, row, n)
                    store(result, column, row, n, value + more)

    parameters = (uint64, uint64, uint32, uint64, *(uint32,) * 5, uint64, uint32)
    return Kernel("add partial sums to results", add, *parameters, threads=ADDERS, early=True)


def add_partials(
    partials: Any, result: tuple[Any, ...], m: int, n: int, residual: tuple[Any, int] = (0, 0)
) -> None:  # fmt: skip
    """Launch it for partial sums [splits, m, n], n rounded up to a multiple of four; ``residual``: as of
    ``residual_of``.
    """
    count, _, wide = partials.shape
    fours = wide // FOUR
    blocks = following(m, lambda m: -(-m * fours // ADDERS))
    split_adder()((blocks,), (ADDERS,), partials, *result, count, m, n, fours, *residual)


# The kernel that adds a bias to rows of results by one prepared launch, with the bits of CuPy's kernels.

BIAS_THREADS, MAX_GRID_ROWS = 256, 65535  # of a block; rows of blocks in a grid


@instruction("add.rn.ftz.f32 $0, $1, $2;", f32, f32, f32)
def add_flushed(a: Any, b: Any) -> Any:
    """A sum as CuPy's kernels give it: subnormal numbers, before and after, are zeros of their sign."""
    least = np.float32(2.0**-126)
    a, b = (np.copysign(np.float32(0), v) if abs(v) < least else np.float32(v) for v in (a, b))
    return np.copysign(np.float32(0), a + b) if abs(a + b) < least else a + b


@family((kind,) for kind in KINDS)
def bias_adder(kind: str) -> Kernel:
    """The kernel that adds a bias: a column a thread, and some of its rows."""
    number, load_float, store_float = KIND_NUMBERS[kind], ptx.load_float, ptx.store_float
    take_turn = hopper.take_turn

    def add(
        bias: Any,  # of the kind [n]
        y: Any,  # float32 [m, n]
        m: Any, n: Any,
    ) -> None:  # fmt: skip
        take_turn()
        column = uint32(uint32(cuda.blockIdx.x) * BIAS_THREADS + uint32(cuda.threadIdx.x))
        if column < n:
            b, row = load_number(bias, column, number), uint32(cuda.blockIdx.y)
            while row < m:
                at = address(y, row, n, column, 4)
                store_float(at, add_flushed(load_float(at), b))
                row = uint32(row + uint32(cuda.gridDim.y))

    return Kernel(
        f"add a bias of {kind}", add, uint64, uint64, uint32, uint32, threads=BIAS_THREADS, early=True
    )  # fmt: skip


def plan(m: int, n: int, letter: str) -> RecordedLaunches:
    """The prepared launch that adds a bias to m rows of n results; ``letter``: NumPy's for the bias's kind.

    A call fills in the addresses of the bias and of the results, and the stream.
    """
    grid, arguments = (-(-n // BIAS_THREADS), min(m, MAX_GRID_ROWS)), (Slot(X), Slot(Y), m, n)
    return RecordedLaunches.of([Launch(bias_adder(NAMES[letter]), grid, (BIAS_THREADS,), arguments)])
