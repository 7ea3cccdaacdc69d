"""Mistakes in scales and zero points of scaled arrays that the doctor imitates, by other parts of the Terms.

Scales are left out, taken from another row or group, or read transposed; of the zero points' identity

    Σ (qa - za)(qb - zb)  =  Σ qa·qb  -  za·Σqb  -  zb·Σqa  +  n·za·zb

a term is left out, negated, or made with another sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..findings import Mistake
from ..numbers import Index, Wide
from .scene import Scene
from .terms import Side, Terms


class Replay(NamedTuple):
    """The result y with a mistake in it."""

    y: Wide
    limit: Callable[[], Wide]  # how far float32 sums may be from it


Tried = Mistake[Replay]


def with_scales(
    t: Terms, fault: str, words: str, a: Wide | None = None, b: Wide | None = None, inner: Wide | None = None
) -> Tried:
    """The mistake of other scales, or of other sums under the scales, with its y."""
    y = t.product(inner, a, b)
    return Mistake(fault, words, Replay(y, lambda: t.limit(y, a, b)))


LENGTHS = (16, 32, 64, 128, 256, 512)  # of groups and tiles that kernels take for granted
FUNCTIONS: tuple[tuple[str, str, Callable[[Wide], Wide]], ...] = (
    ("scale-missing", "without its scales", np.ones_like),
    ("scale-inverse", "divided by its scales", np.reciprocal),
    ("scale-twice", "with its scales used twice", np.square),
)


def mistakes(scene: Scene) -> Iterator[Tried]:
    """Results y with each mistake in scales, the plainest first, as the first of two alike is named."""
    t = scene.terms
    for fault, text, function in FUNCTIONS:
        other = [function(scale) for scale in t.scales]
        for i, s in _sides(scene):
            yield _one(scene, fault, f"{s.name} {text}", i, other[i])
        yield with_scales(t, fault, f"x and w {text.replace('its', 'their')}", other[0], other[1])
    yield from _elsewhere(scene, "scale-once", 1, _first_or_last)
    yield from _elsewhere(scene, "scale-neighbour", 1, _other_groups)
    if len(t.starts) > 1:  # each scale multiplies the sum of all groups so far
        a, b = (np.asarray(np.cumprod(s[:, ::-1], axis=1)[:, ::-1], np.float64) for s in t.scales)
        yield with_scales(t, "scale-once", "the sum so far multiplied with the scales of each group", a, b)
    yield from _elsewhere(scene, "scale-rows", 0, _other_rows)
    for i, s in _sides(scene):
        if min(s.grid.shape) > 1:
            for variant, scale in _turned(s.grid, s.tiles, s.columns(t.starts)):
                yield _one(scene, "scale-transposed", f"{s.name}: {variant}", i, scale)
    yield from _exchanged(scene)


def _sides(scene: Scene) -> tuple[tuple[int, Side], ...]:
    return tuple((i, s) for i, s in enumerate((scene.a, scene.b)) if s.s is not None)


def _one(scene: Scene, fault: str, words: str, side: int, scale: Wide, zeros: Wide | None = None) -> Tried:
    """Other scales of one side, and other zero points where some are passed."""
    t, inner = scene.terms, None
    if zeros is not None:
        inner = replace(t, zeros=(zeros, t.zeros[1]) if side == 0 else (t.zeros[0], zeros)).inner()
    a, b = (scale, None) if side == 0 else (None, scale)
    return with_scales(t, fault, words, a, b, inner)


# --- of other rows and groups ------------------------------------------------------------------

Indices = Callable[[Side, int, Index, int], Iterator[tuple[str, Index]]]
# a side, the rows or columns of its scales, the groups of K, and the length of the other side's groups


def _elsewhere(scene: Scene, fault: str, axis: int, indices: Indices) -> Iterator[Tried]:
    """Results y with scales of other places along an axis of x, of w, and along K of both."""
    t = scene.terms
    by_words: dict[str, dict[int, Wide]] = {}
    for i, s in _sides(scene):
        n, right = s.grid.shape[axis], (s.tiles, s.columns(t.starts))
        if n < 2:
            continue
        seen = {right[axis].tobytes()}
        for variant, index in indices(s, n, t.starts, (scene.b if i == 0 else scene.a).c):
            alone = fault == "scale-neighbour" and (index == index[0]).all()  # that is one scale for all
            if index.tobytes() in seen or alone:
                continue
            seen.add(index.tobytes())
            rows, columns = (index, right[1]) if axis == 0 else (right[0], index)
            scale, words = _at(s.grid, rows, columns), f"{s.name}: {variant}"
            by_words.setdefault(variant, {})[i] = scale
            yield _one(scene, fault, words, i, scale)
            if s.zeros is not None:
                zeros = _at(s.zeros, rows, columns)
                yield _one(scene, fault, f"{words}, zero points too", i, scale, zeros)
    for variant, both in by_words.items():
        if axis == 1 and len(both) == 2:
            yield with_scales(t, fault, f"x and w: {variant}", both[0], both[1])


def _at(grid: Wide, rows: Index, columns: Index) -> Wide:
    """Values at some places; the place behind the last row or column holds zero."""
    padded = np.zeros((grid.shape[0] + 1, grid.shape[1] + 1))
    padded[:-1, :-1] = grid
    return padded[np.ix_(rows, columns)]


def _first_or_last(s: Side, n: int, starts: Index, other: int) -> Iterator[tuple[str, Index]]:
    yield "the scale of the first group for all of K", starts * 0
    yield "the scale of the last group for all of K", starts * 0 + n - 1


GROUP_STEPS = ((1, "the scale of the next group"), (-1, "the scale of the group before"))


def _other_groups(s: Side, n: int, starts: Index, other: int) -> Iterator[tuple[str, Index]]:
    right = starts // s.c
    for step, name in GROUP_STEPS:
        yield f"{name}, ends kept", np.clip(right + step, 0, n - 1)
        yield f"{name}, around", (right + step) % n
    yield "scales of the groups in reverse", n - 1 - right
    yield "the last group under the scale before it", np.minimum(right, n - 2)
    for length in dict.fromkeys((other, 2 * s.c, s.c // 2, *LENGTHS)):
        if length and length != s.c:
            yield f"the scale k // {length}, ends kept", np.clip(starts // length, 0, n - 1)
            yield f"the scale k // {length}, around", starts // length % n


def beyond(scene: Scene) -> Iterator[Tried]:
    """Results y with the scale of a neighbouring group, 0 at the end; they may look like a tail left out."""

    def neighbours(s: Side, n: int, starts: Index, other: int) -> Iterator[tuple[str, Index]]:
        for step, name in GROUP_STEPS:
            at = starts // s.c + step
            yield f"{name}, zero beyond the ends", np.where((at >= 0) & (at < n), at, n)

    yield from _elsewhere(scene, "scale-neighbour", 1, neighbours)


def _other_rows(s: Side, n: int, starts: Index, other: int) -> Iterator[tuple[str, Index]]:
    right, i = s.tiles, s.rows
    yield "row i under scale i, ends kept", np.minimum(i, n - 1)
    yield "row i under scale i, around", i % n
    yield "row i under scale i, zero beyond the end", np.minimum(i, n)
    yield "all rows under the scales of the first", right * 0
    yield "all rows under the scales of the last", right * 0 + n - 1
    for step, name in ((1, "the next"), (-1, "the one before")):
        yield f"rows under the scales of {name}, ends kept", np.clip(right + step, 0, n - 1)
        yield f"rows under the scales of {name}, around", (right + step) % n
    yield "row i under scale i % r", np.minimum(i % s.r, n - 1)
    for length in dict.fromkeys((2 * s.r, s.r // 2, 2, 4, 8, *LENGTHS)):
        if length:
            yield f"row i under scale i // {length}, ends kept", np.minimum(i // length, n - 1)
            yield f"row i under scale i // {length}, around", i // length % n


# --- transposed ----------------------------------------------------------------------------------


def _turned(grid: Wide, rows: Index, columns: Index) -> Iterator[tuple[str, Wide]]:
    """Scales as a kernel reads them that takes rows for columns."""
    n, m = grid.shape
    i, j = np.meshgrid(rows, columns, indexing="ij")
    yield "scale (i, j) read at (j, i)", grid[np.minimum(j, n - 1), np.minimum(i, m - 1)]
    yield "scale (i, j) read at (j, i), around", grid[j % n, i % m]
    for high in dict.fromkeys((n, -(-n // 4) * 4)):
        padded = np.zeros((m, high))
        padded[:, :n] = grid.T
        down, along = padded.reshape(-1), grid.reshape(-1)
        how = f", columns of {high}" if high != n else ""
        yield f"memory that runs down columns read along rows{how}", down[i * m + j]
        at = np.minimum(j * high + i, along.size - 1)
        yield f"memory that runs along rows read down columns{how}", along[at]


def _exchanged(scene: Scene) -> Iterator[Tried]:
    """Results y with scales of x taken along N, and those of w along M."""
    t, a, b = scene.terms, scene.a, scene.b
    if a.s is None or (len(a.grid) < 2 and len(b.grid) < 2):
        return
    for name, fold in (("ends kept", np.minimum), ("around", lambda i, last: i % (last + 1))):
        x_scales = a.grid[np.ix_(fold(b.rows // a.r, len(a.grid) - 1), a.columns(t.starts))]
        w_scales = b.grid[np.ix_(fold(a.rows // b.r, len(b.grid) - 1), b.columns(t.starts))]
        y = np.einsum("gmn,ng,mg->mn", t.right, x_scales, w_scales)
        variant = f"scales of x along the columns of y, those of w along its rows, {name}"
        limit = t.limit(y) + 1e-6 * np.abs(y)
        yield Mistake("scale-transposed", variant, Replay(y, limit.copy))


# --- zero points ---------------------------------------------------------------------------------

MISSING, SIGN, TWICE = "zero-missing", "zero-sign", "zero-twice"
FACTORS: tuple[tuple[str, str, tuple[float, float, float]], ...] = (  # of za·Σqb, zb·Σqa and n·za·zb
    (MISSING, "the zero point of x is never taken off", (0, 1, 0)),
    (MISSING, "the term za·Σqb is absent", (0, 1, 1)),
    (MISSING, "the zero point of w is never taken off", (1, 0, 0)),
    (MISSING, "the term zb·Σqa is absent", (1, 0, 1)),
    (MISSING, "no zero point is taken off", (0, 0, 0)),
    (MISSING, "the terms za·Σqb and zb·Σqa are absent", (0, 0, 1)),
    (MISSING, "the term n·za·zb is absent", (1, 1, 0)),
    (SIGN, "the zero point of x is added", (-1, 1, -1)),
    (SIGN, "za·Σqb is added", (-1, 1, 1)),
    (SIGN, "the zero point of w is added", (1, -1, -1)),
    (SIGN, "zb·Σqa is added", (1, -1, 1)),
    (SIGN, "both zero points are added", (-1, -1, 1)),
    (SIGN, "n·za·zb is taken off", (1, 1, -1)),
    (SIGN, "all three terms have the other sign", (-1, -1, -1)),
    (TWICE, "the zero point of x is taken off twice", (2, 1, 2)),
    (TWICE, "the zero point of w is taken off twice", (1, 2, 2)),
    (TWICE, "both zero points are taken off twice", (2, 2, 4)),
)


def zero_points(scene: Scene) -> Iterator[Tried]:
    """Results y with each mistake in zero points."""
    t = scene.terms
    present = [bool(term is not None and np.any(term)) for term in t.corrections]
    if not any(present):
        return
    seen = set()
    for fault, variant, factors in FACTORS:
        shown = tuple(f for f, here in zip(factors, present, strict=True) if here)
        if shown not in seen and any(f != 1 for f in shown):
            seen.add(shown)
            yield with_scales(t, fault, variant, inner=t.inner(factors))
    (za, zb), (sum_a, sum_b) = t.zeros, t.sums
    first, second, both = (0.0 if term is None else term for term in t.corrections)
    first_wrong = 0.0 if za is None else (za * sum_a).T[:, :, None]
    second_wrong = 0.0 if zb is None else (zb * sum_b).T[:, None]
    for variant, a, b, possible in (  # the sum of the codes of its own operand
        ("za·Σqa in the place of za·Σqb", first_wrong, second, za is not None),
        ("zb·Σqb in the place of zb·Σqa", first, second_wrong, zb is not None),
        ("each zero point times the sum of its own operand", first_wrong, second_wrong,
         za is not None and zb is not None),
    ):  # fmt: skip
        if possible:
            yield with_scales(t, "zero-other-sum", variant, inner=t.dots - a - b + both)
