"""Floats x to codes, in the arithmetic of ``ggmlq/cpu/gru/encode.py``, with counts of what did not fit."""

from __future__ import annotations

from itertools import product as combined
from typing import Any

import numpy as np

from ...fixed.qformat import QFormat
from ...gru.cell import Cell
from ...gru.diagnostics import FAR, TALLIED, far_ends
from ...gru.run import Call
from ..machine import device
from ..machine.launch import Kernel, array, family
from ..words import language, ptx
from ..words.assembly import f64, instruction, u64
from ..words.atoms import inlined
from ..words.language import cuda, float32, float64, int32, int64, uint32, uint64

THREADS, MOST_BLOCKS = 256, 1 << 16
MOST = 2**22  # codes; float32 has every one and their halves
AT, AT_FAR = TALLIED.index("x"), TALLIED.index(FAR)
NOT_FINITE = len(TALLIED)  # behind what is tallied: values of x that are no numbers
COUNTED = NOT_FINITE + 1


@instruction("mov.b64 $0, $1;", f64, u64)
def _double_of(bits: Any) -> Any:
    return np.uint64(bits).view(np.float64)


@inlined
def _float_of(bits: Any) -> Any:
    return ptx.float_of(uint32(bits))


@family(combined(("float32", "float64"), (True, False), (True, False)))
def kernel(kind: str, narrow: bool, even: bool) -> Kernel:
    """Codes and a shift, in bytes or in words of 32 bits; rows filled up with zeros."""
    real, value_of = (float32, _float_of) if kind == "float32" else (float64, _double_of)
    most, half, none = (np.dtype(kind).type(number) for number in (MOST, 0.5, 0))

    def encode(
        x: Any, made: Any, total: Any, rows: Any, scale: Any, zero: Any, shift: Any,
        low: Any, high: Any, far_low: Any, far_high: Any,
    ) -> None:  # fmt: skip
        columns, pitch = uint64(x.shape[1]), uint64(made.shape[1])
        i = uint64(cuda.blockIdx.x) * uint64(THREADS) + uint64(cuda.threadIdx.x)
        every = uint64(cuda.gridDim.x) * uint64(THREADS)
        out, far, odd_ones = int32(0), int32(0), int32(0)
        while i < rows * pitch:
            row, column = i // pitch, i % pitch
            stored = int32(0)
            if column < columns:
                value = x[row, column]
                if value - value != none:  # infinities and NaN
                    odd_ones = int32(odd_ones + int32(1))
                    value = none
                v = value * value_of(scale)
                v = -most if v < -most else most if v > most else v
                whole = int32(v)
                rest = v - real(whole)
                if even:
                    odd = (whole & int32(1)) != int32(0)
                    above, below = (
                        rest > half or (rest == half and odd),
                        rest < -half or (rest == -half and odd),
                    )
                else:
                    above, below = rest >= half, rest <= -half
                code = int32(int32(whole + int32(above)) - int32(below))
                code = int32(code + zero)
                inside = low if code < low else high if code > high else code
                out = int32(out + int32(code != inside))
                far = int32(far + int32(code < far_low or code > far_high))
                stored = int32(inside + shift)
            made[row, column] = stored
            i += every
        if out != int32(0):
            cuda.atomic.add(total, AT, int64(out))
        if far != int32(0):
            cuda.atomic.add(total, AT_FAR, int64(far))
        if odd_ones != int32(0):
            cuda.atomic.add(total, NOT_FINITE, int64(odd_ones))

    name = f"gru x {kind} to {'bytes' if narrow else 'words'}{', ties to even' if even else ''}"
    of = language.int8 if narrow else int32
    return Kernel(
        name, encode, array(real, 2), array(of, 2), array(int64, 1), uint64, uint64, *(int32,) * 6,
        threads=THREADS,
    )  # fmt: skip


def encoded(call: Call, shift: int, narrow: bool, pitch: int, counts: Any) -> Any:
    """The codes of x and a shift, [T · N, pitch]; adds to the counts."""
    fmt, (t, n, c) = call.plan.x, call.x.shape
    rows = t * n
    made = device.cupy().empty((rows, pitch), np.int8 if narrow else np.int32)
    kind, grid = call.x.dtype.name, min(-(-rows * pitch // THREADS), MOST_BLOCKS)
    if fmt == call.cell.formats["x"]:
        ends = call.cell.prepared(("cuda x", kind, shift), lambda cell: _numbers(cell, fmt, kind, shift))
    else:
        ends = _numbers(call.cell, fmt, kind, shift)
    kernel(kind, narrow, call.even)((grid,), (THREADS,), call.x.reshape(rows, c), made, counts, rows, *ends)
    return made


def _numbers(cell: Cell, fmt: QFormat, kind: str, shift: int) -> list[int]:
    """The scale and the ends of a format, as a kernel takes them."""
    low, high = (int(np.clip(end, -MOST, MOST)) for end in far_ends(cell, fmt))
    with np.errstate(over="ignore"):
        scale = np.dtype(kind).type(np.ldexp(1.0, fmt.exponent))
    ints = [each & 0xFFFFFFFF for each in (fmt.zero, shift, fmt.low, fmt.high, low, high)]
    return [int(scale.view(f"u{scale.itemsize}")), *ints]
