"""``dequantize`` of scaled arrays on the GPU: scale · (code - zero), each step rounded to float32.

A thread makes the neighbours that fill one store of 16 bytes. e5m2 is the upper byte of a half. e4m3 moved
one bit down from there is a half too, 2**8 times too small, subnormal numbers as well; only its NaN is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....arrays.scaled import ScaledArray
from ....codes import CODES, Code
from ...driver.device import cupy
from ...driver.launch import Kernel, address_and_strides, by_levels, family
from ...intrinsics import hopper, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.floats import DTYPES, KINDS, LEAST, storing
from ...intrinsics.lane import address
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from ...layouts.floats import converted
from ._codes import MATRIX_PARAMETERS, PIECE_THREADS, piece_placer, value_of_power

DECODED = tuple(code.name for code in CODES.values() if code.kind != "scale")


def to_value(code: Code) -> Any:
    """The device function ``value(code)``: a code in the low bits of a word, the rest 0, as float32."""
    if code.name == "e5m2":
        return _value_e5m2
    if code.name == "e4m3":
        return _value_e4m3
    up = 32 - code.bits if code.min < 0 else 0

    @inlined
    def whole(word: Any) -> Any:
        return float32(int32(uint32(word << up)) >> int32(up))

    return whole


@inlined
def _value_e5m2(word: Any) -> Any:
    return ptx.half_value(uint32(word << 8))


@inlined
def _value_e4m3(word: Any) -> Any:
    low = uint32(word & 0x7F)
    half = uint32(uint32(word & 0x80) << 8) | uint32(low << 7)
    value = ptx.mul(ptx.half_value(uint32(half)), float32(256))
    return float32(float("nan")) if low == 0x7F else value


def taking(code: Code, length: int) -> Any:
    """The device function ``take(at, v)``: ``length`` codes from an address on, as floats."""
    value, size = to_value(code), code.dtype.itemsize
    count, per, mask = length * size // 4, 4 // size, (1 << 8 * size) - 1

    @inlined
    def spread(word: Any, v: Any, i: Any) -> None:
        for e in range(per):
            v[i + e] = value(uint32(uint32(word >> uint32(8 * size * e)) & mask))

    @inlined
    def take(at: Any, v: Any) -> None:
        if length == 1:
            v[0] = value(ptx.load1(at) if size == 1 else ptx.load2(at))
        elif count == 4:
            four = ptx.load_words(at)
            for w in range(4):
                spread(four[w], v, w * per)
        else:
            for w in range(count):
                spread(ptx.load4(at + uint64(4 * w)), v, w * per)

    return take


def putting(kind: str, wide: bool) -> Any:
    """The device function ``put(at, v, i)`` that stores a piece."""
    if wide:
        return storing(kind)

    @inlined
    def put_one(at: Any, v: Any, i: Any) -> None:
        if kind == "float32":
            ptx.store_float(at, v[i])
        elif kind == "float16":
            ptx.store2(at, ptx.half_bits(v[i]))
        else:
            ptx.store2(at, ptx.bfloat_bits(v[i]))

    return put_one


def _cases() -> Any:
    for kind in KINDS:
        yield from ((name, kind, False, wide) for name in DECODED for wide in (False, True))
    yield from ((name, "float32", True, True) for name in ("e4m3", "int8"))


@family(_cases())
def decoder(name: str, kind: str, power: bool, wide: bool) -> Kernel:
    """The kernel for a code and a kind of values; ``power``: scales are e8m0."""
    code, size = CODES[name], KINDS[kind]
    length = 16 // size if wide else 1
    take, put, code_size = taking(code, length), putting(kind, wide), code.dtype.itemsize
    place_piece, start_dependent = piece_placer(length), hopper.take_turn

    def decode(
        codes: Any, pitch: Any,  # [rows, columns], bytes from row to row
        out: Any, columns: Any,  # of the kind [rows, columns]
        scales: Any, down: Any, along: Any,  # and the bytes from one to the next
        zeros: Any, zeros_down: Any, zeros_along: Any,  # float32; nowhere: there are none
        rows: Any, r: Any, c: Any, shift: Any, first: Any,
    ) -> None:  # fmt: skip
        start_dependent()
        row, column = place_piece(shift, first)
        if row < rows and column < columns:
            v = cuda.local.array(length, float32)
            take(codes + row * pitch + column * code_size, v)
            i, j = uint64(row // r), uint64(column // c)
            at = scales + i * down + j * along
            s = value_of_power(ptx.load1(at)) if power else ptx.load_float(at)
            if zeros != 0:
                zero = ptx.load_float(zeros + i * zeros_down + j * zeros_along)
                for e in range(length):
                    v[e] = ptx.sub(v[e], zero)
            for e in range(length):
                v[e] = ptx.mul(v[e], s)
            put(address(out, row, columns, column, size), v, 0)

    parameters = *MATRIX_PARAMETERS, *(uint32,) * 5
    title = f"dequantize {name} by {'e8m0' if power else 'float32'} to {kind}, {length} a thread"
    return Kernel(title, decode, *parameters, threads=PIECE_THREADS, least=LEAST[kind], early=True)


def dequantize(s: ScaledArray, dtype: np.dtype[Any]) -> Any:
    """The values of an array on the current device, as floats of a kind."""
    kind = dtype.name if dtype.name in KINDS else "float32"
    out = cupy().empty(s.shape, DTYPES[kind])
    if out.size:
        _decode(s, kind, out)
    return out.view(dtype) if kind == "bfloat16" else converted(out, dtype)


def _decode(s: ScaledArray, kind: str, out: Any) -> None:
    over, code = s.tiling, s.code
    codes = s.codes.reshape(over.rows, over.columns)
    size = code.dtype.itemsize
    if (codes.strides[1] != size and over.columns > 1) or codes.strides[0] < 0:
        codes = cupy().ascontiguousarray(codes)
    pitch = codes.strides[0] if over.rows > 1 else over.columns * size
    length = 16 // KINDS[kind]
    cut = over.c % length if over.shape[1] > 1 else 0
    wide = not (codes.data.ptr % (length * size) or pitch % (length * size) or over.columns % length or cut)
    zeros = None if s.zeros is None else s.zeros.astype(np.float32)
    beside = [v for part in (s.scales, zeros) for v in address_and_strides(part)]
    loads = over.columns // (length if wide else 1)
    shift = min((loads - 1).bit_length(), PIECE_THREADS.bit_length() - 1)
    across, levels = -(-loads // (1 << shift)), -(-over.rows // (PIECE_THREADS >> shift))
    kernel = decoder(code.name, kind, s.scale == "e8m0", wide)
    sizes = over.rows, over.r, over.c, shift
    by_levels(kernel, across, levels, codes, pitch, out, over.columns, *beside, *sizes)
