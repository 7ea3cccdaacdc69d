"""Mistakes in the meaning of 8-bit codes that the doctor imitates: wrong sign, wrong float, no saturation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...codes import CODES
from ..numbers import Mask, Wide
from .mistake import Tried, with_codes
from .scene import Scene
from .terms import Side, value_of

UNKNOWN = 0.3  # part of the error that amounts of wrapped codes may leave
WHOLE = 0.1  # how far from an integer a code found by algebra may be


def mistakes(scene: Scene) -> Iterator[Tried]:
    """Results y with codes of x, of w or of both misread, one mistake each."""
    for fault, verb, taken in (
        ("signedness", "with the other sign convention", _other_sign),
        ("code-misread", "as the other float", _other_float),
        ("no-saturation", "that wrapped by one", _wrapped),
        ("no-saturation", "that wrapped by one at either end", _wrapped_both),
        ("no-saturation", "that became NaN", _not_a_number),
        ("no-saturation", "that became infinite", _infinite),
    ):
        yield from _read(scene, fault, verb, taken)
    for which in (0, 1):
        solved = _solved(scene, which)
        if solved is not None:
            yield solved


def _read(scene: Scene, fault: str, verb: str, taken: Callable[[Side], Wide | None]) -> Iterator[Tried]:
    a, b = scene.a, scene.b
    x_values, w_values = (None if s.s is None else taken(s) for s in (a, b))
    if x_values is not None:
        yield with_codes(fault, f"codes of x {verb}", a.taken(x_values), b)
    if w_values is not None:
        yield with_codes(fault, f"codes of w {verb}", a, b.taken(w_values))
    if x_values is not None and w_values is not None:
        yield with_codes(fault, f"codes of x and w {verb}", a.taken(x_values), b.taken(w_values))


# --- read as another code -------------------------------------------------------------------------


def _other_sign(s: Side) -> Wide | None:
    """Codes of int8 read as uint8, or the reverse."""
    assert s.s is not None
    if s.s.code.kind != "integer":
        return None
    bits = s.s.code.bits
    if s.s.code.dtype.kind == "i":
        read = np.where(s.values < 0, s.values + 2.0**bits, s.values)
    else:
        read = np.where(s.values >= 2.0 ** (bits - 1), s.values - 2.0**bits, s.values)
    return None if (read == s.values).all() else read


def _other_float(s: Side) -> Wide | None:
    """Codes of e4m3 read as e5m2, or the reverse."""
    assert s.s is not None
    other = {"e4m3": "e5m2", "e5m2": "e4m3"}.get(s.s.code.name)
    if other is None:
        return None
    return np.asarray(CODES[other].decode(s.s.matrix().codes[s.rows]), np.float64)


# --- codes beyond the range -------------------------------------------------------------------------


def _ends(s: Side) -> tuple[Mask, Mask]:
    """Masks of the codes at the upper and at the lower end of the range."""
    assert s.s is not None
    return s.values == s.s.code.max, s.values == s.s.code.min


def _range(s: Side) -> tuple[float, float]:
    """The ends of the range that the bits of an integer hold."""
    assert s.s is not None
    bits = 2.0**s.s.code.bits
    return (-bits / 2, bits / 2 - 1) if s.s.code.dtype.kind == "i" else (0, bits - 1)


def _at_ends(s: Side, above: float, below: Wide | float) -> Wide | None:
    """The codes with other numbers at the ends of their range; None where there are no such codes."""
    high, low = _ends(s)
    return np.where(high, above, np.where(low, below, s.values)) if (high | low).any() else None


def _wrapped(s: Side) -> Wide | None:
    """Codes at the upper end, wrapped around to the least that the bits hold."""
    assert s.s is not None
    alone = s.s.code.kind == "integer" and _ends(s)[0].any()
    return _at_ends(s, _range(s)[0], s.values) if alone else None


def _wrapped_both(s: Side) -> Wide | None:
    assert s.s is not None
    return _at_ends(s, *_range(s)) if s.s.code.kind == "integer" and _ends(s)[1].any() else None


def _not_a_number(s: Side) -> Wide | None:
    assert s.s is not None
    return _at_ends(s, np.nan, np.nan) if s.s.code.kind == "float" else None


def _infinite(s: Side) -> Wide | None:
    assert s.s is not None
    return _at_ends(s, np.inf, -np.inf) if s.s.code.name == "e5m2" else None


def _solved(scene: Scene, which: int) -> Tried | None:
    """The result with wrapped codes, solved for from y: each code at an end of the range is an unknown.

    The error of a row is linear in what stands there instead; with more columns of y than ends the
    least squares solution is the wrapped codes themselves, and they must be integers within the bits.
    """
    s, other = (scene.a, scene.b) if which == 0 else (scene.b, scene.a)
    if s.s is None or s.s.code.kind != "integer":
        return None
    ends = _ends(s)
    error = scene.y - scene.prediction if which == 0 else (scene.y - scene.prediction).T
    weights, read, free, low_high = value_of(other), s.values.copy(), 0, _range(s)
    wrong = ~scene.within(scene.prediction, scene.limit)
    for row in np.flatnonzero(wrong.any(axis=1 - which)):
        at = np.flatnonzero(ends[0][row] | ends[1][row])
        scale = s.grid[s.tiles[row], at // s.c]
        terms = weights[:, at] * scale
        usable = np.isfinite(error[row]) & np.isfinite(terms).all(axis=1)
        if not 0 < len(at) < usable.sum():
            return None
        moved, *_ = np.linalg.lstsq(terms[usable], error[row][usable], rcond=None)
        codes = s.values[row, at] + moved
        whole = np.rint(codes)
        if np.abs(codes - whole).max() > WHOLE or whole.min() < low_high[0] or whole.max() > low_high[1]:
            return None
        read[row, at] = whole
        free += len(at)
    a, b = (s.taken(read), other) if which == 0 else (other, s.taken(read))
    words = f"codes of {s.name} beyond the range wrapped around"
    return with_codes("no-saturation", words, a, b, free) if free else None


def wrapped_somewhere(scene: Scene) -> tuple[str, float] | None:
    """Words for the operand whose end codes wrapped by unknown amounts, and the part of the error left.

    Wrapped codes lie far on the other side of zero, most of them near the other end; so the error goes
    with what wrapping by one would make, only smaller.
    """
    best: tuple[str, float] | None = None
    for taken in (_wrapped, _wrapped_both):
        for mistake in _read(scene, "no-saturation", "that wrapped around", taken):
            share, like = scene.resemblance(mistake.replay.y)
            left = 1 - like**2
            if 0.3 < share < 1.1 and left < UNKNOWN and (best is None or left < best[1]):
                best = mistake.words, left
    return best


def unsaturated(scene: Scene) -> Iterator[Tried]:
    """Results y with floats x quantized without saturation, or cut off: every code is known."""
    s, x = scene.a.s, scene.way.floats_of_x
    if s is None or x is None:
        return
    side = scene.a
    scale = side.grid[side.tiles][:, np.arange(x.shape[1]) // side.c]
    v = (x[side.rows].astype(np.float32) / scale.astype(np.float32)).astype(np.float32)
    if s.code.kind == "float":
        codes = s.code.decode(s.code.encode(v, saturate=False)).astype(np.float64)
        text = "codes of x beyond the range became NaN or infinite"
        yield with_codes("no-saturation", text, side.taken(codes), scene.b)
        return
    zero = 0.0 if side.zeros is None else side.zeros[side.tiles][:, np.arange(x.shape[1]) // side.c]
    low, high = _range(side)
    span = high - low + 1
    wrapped = (np.rint(v).astype(np.float64) + zero - low) % span + low
    text = "codes of x beyond the range wrapped around"
    yield with_codes("no-saturation", text, side.taken(wrapped), scene.b)
    cut = np.clip(np.trunc(v).astype(np.float64) + zero, s.code.min, s.code.max)
    text = "codes of x cut off instead of rounded"
    yield with_codes("activation-rounding", text, side.taken(cut), scene.b)
