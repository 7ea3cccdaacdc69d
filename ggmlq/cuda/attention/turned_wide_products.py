"""Blocks decoded to the wide operand of ``wgmma``, in registers: keys, and columns of values.

Lane 4 g + t of warp w has

    keys     sixteen codes of each of positions 16 w + 2 g, 16 w + 2 g + 1 in two blocks
    values   four columns of positions 4 t … 4 t + 3 of each sixteen, of block w

Words lie as turned_blocks.py says: two blocks begin at a word together. A code as a half, less its zero,
times the scale is a value rounded once. Products sum over columns, or positions, in any order, as long as the
narrow operand has the same: columns of two neighbouring blocks come as ``column_place`` says.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import bf16x2, halves
from ..intrinsics.atoms import inlined
from ..intrinsics.codes8 import product_of_halves
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, uint32
from .block_products import BLOCK
from .codes import ZEROS, lower_two, upper_two
from .plan import row_bytes
from .turned_blocks import first_lane_picks
from .unrolled import unrolled

PAIR = 2 * BLOCK  # columns of two blocks, which begin at a word together
NIBBLES = 0x0F0F0F0F


@cache
def column_place(name: str) -> Any:
    """The device function for the place of columns 2 p, 2 p + 1 of two blocks among those that are summed."""
    wide = name == "q8_0"

    @inlined
    def place(p: Any) -> Any:
        odd, q = p >> uint32(4), p & uint32(15)
        if odd != uint32(0):  # the second block: whole words
            step, q = q >> uint32(3), q & uint32(7)
        elif wide:  # codes 0, 1, 30, 31, then words that begin with codes 2, 6, …
            step = uint32(1) if q >= uint32(7) and q < uint32(15) else uint32(0)
            q = q - uint32(7) if step != uint32(0) else q + uint32(1)
            if q == uint32(16):
                q = uint32(1)
            elif q == uint32(1) and step == uint32(0):
                q = uint32(0)
        else:  # fours 0, 1, 14, 15, then likewise; of the upper ones sixteen columns on
            step, q = q >> uint32(3), (q & uint32(7)) + uint32(1)
            if q == uint32(8):
                q = uint32(1)
            elif q == uint32(1):
                q = uint32(0)
        return (
            odd * uint32(32) + step * uint32(16) + (q & uint32(1)) * uint32(8) + (q >> uint32(1)) * uint32(2)
        )

    return place


@cache
def code_halves(name: str) -> Any:
    """The device function for four pairs of codes without their zero, of two words; of q4_0 both are one."""
    zero, sub, wide = np.uint32(halves.pair(1024 + ZEROS[name])), halves.sub, name == "q8_0"

    @inlined
    def codes(first: Any, second: Any) -> Any:
        if wide:
            first, second = first ^ uint32(0x80808080), second ^ uint32(0x80808080)
        else:
            first, second = first & uint32(NIBBLES), second >> uint32(4) & uint32(NIBBLES)
        return (
            sub(lower_two(first), zero), sub(upper_two(first), zero), sub(lower_two(second), zero),
            sub(upper_two(second), zero),
        )  # fmt: skip

    return codes


@cache
def key_decoder(name: str, width: int) -> Any:
    """The device function ``decode(keys, places, words)``: a lane's codes of two blocks, of two positions.

    ``keys``: the address of the first position's blocks; ``places``: of a lane's word, and the bytes that it
    picks.
    """
    length, size, wide = row_bytes(name, width), row_bytes(name, PAIR), name == "q8_0"
    take4, permute, codes, mul, twice = (
        bf16x2.take4, bf16x2.permute, code_halves(name), product_of_halves, halves.twice
    )  # fmt: skip
    middle = size // 8 * 4

    @inlined
    def put(n: Any, i: Any, first: Any, second: Any, d: Any, words: Any) -> None:
        a, b, c, e = codes(first, second)
        words[8 * n + i], words[8 * n + 2 + i] = mul(a, d), mul(b, d)
        words[8 * n + 4 + i], words[8 * n + 6 + i] = mul(c, d), mul(e, d)

    @inlined
    def decode(keys: Any, places: Any, words: Any) -> None:
        for i in range(2):
            row = keys + uint32(i * length)
            at, head, last = row + places[0], take4(row), take4(row + uint32(middle))
            first = permute(take4(at), last, places[1])
            second = first
            if wide:
                second = take4(at + uint32(16))
            put(0, i, first, second, twice(head & uint32(0xFFFF)), words)
            first = take4(at + uint32(middle + 4))
            second = first
            if wide:
                second = take4(at + uint32(middle + 20))
            put(1, i, first, second, twice(last >> uint32(16)), words)

    return decode


@cache
def value_decoder(name: str, width: int) -> Any:
    """The device function ``decode(values, words)``: columns of a warp's block at all positions of a step.

    Words 8 k + 4 n + 2 j + i: positions 4 t + j, 4 t + j + 2 of the sixteen k, column i of the lane's first
    or second two, n.
    """
    length, size, wide = row_bytes(name, width), row_bytes(name, PAIR), name == "q8_0"
    take4, take2, permute, mul = bf16x2.take4, halves.take2, bf16x2.permute, product_of_halves
    zero, sub, middle, half = np.uint32(halves.pair(1024 + ZEROS[name])), halves.sub, size // 8 * 4, size // 2

    @inlined
    def bytes_of(both: Any, k: Any, n: Any, j: Any, d: Any, words: Any) -> None:
        """Two columns of two positions: byte 2 i + e of ``both`` is column i of position e."""
        words[8 * k + 4 * n + 2 * j] = mul(sub(lower_two(both), zero), d)
        words[8 * k + 4 * n + 2 * j + 1] = mul(sub(upper_two(both), zero), d)

    def sixteen(k: Any, at: Any, places: Any, words: Any) -> None:
        # places: of the word, of the word that a first lane takes bytes of, which ones, of the scale
        w, s = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        for p in range(4):
            row = at + uint32((16 * k + p) * length)
            s[p] = take2(row + places[3])
            if wide:
                w[p] = permute(take4(row + places[0]), take4(row + places[1]), places[2])
            else:
                w[p] = take2(row + places[0])
        for j in range(2):
            d = permute(s[j], s[j + 2], uint32(0x5410))
            if wide:
                for n in range(2):
                    both = permute(w[j], w[j + 2], uint32(0x7362) if n else uint32(0x5140))
                    bytes_of(both ^ uint32(0x80808080), k, n, j, d, words)
            else:
                both = permute(w[j], w[j + 2], uint32(0x5140))
                bytes_of(both & uint32(NIBBLES), k, 0, j, d, words)
                bytes_of(both >> uint32(4) & uint32(NIBBLES), k, 1, j, d, words)

    all_positions = unrolled(4, sixteen)

    @inlined
    def decode(values: Any, words: Any) -> None:
        warp, lane = warp_and_lane()
        (g, t), places, odd = g_and_t(lane), cuda.local.array(4, uint32), warp & uint32(1)
        places[3] = odd * uint32(half)
        if wide:
            places[0] = g * uint32(4) + odd * uint32(middle + 4)
            places[1], places[2] = uint32(middle), uint32(0x3210)
            if odd == uint32(0):
                places[2] = first_lane_picks(g)
        else:
            places[0] = g * uint32(2) + odd * uint32(half) + uint32(2)
        all_positions(0, values + (warp >> uint32(1)) * uint32(size) + t * uint32(4 * length), places, words)

    return decode


@cache
def first_column(name: str) -> Any:
    """The device function for a lane's first column among those of the first or second two, n."""
    wide = name == "q8_0"

    @inlined
    def column(n: Any, warp: Any, g: Any) -> Any:
        within = uint32(2) * g + uint32(16 * n)
        if wide:
            within = uint32(4) * g + uint32(2 * n)
            if warp & uint32(1) == uint32(0):
                if g == uint32(0):
                    within = uint32(30 * n)
                else:
                    within -= uint32(2)
        return warp * uint32(BLOCK) + within

    return column
