"""The kernel of ``linear``'s rung ``cpu:amx``: tiles of activations times panels, decoded between products.

Two panels are 32 rows of weights. A *chunk* of their columns is decoded into the first cache, then
multiplied with all blocks of 32 rows of activations, which pass by from the second cache. The next chunk is
decoded meanwhile, by instructions that stand between products: the vector units work beside the matrix unit.
With many blocks it is decoded to another place, a tile while eight runs are multiplied. With few it is
decoded while the last of them is multiplied, each run to the place of the run that has just been loaded.

Sums stay in tiles for a chunk. Between chunks those of ``near`` pairs of panels lie in the second cache, so
that a chunk of activations is read once for all of these. Each sum takes its products in the order of the
columns, whatever the number of rows, the chunk and the threads: results are the same to the last bit.

With many blocks the sums of the next block, the activations of the next chunk, and the panel of the next tile
are asked for ahead.

Floors for 32 rows of weights, 32 of activations and a run: four products, 64 clocks; four loads of tiles,
32; two decoded tiles for all activations.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, reader
from ..machine.numba_names import cgutils
from ..machine.simd import BYTES, F16, FLOATS, I1, I32, I64, INTS, Simd, vec
from ..machine.target import AVX512
from ..panels.layout import ROWS, TABLE, PanelLayout, remaining_zero
from ..panels.tile import Panel, Place
from .instructions import LINE, SUMS, instructions
from .multiply import NUMBERS, Operands
from .unit import PITCH, TILE, bfloats

operands = reader(Operands)
PAGE = 4096
AT_ONCE = 4  # lines of the next sums, and of the next activations, that are asked for in a step


class Chunk(NamedTuple):
    """A chunk of the columns of a pair of panels, and the sums of the pair."""

    pair: int
    start: int  # its first run
    steps: int  # its runs
    sums: int  # address of those of the first block


@cache
def multiplier(layout: PanelLayout, unit: Any) -> Any:
    """Compiled: pairs of panels ``first`` … ``stop`` times all blocks; ``unit``: a kind of ``Unit``."""
    decode, room = decoder(layout), unit.ROOM + PAGE - 1 & -PAGE
    begin, end, *_ = instructions(unit, "dot")
    gather, by_many, by_few = gatherer(), many_sweeper(layout, unit), few_sweeper(layout, unit)

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        weights, panels, panel_bytes, runs = fields.weights, fields.panels, fields.panel_bytes, fields.runs
        blocks, chunk, many = fields.blocks, min(fields.chunk, runs), fields.near > 1
        bytes_of_chunk = 2 * TILE * chunk
        size = room + 2 * bytes_of_chunk + SUMS * (1 + blocks * min(fields.near, stop - first))
        memory = np.empty(size + PAGE, np.uint8)
        unit_at = memory.ctypes.data + PAGE - 1 & -PAGE
        w = unit_at + room
        ahead = w + bytes_of_chunk if many else w
        edge = w + 2 * bytes_of_chunk
        sums = edge + SUMS
        begin(unit_at)
        for i in range(2 * chunk):
            decode(weights + min(2 * first + i % 2, panels - 1) * panel_bytes, i // 2, w + TILE * i)
        near_first = pair = first
        near_stop, start = min(first + fields.near, stop), 0
        while pair < stop:
            steps = min(chunk, runs - start)
            next_pair, next_start = following(pair, start, near_first, near_stop, chunk, runs)
            next_steps = min(chunk, runs - next_start) if next_pair < stop else 0
            left = weights + 2 * next_pair * panel_bytes
            right = weights + min(2 * next_pair + 1, panels - 1) * panel_bytes
            place, next_place = pair - near_first, (next_pair - near_first) % fields.near
            now = Chunk(pair, start, steps, sums + SUMS * place * blocks)
            then = Chunk(next_pair, next_start, next_steps, sums + SUMS * next_place * blocks)
            if many:
                done = by_many(unit_at, fields, now, then, left, right, w, ahead, place)
            else:
                by_few(unit_at, fields, now, then, left, right, w, edge)
                done = 2 * steps
            for i in range(done, 2 * next_steps):
                decode(right if i % 2 else left, next_start + i // 2, ahead + TILE * i)
            w, ahead = ahead, w
            pair, start = next_pair, next_start
            if pair == near_stop:
                if many:
                    gather(fields, near_first, near_stop, sums, edge)
                near_first, near_stop = pair, min(pair + fields.near, stop)
        end(unit_at)
        memory[0] = 0  # an array lives until its last mention

    return jit(multiply)


@inner
def following(pair: int, start: int, near_first: int, near_stop: int, chunk: int, runs: int) -> Any:
    """The next pair and first run: another near pair, the next chunk of these, or the next near pairs."""
    if pair + 1 < near_stop:
        return pair + 1, start
    if start + chunk < runs:
        return near_first, start + chunk
    return near_stop, 0


def many_sweeper(layout: PanelLayout, unit: Any) -> Any:
    """Compiled: a chunk at ``w`` times all blocks; the number of tiles of the next that lie ``ahead``."""
    _, _, no_sums, load_sums, store_sums, step, _ = instructions(unit, "dot")
    by_eight, near, far, eight = eight_steps(layout, unit), asker(1), asker(2), PARTS

    def by_many(
        unit_at: int, fields: Any, now: Any, then: Any, left: int, right: int, w: int, ahead: int, place: int
    ) -> int:
        blocks, steps, due, done = fields.blocks, now.steps, 2 * then.steps, 0
        x = fields.tiles + 2 * TILE * now.start * blocks
        # of the next chunk, a part while each pair that is near is multiplied
        next_x = now.start + steps if now.start + steps < fields.runs else 0
        x_ahead = fields.tiles + (2 * TILE * next_x + PITCH * AT_ONCE * place * steps) * blocks
        for block in range(blocks):
            sums = now.sums + SUMS * block
            sums_ahead = then.sums if block == blocks - 1 else sums + SUMS
            if now.start == 0:
                no_sums(unit_at)
            else:
                load_sums(unit_at, sums)
            s = 0
            while s < steps:
                here, offset = x + 2 * TILE * s, PITCH * AT_ONCE * s
                if s + eight <= steps and done < due:
                    panel = right if done % 2 else left
                    run, to = then.start + done // 2, ahead + TILE * done
                    by_eight(
                        unit_at, here, w + 2 * TILE * s, panel, run, to, sums_ahead + offset, x_ahead + offset
                    )
                    s, done = s + eight, done + 1
                else:
                    near(sums_ahead + offset)
                    far(x_ahead + offset)
                    step(unit_at, here, w + 2 * TILE * s, w + 2 * TILE * s + TILE)
                    s += 1
            store_sums(unit_at, sums, LINE, 2 * TILE)
            x, x_ahead = x + 2 * TILE * steps, x_ahead + PITCH * AT_ONCE * steps
        return done

    return inner(by_many)


def eight_steps(layout: PanelLayout, unit: Any) -> Any:
    """An intrinsic: eight steps, between them the decoding of a tile, and lines that are asked for ahead.

    Its words: the unit, activations, decoded weights; a panel, the number of a run, the place of its tile;
    the next sums, the next activations.
    """

    def emit(
        b: Any, here: Any, x: Any, w: Any, panel: Any, run: Any, to: Any, sums: Any, x_ahead: Any
    ) -> None:
        u, decoding = unit(b, here), Decoder(b, layout)
        place = decoding.run_at(panel, b.add(run, I64(1))).run
        for line in range(-(-layout.run_bytes // PITCH)):
            u.simd.fetch(b.add(place, I64(PITCH * line)), 1)
        for i, _ in enumerate(decoding.parts(panel, run, to)):
            _ask(b, b.add(sums, I64(PITCH * AT_ONCE * i)), 1)
            _ask(b, b.add(x_ahead, I64(PITCH * AT_ONCE * i)), 2)
            rows, weights = b.add(x, I64(2 * TILE * i)), b.add(w, I64(2 * TILE * i))
            u.load(6, rows, passing=True)
            u.load(4, weights)
            u.dot(0, 6, 4)
            u.load(5, b.add(weights, I64(TILE)))
            u.dot(1, 6, 5)
            u.load(7, b.add(rows, I64(TILE)), passing=True)
            u.dot(2, 7, 4)
            u.dot(3, 7, 5)

    return intrinsic_of(emit, 8)


def asker(cache: int) -> Any:
    """An intrinsic that asks for some lines from an address on, into the first cache or the second."""
    return intrinsic_of(lambda builder, at: _ask(builder, at, cache), 1)


def _ask(builder: Any, at: Any, cache: int) -> None:
    for i in range(AT_ONCE):
        Simd(builder, AVX512).fetch(builder.add(at, I64(PITCH * i)), cache)


def few_sweeper(layout: PanelLayout, unit: Any) -> Any:
    """Compiled: a chunk at ``w`` times all blocks; then the next lies there, as far as it is no longer."""
    _, _, no_sums, load_sums, store_sums, step, half_step = instructions(unit, "dot")
    by_two, by_one = sweeper(step, weaver(layout, unit)), sweeper(half_step, decoder_after(half_step, layout))
    result = putter(store_sums)

    def by_few(
        unit_at: int, fields: Any, now: Any, then: Any, left: int, right: int, w: int, edge: int
    ) -> None:
        blocks, steps = fields.blocks, now.steps
        for block in range(blocks):
            sums = now.sums + SUMS * block
            x = fields.tiles + 2 * TILE * (now.start * blocks + block * steps)
            if now.start == 0:
                no_sums(unit_at)
            elif blocks > 1:  # else sums never leave their tiles
                load_sums(unit_at, sums)
            due = then.steps if block == blocks - 1 else 0
            if fields.m - 2 * ROWS * block > ROWS:
                by_two(unit_at, x, w, steps, left, right, then.start, due)
            else:
                by_one(unit_at, x, w, steps, left, right, then.start, due)
            if now.start + steps == fields.runs:
                result(unit_at, fields, 2 * ROWS * block, 2 * ROWS * now.pair, edge)
            elif blocks > 1:
                store_sums(unit_at, sums, LINE, 2 * TILE)

    return inner(by_few)


def sweeper(step: Any, woven: Any) -> Any:
    """Compiled: the steps of a chunk, the first ``due`` of them with a run of the next chunk in between."""

    def sweep(unit_at: int, x: int, w: int, steps: int, left: int, right: int, start: int, due: int) -> None:
        for s in range(steps):
            here, now = x + 2 * TILE * s, w + 2 * TILE * s
            if s < due:
                woven(unit_at, here, now, left, right, start + s)
            else:
                step(unit_at, here, now, now + TILE)

    return inner(sweep)


def weaver(layout: PanelLayout, unit: Any) -> Any:
    """An intrinsic: a step, and a run of two panels decoded between its products, to where its weights lay.

    Its words: the unit, activations, decoded weights, the left and the right panel, the number of the run.
    """

    def emit(builder: Any, here: Any, x: Any, w: Any, left: Any, right: Any, run: Any) -> None:
        u, decoding = unit(builder, here), Decoder(builder, layout)
        beside = builder.add(w, I64(TILE))
        u.load(4, w)
        u.load(5, beside)
        for i in range(2):
            u.load(6 + i, builder.add(x, I64(TILE * i)), passing=True)
        parts = chain(decoding.parts(left, run, w), decoding.parts(right, run, beside))
        for i in range(4):
            u.dot(i, 6 + i // 2, 4 + i % 2)
            for _ in range(PARTS // 2):
                next(parts)

    return intrinsic_of(emit, 6)


def decoder_after(half_step: Any, layout: PanelLayout) -> Any:
    """Compiled: the same for a tile of activations, whose two products leave no time beside them."""
    decode = decoder(layout)

    def decode_after(unit_at: int, x: int, w: int, left: int, right: int, run: int) -> None:
        half_step(unit_at, x, w, w + TILE)
        decode(left, run, w)
        decode(right, run, w + TILE)

    return inner(decode_after)


# --- The decoder of a run of a panel, 32 weights of 16 rows, to a tile of bfloat16: code · scale - offset
#
# A row of a tile is a pair of neighbouring weights of each of 16 rows. Halves of it are made in lanes of
# float32, eight rows by two weights, so that rounding both to bfloat16 leaves them in their places:
#
#     codes      of eight rows, each twice, rotated so that the code stands in the lowest bits of its lane
#     floats     up to 5 bits: looked up in a table of 16 or 32, which ignores the bits above and knows levels
#                and zeros; more bits: masked, converted
#     weights    times the scale, less the offset, rounded once: ggml's float32, since scales times codes are
#                exact wherever there is an offset
#
# Where there is no offset, and scales are halves or these times integers, a code is put into a byte of a
# float: without a conversion that is ``base`` + code, and the fused addend - (base + zero) · scale is
# exact.

LOOKED_UP = 5  # bits of the longest index
PARTS = 8  # of a decoding
FLOAT_BITS = 24  # of the significand of a float32
# Bits of the significands of scales; larger ones can make frames overflow.
SCALE_BITS = {"f16": 11, "i8": 11 + 8, "i4": 11 + 4}


class Frame(NamedTuple):
    """A float32 with room for a code in one of its bytes, whose last bit counts as one."""

    bits: int  # as an integer, without a code
    base: int  # as a number
    byte: int


FRAMES = Frame(0x43000000, 1 << 7, 2), Frame(0x47000000, 1 << 15, 1)  # for codes of 7 bits and of 8


def frame_of(layout: PanelLayout) -> Frame | None:
    """The float that holds a layout's codes, or None where the addend would not be exact."""
    if layout.offset or layout.scale not in SCALE_BITS:
        return None
    frame = FRAMES[sum(layout.planes) > 7 or bool(layout.table)]
    addend = frame.base + remaining_zero(layout, AVX512)
    odd = addend // (addend & -addend)
    return frame if odd.bit_length() + SCALE_BITS[layout.scale] <= FLOAT_BITS else None


@cache
def decoder(layout: PanelLayout) -> Any:
    """An intrinsic that decodes a run of a panel to a tile: (panel, number of the run, tile)."""
    return intrinsic_of(lambda builder, *words: Decoder(builder, layout).emit(*words), 3)


class Decoder(Panel):
    """Emits the decoding of a run to a tile."""

    def __init__(self, builder: Any, layout: PanelLayout) -> None:
        super().__init__(builder, layout, AVX512)
        self.bits = sum(layout.planes)
        self.frame = frame_of(layout)
        # Zeros that LLVM cannot know: of a look-up that it knows it makes two or three instructions.
        self.hidden = self.simd.splat(self.simd.apart(I64(0)), 8)

    def emit(self, panel: Any, run: Any, to: Any) -> None:
        for _ in self.parts(panel, run, to):
            pass

    def parts(self, panel: Any, run: Any, to: Any) -> Iterator[None]:
        """The decoding in eight parts, two rows of the tile each, with room for other instructions."""
        here = self.run_at(panel, run)
        scales = [self._scales(here, group) for group in range(self.layout.groups)]
        fours = 8 // self.layout.groups  # that share a scale
        planes: dict[int, list[Any]] = {}
        for j in sorted(range(8), key=lambda j: (j % 4, j)):  # fours that share a vector one after the other
            framed = self.codes(here, j) if self.frame else None
            for pair in range(2):
                halves = []
                for half in range(2):
                    scale, less = (lanes and lanes[half] for lanes in scales[j // fours])
                    if self.frame:
                        value = self._framed(framed, self.frame, pair, half)
                    else:
                        value = self._float(self._codes(here, planes, j, pair, half))
                    halves.append(self.simd.fma(value, scale, less) if less else self.b.fmul(value, scale))
                place = self.b.add(to, I64(PITCH * (2 * j + pair)))
                self.simd.store(bfloats(self.simd, *halves), place)
            yield

    def _scales(self, here: Place, group: int) -> tuple[Any, Any]:
        """Scales and addends (or None), for eight rows and for the other eight."""
        scale, offset = self.scale(here, group)
        less, zero = offset, self.layout.zero * (self.bits > LOOKED_UP)  # a table takes it off by itself
        if self.frame:
            zero = self.frame.base + remaining_zero(self.layout, AVX512)
        if zero:
            zeros = self.b.fmul(scale, ir.Constant(FLOATS, [float(zero)] * 16))
            less = self.b.fadd(zeros, offset) if offset else zeros
        return self._twice(scale), self._twice(self.b.fneg(less)) if less else None

    def _codes(self, here: Place, planes: dict[int, list[Any]], j: int, pair: int, half: int) -> Any:
        """Codes in the lowest bits of lanes; the bits above them are undefined."""
        low, codes = 0, None
        for at, width in zip(self.layout.planes_at, self.layout.planes, strict=True):
            places = {8: (j, 0), 4: (j % 4, j // 4 * 4), 2: (j // 4, j % 4 * 2), 1: (0, j)}
            vector, bit = places[width]
            place = at + 64 * vector
            if place not in planes:
                planes[place] = self._twice(self.simd.load(self.b.add(here.run, I64(place)), INTS))
            by = [(16 * pair + 8 * (lane % 2) + bit - low) % 32 for lane in range(16)]
            bits = planes[place][half]
            if any(by):
                bits = self.simd.call("llvm.fshr.v16i32", INTS, bits, bits, ir.Constant(INTS, by))
            if codes is not None:
                below = ir.Constant(INTS, [(1 << low) - 1] * 16)
                bits = self.b.or_(self.b.and_(codes, below), self.b.and_(bits, self.b.not_(below)))
            codes, low = bits, low + width
        return codes

    def _float(self, codes: Any) -> Any:
        """Codes as floats, without their zero, or with it where the scale takes it off."""
        layout = self.layout
        if self.bits > LOOKED_UP:
            mask = ir.Constant(INTS, [(1 << self.bits) - 1] * 16)
            return self.b.sitofp(self.b.and_(codes, mask), FLOATS)
        period = 1 << self.bits
        levels = layout.table or range(-layout.zero, period - layout.zero)
        values = [levels[i % period] for i in range(max(TABLE, period))]
        parts = [
            ir.Constant(FLOATS, [float(value) for value in values[i : i + 16]])
            for i in range(0, len(values), 16)
        ]
        if len(parts) == 1:
            return self.simd.call("llvm.x86.avx512.permvar.sf.512", FLOATS, parts[0], codes)
        return self.simd.call("llvm.x86.avx512.vpermi2var.ps.512", FLOATS, parts[0], codes, parts[1])

    def _framed(self, codes: Any, frame: Frame, pair: int, half: int) -> Any:
        """The codes of eight rows and two columns, bytes [16, 4], as floats above them."""
        places = [32 * half + 4 * (lane // 2) + 2 * pair + lane % 2 for lane in range(16)]
        index = ir.Constant(BYTES, [place for place in places for _ in range(4)])
        index = self.b.or_(index, self.b.bitcast(self.hidden, BYTES))
        picked = self.simd.call("llvm.x86.avx512.permvar.qi.512", BYTES, codes, index)
        inside = ir.Constant(vec(I1, 64), [byte % 4 == frame.byte for byte in range(64)])
        around = ir.Constant(BYTES, [frame.bits >> 8 * (byte % 4) & 255 for byte in range(64)])
        return self.b.bitcast(self.b.select(inside, picked, around), FLOATS)

    def _twice(self, vector: Any) -> list[Any]:
        """The first eight lanes, each twice, and the other eight."""
        return [
            self.b.shuffle_vector(
                vector, ir.Constant(vector.type, ir.Undefined),
                ir.Constant(vec(I32, 16), [first + i // 2 for i in range(16)]),
            )
            for first in (0, 8)
        ]  # fmt: skip


# --- The way of sums to the result, rounded to its numbers: from the unit, or row by row from memory ---
#
# Where sums wait in memory, a row of the result is written at once for all pairs of panels that are near.
# Tiles that the unit stores itself go to 16 rows, each in another page.

WIDE = 2 * ROWS  # rows and columns of sums
LARGE = 1 << 20  # numbers of a result that no second cache holds
HALVES, BFLOATS = NUMBERS.index("float16"), NUMBERS.index("bfloat16")


def line_putter() -> Any:
    """Compiled: write a row of sums, 32 of a row and a column on, to the result."""
    copy, to_halves, to_bfloats = (intrinsic_of(emit, 2) for emit in (_copy, _to_halves, _to_bfloats))

    def put_line(fields: Any, row: int, column: int, line: int) -> None:
        columns, width = min(WIDE, fields.n - column), 2 if fields.number else 4
        to = fields.out + width * (row * fields.n + column)
        rounded = to if columns == WIDE else line
        if fields.number == HALVES:
            to_halves(line, rounded)
        elif fields.number == BFLOATS:
            to_bfloats(line, rounded)
        elif columns == WIDE:
            copy(line, to)
        if columns < WIDE:
            source, target = bytes_at(line, 1, width * columns), bytes_at(to, 1, width * columns)
            for i in range(width * columns):  # from array to array Numba would allocate
                target[0, i] = source[0, i]

    return inner(put_line)


def putter(store_sums: Any) -> Any:
    """Compiled: write the sums in the unit, of a block and a pair of panels, to the result."""
    put_line = line_putter()

    def put(unit_at: int, fields: Any, row: int, column: int, edge: int) -> None:
        n, rows = fields.n, min(WIDE, fields.m - row)
        if rows == WIDE and column + WIDE <= n and not fields.number:
            store_sums(unit_at, fields.out + 4 * (row * n + column), 4 * n, 4 * ROWS * n)
            return
        store_sums(unit_at, edge, LINE, 2 * TILE)
        for r in range(rows):
            put_line(fields, row + r, column, edge + LINE * r)

    return inner(put)


def gatherer() -> Any:
    """Compiled: write the sums in memory, of pairs of panels ``first`` … ``stop``, to the result.

    A large result of float32 passes by all caches, which need not read what is overwritten; ``line`` is the
    address of a row of these pairs, where it is put together.
    """
    put_line, copy = line_putter(), intrinsic_of(_copy, 2)
    pass_by, passed = intrinsic_of(_pass_by, 3), intrinsic_of(_fence, 0)

    def gather(fields: Any, first: int, stop: int, sums: int, line: int) -> None:
        n, columns = fields.n, WIDE * (stop - first)
        large = not fields.number and fields.m * n > LARGE and WIDE * stop <= n
        for row in range(fields.m):
            source = sums + SUMS * (row // WIDE) + LINE * (row % WIDE)
            for pair in range(first, stop):
                if large:
                    copy(source, line + LINE * (pair - first))
                else:
                    put_line(fields, row, WIDE * pair, source)
                source += SUMS * fields.blocks
            if large:
                pass_by(line, fields.out + 4 * (row * n + WIDE * first), columns)
        if large:
            passed()

    return inner(gather)


def _copy(builder: Any, source: Any, to: Any) -> None:
    """32 float32 from one address to another."""
    simd = Simd(builder, AVX512)
    for i in range(2):
        simd.store(simd.load(builder.add(source, I64(PITCH * i)), INTS), builder.add(to, I64(PITCH * i)))


def _to_halves(builder: Any, source: Any, to: Any) -> None:
    """32 float32 at an address to 32 float16 at another."""
    simd = Simd(builder, AVX512)
    parts = [simd.load(builder.add(source, I64(PITCH * i)), FLOATS) for i in range(2)]
    for i, part in enumerate(parts):
        simd.store(builder.fptrunc(part, vec(F16, ROWS)), builder.add(to, I64(PITCH // 2 * i)))


def _to_bfloats(builder: Any, source: Any, to: Any) -> None:
    """32 float32 at an address to 32 bfloat16 at another."""
    simd = Simd(builder, AVX512)
    simd.store(bfloats(simd, *(simd.load(builder.add(source, I64(PITCH * i)), FLOATS) for i in range(2))), to)


def _pass_by(builder: Any, source: Any, to: Any, count: Any) -> None:
    """``count`` float32 from one address to another, whole lines of these past the caches."""
    simd, b = Simd(builder, AVX512), builder
    before = b.lshr(b.and_(b.neg(to), I64(PITCH - 1)), I64(2))  # numbers up to the first whole line
    before = b.select(b.icmp_unsigned("<", before, count), before, count)
    _some(simd, source, to, before)
    rest = b.sub(count, before)
    source, to = (b.add(address, b.shl(before, I64(2))) for address in (source, to))
    past = builder.module.add_metadata([I32(1)])
    with cgutils.for_range(b, b.lshr(rest, I64(4)), intp=I64) as loop:
        at = b.shl(loop.index, I64(6))
        pointer = b.inttoptr(b.add(to, at), FLOATS.as_pointer())
        b.store(simd.load(b.add(source, at), FLOATS), pointer, align=PITCH).set_metadata("nontemporal", past)
    done = b.shl(b.lshr(rest, I64(4)), I64(6))
    _some(simd, b.add(source, done), b.add(to, done), b.and_(rest, I64(ROWS - 1)))


def _some(simd: Simd, source: Any, to: Any, count: Any) -> None:
    """Copy fewer than 16 float32."""
    lanes = ir.Constant(vec(I64, ROWS), [*range(ROWS)])
    inside = simd.builder.icmp_unsigned("<", lanes, simd.splat(count))
    pointer = simd.builder.inttoptr(to, FLOATS.as_pointer())
    nothing = ir.VoidType()
    simd.call("llvm.masked.store.v16f32.p0", nothing, simd.load(source, FLOATS), pointer, I32(4), inside)


def _fence(builder: Any) -> None:
    """Other threads see what went past the caches before all that this thread stores later."""
    Simd(builder, AVX512).call("llvm.x86.sse.sfence", ir.VoidType())
