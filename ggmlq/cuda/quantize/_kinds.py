"""Floats of each kind in kernels that treat rows: their bits to float32 and back."""

from __future__ import annotations

from typing import Any

from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import int64, types, uint32
from ..machine.launch import array

KIND_OF = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}  # of numbers without blocks
SCALARS = tuple(KIND_OF)
STEP = 4  # numbers of a row that a thread has
IDS = array(int64, 1)


def loading(kind: str) -> Any:
    """The device function that gives number ``i`` of an array of floats of a kind as float32."""
    half, float_of = ptx.half_value, ptx.float_of

    @inlined
    def plain(x: Any, i: Any) -> Any:
        return float_of(x[i])

    @inlined
    def halves(x: Any, i: Any) -> Any:
        return half(uint32(x[i]))

    @inlined
    def bfloats(x: Any, i: Any) -> Any:
        return float_of(uint32(uint32(x[i]) << uint32(16)))

    return {"float32": plain, "float16": halves, "bfloat16": bfloats}[kind]


def bits_in(kind: str) -> Any:
    """The device function that gives the bits of a kind for a float32, rounded to nearest even."""
    bits_of, half_bits, shift = ptx.bits_of, ptx.half_bits, uint32(16)

    @inlined
    def plain(value: Any) -> Any:
        return bits_of(value)

    @inlined
    def halves(value: Any) -> Any:
        return half_bits(value)

    @inlined
    def bfloats(value: Any) -> Any:
        bits = bits_of(value)  # in integers: as the host rounds, on cards without the instruction too
        rounded = uint32(bits + uint32(0x7FFF) + uint32(uint32(bits >> shift) & uint32(1))) >> shift
        is_nan = uint32(bits & uint32(0x7FFFFFFF)) > uint32(0x7F800000)
        return uint32(uint32(bits >> shift) | uint32(64)) if is_nan else uint32(rounded)

    return {"float32": plain, "float16": halves, "bfloat16": bfloats}[kind]


def words_of(kind: str) -> Any:
    """The type of an array parameter with the bits of floats of a kind."""
    return array(uint32 if kind == "float32" else types.uint16, 1)
