"""The kernels of the quantizer, compiled for a dtype, a code and a rule: extremes, scales, codes of units."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...codes import CODES
from ..atoms import verb
from ..machine.intrinsics import bits, from_bits
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at, ints_at, reader
from ..machine.target import Target
from .driver import WIDTH, Kind, Numbers
from .vectors import extremes, row_encoder

numbers = reader(Numbers)


@cache
def quantizer(*case: Any) -> Any:
    """Compiled: quantize units ``first`` … ``stop`` of whole tiles to codes, scales and zero points."""
    kind = Kind(*case)
    measure = _measure(kind.read, kind.zeros, CODES[kind.code].kind == "integer", kind.target)
    put = _put(kind, inside=True)
    apply_rule = _rule(kind)
    scales_at, has_zeros = bytes_at if kind.scale == "e8m0" else floats_at, kind.zeros

    def quantize(arguments: int, first: int, stop: int) -> None:
        cut = numbers(arguments)
        eps, tiles = from_bits(cut.eps), -(-cut.wide // cut.c)
        scales = scales_at(cut.scales, -(-cut.rows // cut.r), -(-cut.columns // cut.c))
        zeros = ints_at(cut.zeros, -(-cut.rows // cut.r), -(-cut.columns // cut.c))
        low, high = np.empty(tiles, np.float32), np.empty(tiles, np.float32)
        steps, points = np.empty(tiles, np.float32), np.zeros(tiles, np.int32)
        for unit in range(first, stop):
            band, section = unit // cut.across, unit % cut.across
            top, left = band * cut.r, section * cut.wide
            bottom, right = min(top + cut.r, cut.rows), min(left + cut.wide, cut.columns)
            low[:] = 0
            high[:] = 0
            measure(cut, cut.c, top, bottom, left, right, low, high)
            for t in range(-(-(right - left) // cut.c)):
                stored, step, point = apply_rule(low[t], high[t], eps)
                scales[band, left // cut.c + t] = stored
                steps[t], points[t] = step, point
                if has_zeros:
                    zeros[band, left // cut.c + t] = point
            put(cut, cut.c, top, bottom, left, right, steps, points)

    return jit(quantize)


@inner
def _place(cut: Any, unit: int) -> Any:
    """Band, first and last row, first and last column of a unit."""
    band, part = unit // (cut.parts * cut.across), unit // cut.across % cut.parts
    top, left = band * cut.r + part * cut.high, unit % cut.across * cut.wide
    bottom = min(top + cut.high, (band + 1) * cut.r, cut.rows)
    return band, top, bottom, left, min(left + cut.wide, cut.columns)


@cache
def extremes_finder(read: str, both: bool, keeps_nan: bool, target: Target) -> Any:
    """Compiled: the extremes of units ``first`` … ``stop``, which are parts of tiles."""
    measure = _measure(read, both, keeps_nan, target)

    def find(arguments: int, first: int, stop: int) -> None:
        cut = numbers(arguments)
        low, high = floats_at(cut.low, 1, stop)[0], floats_at(cut.most, 1, stop)[0]
        for unit in range(first, stop):
            _, top, bottom, left, right = _place(cut, unit)
            measure(cut, cut.wide, top, bottom, left, right, low[unit : unit + 1], high[unit : unit + 1])

    return jit(find)


@cache
def encoder(read: str, code: str, rounding: str, zeros: bool, target: Target) -> Any:
    """Compiled: the codes of units ``first`` … ``stop`` under scales [bands, tiles], float32."""
    put = _put(Kind(read, code, rounding, zeros, "float32", target), inside=False)

    def encode(arguments: int, first: int, stop: int) -> None:
        cut = numbers(arguments)
        scales = floats_at(cut.scales, -(-cut.rows // cut.r), -(-cut.columns // cut.c))
        points = ints_at(cut.zeros, -(-cut.rows // cut.r), -(-cut.columns // cut.c))
        for unit in range(first, stop):
            band, top, bottom, left, right = _place(cut, unit)
            # a unit begins with a tile, or lies in one
            t = left // cut.c
            put(cut, cut.c, top, bottom, left, right, scales[band, t:], points[band, t:])

    return jit(encode)


def _measure(read: str, both: bool, keeps_nan: bool, target: Target) -> Any:
    extreme, width = extremes(read, both, keeps_nan, target), WIDTH[read]

    def measure(
        lines: Any, c: int, top: int, bottom: int, left: int, right: int, low: Any, high: Any
    ) -> None:
        for row in range(top, bottom):
            line = lines.numbers + row * lines.pitch
            start, t = left, 0
            while start < right:
                low[t], high[t] = extreme(line + start * width, min(c, right - start), low[t], high[t])
                start, t = start + c, t + 1

    return inner(measure)


def _put(kind: Kind, inside: bool) -> Any:
    code, has_zeros = CODES[kind.code], kind.zeros
    encode = row_encoder(kind.read, code, kind.rounding, kind.zeros, inside, kind.target)
    width, nbytes = WIDTH[kind.read], code.bits // 8

    def put(
        lines: Any, c: int, top: int, bottom: int, left: int, right: int, steps: Any, points: Any
    ) -> None:
        ahead = (right - left) * width  # the same place in the next unit
        first = c - left % c  # a unit may begin within a tile; it never divides again
        for row in range(top, bottom):
            line, to = lines.numbers + row * lines.pitch, lines.codes + row * lines.codes_pitch
            start, stop, t = left, min(left + first, right), 0
            while start < right:
                point = points[t] if has_zeros else np.int32(0)
                encode(line + start * width, to + start * nbytes, stop - start, steps[t], point, ahead)
                start, stop, t = stop, min(stop + c, right), t + 1

    return inner(put)


def _rule(kind: Kind) -> Any:
    """Compiled: the scale of a tile as it is stored, as float32, and its zero point."""
    code, both = CODES[kind.code], kind.zeros
    keep = _rounded_up() if kind.scale == "e8m0" else _as_is()
    nearest = _away if kind.rounding == "half_away" else _even
    least, most = np.float32(code.min), np.float32(code.max)
    reach = np.float32(code.max - (code.min if both else 0))

    def apply_rule(low: Any, high: Any, eps: Any) -> Any:
        span = high - low if both else high
        stored, step = keep(np.float32(np.nan) if np.isnan(span) else max(span, eps) / reach)
        point = np.float32(0)
        if both:
            point = nearest(least - low / step)
            point = np.float32(0) if np.isnan(point) else min(max(point, least), most)
        return stored, step, np.int32(point)

    return inner(apply_rule)


def _as_is() -> Any:
    def keep(step: Any) -> Any:
        return step, step

    return inner(keep)


def _rounded_up() -> Any:
    up, power = verb(CODES["e8m0"].to_code), verb(CODES["e8m0"].value)

    def keep(step: Any) -> Any:
        stored = up(bits(step), True)
        return np.uint8(stored), power(stored)

    return inner(keep)


@inner
def _even(x: Any) -> Any:
    return np.rint(x)


@inner
def _away(x: Any) -> Any:
    whole = np.trunc(x)
    rest = np.float32(1) if abs(x - whole) >= np.float32(0.5) else np.float32(0)
    return whole + np.copysign(rest, x)
