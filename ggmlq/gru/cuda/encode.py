"""The kernel before the first step of a GRU: floats x to codes, first states, counters to zero.

The arithmetic is that of ``ggmlq/gru/cpu/encode.py``, with counts of values that did not fit. A warp has a
row at a time; arrays may have any strides, so neither a second direction nor ``batch_first`` needs a copy
of x. First states are floats of the caller, or zero; they are quantized in float64, whatever x is.

``last_states_copier`` is the end of a call: the last states go to an array of their own, counts to the host.
"""

from __future__ import annotations

from itertools import product as combined
from typing import Any, NamedTuple

import numpy as np

from ...cuda.driver.launch import Kernel, array, family
from ...cuda.intrinsics import ptx
from ...cuda.intrinsics.assembly import f64, instruction, u64
from ...cuda.intrinsics.atoms import inlined
from ...cuda.intrinsics.language import cuda, float32, float64, int32, int64, uint32, uint64
from ...fixed.qformat import QFormat
from ..cell import Cell
from ..diagnostics import FAR, TALLIED, far_ends
from ..run import Call

THREADS, MOST_BLOCKS = 256, 1 << 11
MOST = 2**22  # codes; float32 represents each of them and its halves
AT, AT_FAR, AT_H = TALLIED.index("x"), TALLIED.index(FAR), TALLIED.index("h0")
NOT_FINITE = len(TALLIED)  # place behind the tallies: values of x that are not finite
NO_STATES = NOT_FINITE + 1  # the same for h0
COUNTED = NO_STATES + 1
LONG = (1 << 64) - 1


@instruction("mov.b64 $0, $1;", f64, u64)
def _double_of(bits: Any) -> Any:
    return np.uint64(bits).view(np.float64)


@instruction("ld.global.f64 $0, [$1];", f64, u64, effect=True)
def _load_double(address: Any) -> Any:
    raise NotImplementedError


@inlined
def _float_of(bits: Any) -> Any:
    return ptx.float_of(uint32(bits))


class CodeFormat(NamedTuple):
    """The quantization of x: bits of the scale, the zero, what stored codes have more, and ends of codes."""

    scale: Any
    zero: Any
    shift: Any
    low: Any
    high: Any
    far_low: Any  # codes beyond are counted as far away
    far_high: Any


class StateFormat(NamedTuple):
    """The quantization of h0; ``first``: the stored form of a state of zero."""

    first: Any
    scale: Any  # bits of a float64, as are the last two
    zero: Any
    shift: Any
    low: Any
    high: Any
    seen_low: Any  # ends that calibration saw: values beyond are counted
    seen_high: Any


@inlined
def _add_count(total: Any, place: Any, count: Any) -> None:
    if count != int32(0):
        cuda.atomic.add(total, place, int64(count))


def rounder(kind: str, even: bool) -> Any:
    """The device function from a finite scaled value to a whole number."""
    real = float32 if kind == "float32" else float64
    most, half = (np.dtype(kind).type(number) for number in (MOST, 0.5))

    @inlined
    def rounded(v: Any) -> Any:
        v = -most if v < -most else most if v > most else v
        whole = int32(v)
        rest = v - real(whole)
        if even:
            odd = (whole & int32(1)) != int32(0)
            above, below = rest > half or (rest == half and odd), rest < -half or (rest == -half and odd)
        else:
            above, below = rest >= half, rest <= -half
        return int32(int32(whole + int32(above)) - int32(below))

    return rounded


def x_encoder(kind: str, narrow: bool, even: bool) -> Any:
    """The device function for a lane's columns of a row of x; it counts values that clip, clip by far, or are
    not finite.
    """
    load, value_of = (
        (ptx.load_float, _float_of) if kind == "float32" else (_load_double, _double_of)
    )  # fmt: skip
    rounded, none = rounder(kind, even), np.dtype(kind).type(0)
    store, size = (ptx.store1, 1) if narrow else (ptx.store4, 4)

    @inlined
    def encode(at: Any, between: Any, columns: Any, to: Any, pitch: Any, fmt: Any, counts: Any) -> None:
        low, high = fmt.low, fmt.high
        column = uint64(cuda.threadIdx.x) & 31
        at, to = at + column * between, to + column * size
        while column < pitch:
            stored = int32(0)
            if column < columns:
                value = load(at)
                if value - value != none:  # infinities and NaN
                    counts[2] = int32(counts[2] + int32(1))
                    value = none
                code = int32(rounded(value * value_of(fmt.scale)) + fmt.zero)
                inside = low if code < low else high if code > high else code
                counts[0] = int32(counts[0] + int32(code != inside))
                counts[1] = int32(counts[1] + int32(code < fmt.far_low or code > fmt.far_high))
                stored = int32(inside + fmt.shift)
            store(to, uint32(stored))
            column, at, to = column + 32, at + 32 * between, to + 32 * size

    return encode


def state_encoder(narrow: bool, even: bool) -> Any:
    """The device function for a row of h0, or of zeros if its address is 0; it counts in places 3 and 4."""
    load_float, rounded, none = ptx.load_float, rounder("float64", even), float64(0)
    store, size = (ptx.store1, 1) if narrow else (ptx.store4, 4)

    @inlined
    def encode(at: Any, between: Any, wide: Any, units: Any, to: Any, padded: Any, fmt: Any,
               counts: Any) -> None:  # fmt: skip
        low, high = fmt.low, fmt.high
        unit = uint64(cuda.threadIdx.x) & 31
        while unit < padded:
            stored = fmt.first
            if at != 0 and unit < units:
                place = at + unit * between
                value = float64(load_float(place)) if wide == 0 else _load_double(place)
                if value - value != none:
                    counts[4] = int32(counts[4] + int32(1))
                    value = none
                code = int32(rounded(value * _double_of(fmt.scale)) + fmt.zero)
                inside = low if code < low else high if code > high else code
                beyond = value < _double_of(fmt.seen_low) or value > _double_of(fmt.seen_high)
                counts[3] = int32(counts[3] + int32(code != inside and beyond))
                stored = int32(inside + fmt.shift)
            store(to + unit * size, uint32(stored))
            unit = unit + 32

    return encode


@family(combined(("float32", "float64"), (True, False), (True, False)))
def kernel(kind: str, narrow: bool, even: bool) -> Kernel:
    """The kernel that writes codes of x and first states, in bytes or words, rows filled up with zeros."""
    encode_x, encode_h = x_encoder(kind, narrow, even), state_encoder(narrow, even)
    size, store4 = 1 if narrow else 4, ptx.store4

    def begin(
        x: Any, step: Any, across: Any, between: Any, columns: Any, codes: Any, pitch: Any, rows: Any, n: Any,
        scale: Any, zero: Any, shift: Any, low: Any, high: Any, far_low: Any, far_high: Any,
        h: Any, h_across: Any, h_between: Any, wide: Any, states: Any, padded: Any, units: Any,
        first: Any, h_scale: Any, h_zero: Any, h_shift: Any, h_low: Any, h_high: Any, seen_low: Any,
        seen_high: Any, counters: Any, count: Any, total: Any,
    ) -> None:  # fmt: skip
        counts = cuda.local.array(5, int32)
        for i in range(5):
            counts[i] = int32(0)
        fmt = CodeFormat(scale, zero, shift, low, high, far_low, far_high)
        h_format = StateFormat(first, h_scale, h_zero, h_shift, h_low, h_high, seen_low, seen_high)
        thread = uint64(cuda.blockIdx.x) * THREADS + uint64(cuda.threadIdx.x)
        stride = uint64(cuda.gridDim.x) * (THREADS // 32)
        row = thread >> 5
        if row < rows:
            t, i = row // n, row % n
            more_t, more_i = stride // n, stride % n
            while row < rows:
                at = x + t * step + i * across
                encode_x(at, between, columns, codes + row * pitch * size, pitch, fmt, counts)
                row, t, i = row + stride, t + more_t, i + more_i
                if i >= n:
                    t, i = t + 1, i - n
        row = thread >> 5
        while row < n:
            at = h + (row * h_across if h != 0 else uint64(0))
            encode_h(at, h_between, wide, units, states + row * padded * size, padded, h_format, counts)
            row = row + stride
        while thread < count:
            store4(counters + thread * 4, uint32(0))
            thread = thread + stride * 32
        _add_count(total, AT, counts[0])
        _add_count(total, AT_FAR, counts[1])
        _add_count(total, NOT_FINITE, counts[2])
        _add_count(total, AT_H, counts[3])
        _add_count(total, NO_STATES, counts[4])

    name = f"gru begins with {kind}, to {'bytes' if narrow else 'words'}{', ties to even' if even else ''}"
    parts = *(uint64,) * 10, *(int32,) * 6, *(uint64,) * 3, uint32, *(uint64,) * 3
    more = int32, uint64, *(int32,) * 4, *(uint64,) * 4, array(int64, 1)
    return Kernel(name, begin, *parts, *more, threads=THREADS)


@family()
def last_states_copier() -> Kernel:
    """The kernel that copies the last states, moves counts to memory of the host, and sets them to 0."""
    load4, load1, store4, store1 = ptx.load4_nc, ptx.load_int8, ptx.store4, ptx.store1

    def end(source: Any, to: Any, size: Any, host_counts: Any, total: Any) -> None:
        i = uint64(cuda.blockIdx.x) * THREADS + uint64(cuda.threadIdx.x)
        stride = uint64(cuda.gridDim.x) * THREADS
        if host_counts != 0 and i < COUNTED:
            count = uint64(total[i])
            total[i] = int64(0)
            store4(host_counts + i * 8, uint32(count))
            store4(host_counts + i * 8 + 4, uint32(count >> 32))
        if ((source | to | size) & 3) == 0:
            while 4 * i < size:
                store4(to + 4 * i, uint32(load4(source + 4 * i)))
                i = i + stride
        else:
            while i < size:
                store1(to + i, uint32(load1(source + i)))
                i = i + stride

    return Kernel("gru ends", end, *(uint64,) * 4, array(int64, 1), threads=THREADS)


def numbers(call: Call, shift: int) -> tuple[int, ...]:
    """The scale and the ends of the format of x, as the kernel takes them."""
    cell, fmt, kind = call.cell, call.plan.x, call.x.dtype.name
    if fmt is not cell.formats["x"]:
        return _numbers(cell, fmt, kind, shift)
    result: tuple[int, ...] = cell.prepared(
        ("cuda x", kind, shift), lambda cell: _numbers(cell, fmt, kind, shift)
    )
    return result


def _numbers(cell: Cell, fmt: QFormat, kind: str, shift: int) -> tuple[int, ...]:
    low, high = (int(np.clip(end, -MOST, MOST)) for end in far_ends(cell, fmt))
    ints = fmt.zero, shift, fmt.low, fmt.high, low, high
    return _bits(2.0**fmt.exponent, kind), *(number & LONG for number in ints)


def state_numbers(call: Call, first: int, shift: int) -> tuple[int, ...]:
    """Numbers for h: the stored zero, scale, ends, and the ends that calibration saw."""
    h, calibrated = call.plan.h, call.cell.ranges["h"]
    kind = "float64" if call.h is None else call.h.dtype.name
    ends = [_bits(float(np.dtype(kind).type(end)), "float64") for end in calibrated]
    ints = (number & LONG for number in (h.zero, shift, h.low, h.high))
    return first & LONG, _bits(2.0**h.exponent, "float64"), *ints, *ends


def _bits(value: float, kind: str) -> int:
    with np.errstate(over="ignore"):
        number = np.dtype(kind).type(value)
    return int(number.view(f"u{number.itemsize}"))


def begin(launch: Any, call: Call, weights: Any, x: Any, codes: Any, h: Any, states: Any, counters: Any,
          count: int, counts: Any) -> None:  # fmt: skip
    """Launch the kernel: codes of x and a shift [T · N, columns], the first states, ``count`` counters."""
    (t, n, c), (step, across, between) = call.x.shape, (number & LONG for number in call.x.strides)
    h_across, h_between = (0, 0) if call.h is None else (number & LONG for number in call.h.strides)
    wide = int(call.h is not None and call.h.itemsize == 8)
    grid = min(max(-(-t * n // (THREADS // 32)), -(-n // (THREADS // 32))), MOST_BLOCKS)
    launch(
        kernel(call.x.dtype.name, weights.narrow, call.even), (grid,), x, step, across, between, c, codes,
        weights.columns, t * n, n, *numbers(call, weights.x_shift), h, h_across, h_between, wide, states,
        weights.padded, call.cell.units, *state_numbers(call, weights.first, weights.h_shift), counters,
        count, counts,
    )  # fmt: skip


def end(launch: Any, source: Any, to: Any, size: int, host_counts: int, counts: Any) -> None:
    """Launch the copy of the last states, ``size`` bytes, and of the counts."""
    grid = min(-(-max(size, 1) // (4 * THREADS)), MOST_BLOCKS)
    launch(last_states_copier(), (grid,), source, to, size, host_counts, counts)
