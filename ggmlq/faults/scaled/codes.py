"""Mistakes in 8-bit codes and in their sums that the doctor imitates.

Codes have the wrong sign, are read as another float, or did not saturate; sums overflow, are kept in few
bits, or lack the end of K.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...base.indices import evenly_spaced
from ...codes import CODES
from ..findings import Mistake
from ..numbers import Wide, half
from .scales import Replay, Tried, with_scales
from .scene import Scene
from .terms import Side, dots, grouped, less_zeros, terms, value_of

UNKNOWN = 0.3  # part of the error that amounts of wrapped codes may leave
WHOLE = 0.1  # how far from an integer a code found by algebra may be


def with_codes(fault: str, words: str, a: Side, b: Side, free: int = 0) -> Tried:
    """The mistake of other codes, with its y."""
    t = terms(a, b)
    y = t.product()
    return Mistake(fault, words, Replay(y, lambda: t.limit(y)), free)


def mistakes(scene: Scene) -> Iterator[Tried]:
    """Results y with codes of x, of w or of both misread, one mistake each."""
    for fault, verb, read in MISREADINGS:
        yield from _misread(scene, fault, f"codes of {{}} {verb}", read)
    for which in (0, 1):
        solved = _solved(scene, which)
        if solved is not None:
            yield solved


def _misread(scene: Scene, fault: str, words: str, read: Callable[[Side], Wide | None]) -> Iterator[Tried]:
    a, b = scene.a, scene.b
    x, w = (None if s.s is None or (codes := read(s)) is None else s.with_values(codes) for s in (a, b))
    if x is not None:
        yield with_codes(fault, words.format("x"), x, b)
    if w is not None:
        yield with_codes(fault, words.format("w"), a, w)
    if x is not None and w is not None:
        yield with_codes(fault, words.format("x and w"), x, w)


# --- codes read otherwise: None where a mistake shows in none of them ---------------------------------


def _other_sign(s: Side) -> Wide | None:
    """Codes of int8 read as uint8, or the reverse."""
    if s.code.kind != "integer":
        return None
    low, high = _range(s)
    span = high - low + 1
    wrong = (s.values % span + span / 2) % span - span / 2 if low == 0 else s.values % span
    return None if (wrong == s.values).all() else wrong


def _other_float(s: Side) -> Wide | None:
    """Codes of e4m3 read as e5m2, or the reverse."""
    other = {"e4m3": "e5m2", "e5m2": "e4m3"}.get(s.code.name)
    if other is None or s.s is None:
        return None
    return np.asarray(CODES[other].decode(s.s.matrix().codes[s.rows]), np.float64)


def _range(s: Side) -> tuple[float, float]:
    """The ends of the range that the bits of an integer hold."""
    bits = 2.0**s.code.bits
    return (-bits / 2, bits / 2 - 1) if s.code.dtype.kind == "i" else (0, bits - 1)


def _at_ends(s: Side, above: float, below: Wide | float) -> Wide | None:
    """The codes with other numbers at the ends of their range; None where there are no such codes."""
    high, low = s.values == s.code.max, s.values == s.code.min
    return np.where(high, above, np.where(low, below, s.values)) if (high | low).any() else None


def _wrapped(s: Side) -> Wide | None:
    """Codes at the upper end, wrapped around to the least that the bits hold."""
    alone = s.code.kind == "integer" and (s.values == s.code.max).any()
    return _at_ends(s, _range(s)[0], s.values) if alone else None


def _wrapped_both(s: Side) -> Wide | None:
    both = s.code.kind == "integer" and (s.values == s.code.min).any()
    return _at_ends(s, *_range(s)) if both else None


MISREADINGS: tuple[tuple[str, str, Callable[[Side], Wide | None]], ...] = (
    ("signedness", "with the other sign convention", _other_sign),
    ("code-misread", "as the other float", _other_float),
    ("no-saturation", "that wrapped by one", _wrapped),
    ("no-saturation", "that wrapped by one at either end", _wrapped_both),
    ("no-saturation", "that became NaN",
     lambda s: _at_ends(s, np.nan, np.nan) if s.code.kind == "float" else None),
    ("no-saturation", "that became infinite",
     lambda s: _at_ends(s, np.inf, -np.inf) if s.code.name == "e5m2" else None),
)  # fmt: skip


def _solved(scene: Scene, which: int) -> Tried | None:
    """The result with wrapped codes, solved for from y: each code at an end of the range is an unknown.

    The error of a row is linear in what stands there instead; with more columns of y than ends the
    least squares solution is the wrapped codes themselves, and they must be integers within the bits.
    """
    s, other = (scene.a, scene.b) if which == 0 else (scene.b, scene.a)
    if s.s is None or s.code.kind != "integer":
        return None
    ends = (s.values == s.code.max) | (s.values == s.code.min)
    error = scene.y - scene.prediction if which == 0 else (scene.y - scene.prediction).T
    weights, codes, free, (low, high) = value_of(other), s.values.copy(), 0, _range(s)
    wrong = ~scene.within(scene.prediction, scene.limit)
    for row in np.flatnonzero(wrong.any(axis=1 - which)):
        at = np.flatnonzero(ends[row])
        parts = weights[:, at] * s.grid[s.tiles[row], at // s.c]
        usable = np.isfinite(error[row]) & np.isfinite(parts).all(axis=1)
        if not 0 < len(at) < usable.sum():
            return None
        moved, *_ = np.linalg.lstsq(parts[usable], error[row][usable], rcond=None)
        exact = s.values[row, at] + moved
        whole = np.rint(exact)
        if np.abs(exact - whole).max() > WHOLE or whole.min() < low or whole.max() > high:
            return None
        codes[row, at] = whole
        free += len(at)
    a, b = (s.with_values(codes), other) if which == 0 else (other, s.with_values(codes))
    words = f"codes of {s.name} beyond the range wrapped around"
    return with_codes("no-saturation", words, a, b, free) if free else None


def wrapped_somewhere(scene: Scene) -> tuple[str, float] | None:
    """Words for the operand whose end codes wrapped by unknown amounts, and the part of the error left.

    Wrapped codes lie far on the other side of zero, most of them near the other end; so the error goes
    with what wrapping by one would make, only smaller.
    """
    best: tuple[str, float] | None = None
    for read in (_wrapped, _wrapped_both):
        for mistake in _misread(scene, "no-saturation", "codes of {} that wrapped around", read):
            share, like = scene.resemblance(mistake.replay.y)
            left = 1 - like**2
            if 0.3 < share < 1.1 and left < UNKNOWN and (best is None or left < best[1]):
                best = mistake.words, left
    return best


def unsaturated(scene: Scene) -> Iterator[Tried]:
    """Results y with floats x quantized without saturation, or cut off: every code is known."""
    side, x = scene.a, scene.way.floats_of_x
    if side.s is None or x is None:
        return
    columns = np.arange(x.shape[1]) // side.c
    scale = side.grid[side.tiles][:, columns]
    v = (x[side.rows].astype(np.float32) / scale.astype(np.float32)).astype(np.float32)
    if side.code.kind == "float":
        codes = side.code.decode(side.code.encode(v, saturate=False)).astype(np.float64)
        text = "codes of x beyond the range became NaN or infinite"
        yield with_codes("no-saturation", text, side.with_values(codes), scene.b)
        return
    zero = 0.0 if side.zeros is None else side.zeros[side.tiles][:, columns]
    low, high = _range(side)
    wrapped = (np.rint(v).astype(np.float64) + zero - low) % (high - low + 1) + low
    text = "codes of x beyond the range wrapped around"
    yield with_codes("no-saturation", text, side.with_values(wrapped), scene.b)
    cut = np.clip(np.trunc(v).astype(np.float64) + zero, side.code.min, side.code.max)
    text = "codes of x cut off instead of rounded"
    yield with_codes("activation-rounding", text, side.with_values(cut), scene.b)


# --- sums of integers ----------------------------------------------------------------------------------

STEP = 32  # products that a tensor core adds at a time, in FP8
KEPT = 13  # bits after the leading one that a tensor core keeps of a sum
PROMOTED = 128  # products after which a right kernel goes over to float32
PRODUCTS = 1 << 22  # most products of a scene that are examined one by one
PLACES = 8  # rows and columns by which a tail is found
RUNS = (32, 64, 128, 16, 256, 512)


def sums(scene: Scene) -> Iterator[Tried]:
    """Results y with each mistake in sums."""
    if scene.a.s is not None and scene.a.code.kind == "integer":
        yield from _overflown(scene)
    yield from truncated(scene)
    yield from _tails(scene)
    parts = scene.terms.parts
    if 2 <= len(parts) <= 512:
        total = np.zeros(scene.y.shape)
        for part in parts:
            total = half(total + half(part))
        replay = Replay(total, lambda: scene.limit)
        yield Mistake("f16-accumulation", "sums over groups are kept in halves", replay)


def _overflown(scene: Scene) -> Iterator[Tried]:
    """Results y whose integer sums (or products) wrap or saturate at 32, 16 or 8 bits."""
    group, right = grouped(scene.a, scene.b), scene.terms.right
    plain = [scene.a.values, scene.b.values]
    less = [less_zeros(s) for s in (scene.a, scene.b)]
    asymmetric = any(s.zeros is not None for s in (scene.a, scene.b))
    lengths = [group, *(n for n in RUNS if n < group and group % n == 0), 2, 4, 1]
    for length in dict.fromkeys(n for n in lengths if group % n == 0):
        if length < 16 and plain[0].shape[1] * scene.y.size > PRODUCTS:
            continue
        starts = np.arange(0, len(right) * (group // length), group // length)
        for zero, (a, b) in (("", less), (", before zero points are taken off", plain))[: 1 + asymmetric]:
            of_runs = dots(a, b, length)
            for bits in (32, 16, 8):
                for how, cut in _cut(of_runs, 2.0**bits):
                    inner = np.add.reduceat(cut - of_runs, starts[starts < len(cut)], axis=0) + right
                    what = f"sums of {length} products {how} at {bits} bits{zero}"
                    yield with_scales(scene.terms, "sum-overflow", what, inner=inner)


def _cut(of_runs: Wide, span: float) -> Iterator[tuple[str, Wide]]:
    if of_runs.size and np.abs(of_runs).max() >= span / 2:
        yield "wrap", (of_runs + span / 2) % span - span / 2
        if of_runs.min() >= 0:
            yield "wrap, unsigned,", of_runs % span
        yield "end", np.clip(of_runs, -span / 2, span / 2 - 1)


# --- sums of floats ------------------------------------------------------------------------------------


def truncated(scene: Scene) -> Iterator[Tried]:
    """Results y of FP8 sums in Hopper's tensor cores that are not promoted to float32 every 128 products."""
    group = grouped(scene.a, scene.b)
    length = 2 * PROMOTED
    while scene.in_floats and group > PROMOTED and length < 2 * group:
        promote = min(length, group)
        inner = _kept_in_few_bits(scene, promote, _sum_cut)
        text = f"sums of {promote} products keep {KEPT + 1} bits, cut off every {STEP}"
        yield with_scales(scene.terms, "no-promotion", text, inner=inner)
        length *= 2


def cut_otherwise(scene: Scene) -> Iterator[Tried]:
    """The result y if products are cut off too, to the bits of the largest number in their step."""
    group = grouped(scene.a, scene.b)
    if scene.in_floats and group > PROMOTED and scene.y.size * scene.a.values.shape[1] <= PRODUCTS:
        inner = _kept_in_few_bits(scene, group, _products_cut)
        text = f"products and sums of {group} keep {KEPT + 1} bits of the largest of {STEP}"
        yield with_scales(scene.terms, "no-promotion", text, inner=inner)


def _sum_cut(total: Wide, a: Wide, b: Wide) -> Wide:
    mantissa, exponent = np.frexp(total + a @ b.T)
    cut: Wide = np.ldexp(np.trunc(np.ldexp(mantissa, KEPT + 1)), exponent - KEPT - 1)
    return cut


def _products_cut(total: Wide, a: Wide, b: Wide) -> Wide:
    parts = np.concatenate([a[:, None] * b[None], total[..., None]], axis=-1)
    unit = np.ldexp(1.0, np.frexp(np.abs(parts).max(axis=-1))[1] - KEPT - 1)[..., None]
    cut: Wide = (np.trunc(parts / unit) * unit).sum(axis=-1)
    return cut


def _kept_in_few_bits(scene: Scene, promote: int, cut: Callable[[Wide, Wide, Wide], Wide]) -> Wide:
    """The sums of each group [G, M, N], cut off at every step, and promoted after ``promote`` products."""
    a, b = scene.a.values, scene.b.values
    group, k = grouped(scene.a, scene.b), a.shape[1]
    of_groups = np.zeros_like(scene.terms.dots)
    for g in range(len(of_groups)):
        for start in range(g * group, min(g * group + group, k), promote):
            stop, total = min(start + promote, g * group + group, k), np.zeros(scene.y.shape)
            for at in range(start, stop, STEP):
                part = slice(at, min(at + STEP, stop))
                total = cut(total, a[:, part], b[:, part])
            of_groups[g] += total
    return of_groups


def truncation_limit(scene: Scene, promote: int = PROMOTED) -> Wide:
    """The limit of errors of sums that are cut off at every step, but promoted after ``promote`` products."""
    a, b = scene.terms.scales
    magnitude: Wide = np.einsum("gmn,mg,ng->mn", scene.terms.magnitudes, np.abs(a), np.abs(b))
    return 2.0**-KEPT * magnitude * (1 + -(-promote // STEP) / 2)


# --- the end of K --------------------------------------------------------------------------------


def _tails(scene: Scene) -> Iterator[Tried]:
    """Results y without the last t columns of K, for the three t that fit best on a few elements."""
    a, b = value_of(scene.a), value_of(scene.b)
    k = a.shape[1]
    rows, columns = (evenly_spaced(n, PLACES) for n in scene.y.shape)
    if not (k > 1 and len(rows) and len(columns)):
        return
    at = np.ix_(rows, columns)
    error, size = (scene.y - scene.prediction)[at], scene.size[at]
    products = a[rows][:, None] * b[columns][None]
    ends = np.cumsum(products[..., ::-1], axis=-1)  # of the last 1, 2, 3 … columns
    left = np.minimum(((error[..., None] + ends) / size[..., None]) ** 2, 1e6)
    by_length = np.nan_to_num(left, nan=1e6)[..., :-1].mean(axis=(0, 1))
    for t in (int(i) + 1 for i in np.argsort(by_length, kind="stable")[:3]):
        y = scene.prediction - a[:, k - t :] @ b[:, k - t :].T
        text = f"the last {t} of {k} columns of K are left out"
        yield Mistake("k-tail-dropped", text, Replay(y, lambda: scene.limit), free=1)
