"""Pairs of floats of a kind that a kernel learns when it runs: 0 float32, 1 float16, 2 bfloat16."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics import bf16x2, codes8, halves, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import float32, uint32, uint64

KINDS = {"float32": 0, "float16": 1, "bfloat16": 2}
LARGEST = 65504.0  # of halves: larger numbers are cut


@cache
def pair_loader() -> Any:
    """The device function ``load(start, pair, kind)``: two floats of memory, cut to what halves hold."""
    load8, load4, float_of, half_value = bf16x2.load8, codes8.load4, ptx.float_of, ptx.half_value
    larger, smaller, most = ptx.larger, ptx.smaller, float32(LARGEST)

    @inlined
    def load(start: Any, pair: Any, kind: Any) -> Any:
        low, high = float32(0), float32(0)
        if kind == uint32(0):
            two = load8(start + pair * uint64(8))
            low, high = float_of(two[0]), float_of(two[1])
            low, high = smaller(larger(low, -most), most), smaller(larger(high, -most), most)
        else:
            word = uint32(load4(start + pair * uint64(4)))
            if kind == uint32(1):
                low, high = half_value(word & uint32(0xFFFF)), half_value(word >> uint32(16))
            else:
                low, high = float_of(word << uint32(16)), float_of(word & uint32(0xFFFF0000))
        return low, high

    return load


@cache
def pair_of_words() -> Any:
    """The device function ``floats(first, second, kind)``: two floats of the words that memory has of them.

    They are cut to what halves hold.
    """
    float_of, half_value = ptx.float_of, ptx.half_value
    larger, smaller, most = ptx.larger, ptx.smaller, float32(LARGEST)

    @inlined
    def floats(first: Any, second: Any, kind: Any) -> Any:
        low, high = float_of(first), float_of(second)
        if kind == uint32(0):
            low, high = smaller(larger(low, -most), most), smaller(larger(high, -most), most)
        elif kind == uint32(1):
            low, high = half_value(first & uint32(0xFFFF)), half_value(first >> uint32(16))
        else:
            low, high = float_of(first << uint32(16)), float_of(first & uint32(0xFFFF0000))
        return low, high

    return floats


@cache
def pair_storer() -> Any:
    """The device function ``store(start, pair, kind, low, high)``: two floats, each rounded once."""
    store_pair, store4 = ptx.store_pair, ptx.store4
    to_halves, to_bfloats = halves.narrowed, bf16x2.narrowed

    @inlined
    def store(start: Any, pair: Any, kind: Any, low: Any, high: Any) -> None:
        if kind == uint32(0):
            store_pair(start + pair * uint64(8), low, high)
        else:
            word = to_halves(low, high) if kind == uint32(1) else to_bfloats(low, high)
            store4(start + pair * uint64(4), word)

    return store
