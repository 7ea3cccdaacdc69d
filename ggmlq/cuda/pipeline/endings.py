"""How results are written: a bias is added, some kind of floats or codes made of them, four at a time.

    ending    bias: float32 [N], or 0 · scales: float32 · bytes from one row of these to the next, and from
              one column to the next: 0 where one serves all

Codes are those of ``quantize_scaled``, whose functions these are. A kernel whose threads have neighbours of a
row (few_sums.py, divided.py) calls ``write`` with them. Sums of a warpgroup that stays on the card go through
a buffer of their warp, 16 rows and 32 columns at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...codes import CODES
from ...ending import Ending
from ..quantize_scaled._codes import WORDS, Way, to_word
from ..quantize_scaled._division import divider
from ..words import barrier as barriers
from ..words import ptx
from ..words.address import address
from ..words.atoms import inlined
from ..words.endings import PIECE, bias_adder, piece_stager
from ..words.language import cuda, float32, uint32, uint64
from ..words.outputs import ROWS, SIZES
from .job import Job
from .work8 import writer

KINDS = (uint64,) * 4  # of a kernel's parameters


def words(end: Ending) -> tuple[Any, ...]:
    """What a kernel is called with."""
    if end.scales is None:
        return (0 if end.bias is None else end.bias, 0, 0, 0)
    steps = (
        stride if size > 1 else 0 for size, stride in zip(end.scales.shape, end.scales.strides, strict=True)
    )
    return (0 if end.bias is None else end.bias, end.scales, *steps)


def kind_of(out: Any, end: Ending) -> str:
    """What a kernel is made for that writes ``out``."""
    return str(out.dtype) if end.code is None else end.code.name


# --- four neighbours of a row ------------------------------------------------------------------


@cache
def four_writer(kind: str) -> Any:
    """The device function ``write(y, row, column, n, ending, a, b, c, d)``: those of them that are there."""
    put, four_biased = (four_storer if kind in SIZES else four_coder)(kind), biased

    @inlined
    def write(
        y: Any, row: Any, column: Any, n: Any, ending: Any, a: Any, b: Any, c: Any, d: Any
    ) -> None:  # fmt: skip
        bias, scales, down, along = ending
        a, b, c, d = four_biased(bias, column, n, a, b, c, d)
        put(y, row, column, n, scales + uint64(row) * down, along, a, b, c, d)

    return write


@inlined
def biased(bias: Any, column: Any, n: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Four with their bias, if there is one; what lies past the end gets the last one's."""
    if bias != uint64(0):
        last = uint32(n - uint32(1))
        a = ptx.add(a, ptx.load_float(bias + uint64(min(column, last)) * uint64(4)))
        b = ptx.add(b, ptx.load_float(bias + uint64(min(uint32(column + uint32(1)), last)) * uint64(4)))
        c = ptx.add(c, ptx.load_float(bias + uint64(min(uint32(column + uint32(2)), last)) * uint64(4)))
        d = ptx.add(d, ptx.load_float(bias + uint64(min(uint32(column + uint32(3)), last)) * uint64(4)))
    return a, b, c, d


def four_storer(kind: str) -> Any:
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
            low, high = narrow(a) | narrow(b) << uint32(16), narrow(c) | narrow(d) << uint32(16)
            store_pair(at, float_of(uint32(low)), float_of(uint32(high)))

    @inlined
    def one(at: Any, value: Any) -> None:
        if size == 4:
            store_float(at, value)
        else:
            store2(at, narrow(value))

    @inlined
    def store(
        y: Any, row: Any, column: Any, n: Any, _: Any, along: Any, a: Any, b: Any, c: Any, d: Any
    ) -> None:  # fmt: skip
        at = address(y, row, n, column, size)
        if uint32(column + uint32(3)) < n and at & uint64(4 * size - 1) == uint64(0):
            wide(at, a, b, c, d)
        else:
            if column < n:
                one(at, a)
            if uint32(column + uint32(1)) < n:
                one(at + uint64(size), b)
            if uint32(column + uint32(2)) < n:
                one(at + uint64(2 * size), c)
            if uint32(column + uint32(3)) < n:
                one(at + uint64(3 * size), d)

    return store


def four_coder(kind: str) -> Any:
    """The device function that stores four codes; ``scales``: those of the row."""
    code = CODES[kind]
    word = to_word(Way(kind, "float32", "half_even", False, kind in WORDS))
    (prepare, divide), (_, divide_one) = (divider(code, False, "float32", count) for count in (4, 1))
    store4, store1, load_float = ptx.store4, ptx.store1, ptx.load_float

    @inlined
    def store(
        y: Any, row: Any, column: Any, n: Any, scales: Any, along: Any, a: Any, b: Any, c: Any, d: Any
    ) -> None:  # fmt: skip
        v, one = cuda.local.array(4, float32), cuda.local.array(1, float32)
        v[0], v[1], v[2], v[3] = a, b, c, d
        if along == uint64(0):
            s = load_float(scales)
            divide(v, s, prepare(s))
        else:
            for i in range(4):
                s = load_float(
                    scales + uint64(min(uint32(column + uint32(i)), uint32(n - uint32(1)))) * along
                )
                one[0] = v[i]
                divide_one(one, s, prepare(s))
                v[i] = one[0]
        found, at = word(v, 0, uint32(0)), address(y, row, n, column, 1)
        if uint32(column + uint32(3)) < n and at & uint64(3) == uint64(0):
            store4(at, found)
        else:
            for i in range(4):
                if uint32(column + uint32(i)) < n:
                    store1(at + uint64(i), uint32(found >> uint32(8 * i)))

    return store


# --- a warp's part of a tile -------------------------------------------------------------------


def tile_writer(job: Job) -> Any:
    """The device function that writes a warp's part of a tile: what work8.writer makes, with an ending."""
    if job.coded:
        return _through_buffers(job)
    add, write = bias_adder(job.form.columns, job.form.halves), writer(job)

    @inlined
    def end_plainly(
        totals: Any, stood: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, ending: Any
    ) -> None:  # fmt: skip
        pair = uint32(uint32(stood[0] & uint32(3)) << uint32(1))
        totals = add(totals, ending[0], uint32(column + pair), n)
        write(totals, stood, ring, y, column, row, m, n, 0)

    return end_plainly


def _through_buffers(job: Job) -> Any:
    columns, halves = job.form.columns, job.form.halves
    stage, write = piece_stager(columns, halves), four_writer(job.out)
    meet_warp, take_floats = barriers.meet_warp, ptx.take_floats
    across, fours = columns // PIECE, PIECE // 4

    @inlined
    def end_in_codes(
        totals: Any, stood: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, ending: Any
    ) -> None:  # fmt: skip
        lane, inner, buffer, at = stood
        number, q = uint32(0), uint32(lane & uint32(fours - 1))
        while number < uint32(halves * across):
            meet_warp()  # all are done with the piece before
            stage(totals, number, at)
            meet_warp()
            own = uint32(row + inner + uint32(number // uint32(across)) * uint32(64))
            along = uint32(column + uint32(number % uint32(across)) * uint32(PIECE) + uint32(q << uint32(2)))
            r = uint32(lane >> uint32(3))
            while r < uint32(ROWS):
                chunk = uint32(q ^ uint32(r & uint32(7)))
                v = take_floats(uint32(buffer + r * uint32(128) + uint32(chunk << uint32(4))))
                if uint32(own + r) < m:
                    write(y, uint32(own + r), along, n, ending, v[0], v[1], v[2], v[3])
                r = uint32(r + uint32(32 // fours))
            number = uint32(number + uint32(1))

    return end_in_codes
