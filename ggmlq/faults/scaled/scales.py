"""Mistakes in scales of scaled arrays that the doctor imitates: left out, of another row, transposed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from ..findings import Mistake
from ..numbers import Index, Wide
from .mistake import Replay, Tried, with_scales
from .scene import Scene
from .terms import Side, Terms

Indices = Callable[[Side, int, Index, int], Iterator[tuple[str, Index]]]
LENGTHS = (16, 32, 64, 128, 256, 512)  # of groups and tiles that kernels take for granted


def mistakes(scene: Scene) -> Iterator[Tried]:
    """Results y with each mistake in scales, the plainest first, as the first of two alike is named."""
    yield from _absent(scene)
    for fault, indices in (("scale-once", _first_or_last), ("scale-neighbour", _other_groups)):
        yield from _along_k(scene, fault, indices)
    yield from _running(scene)
    yield from _other_rows(scene)
    yield from _transposed(scene)
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


# --- left out, or used otherwise ---------------------------------------------------------------


def _absent(scene: Scene) -> Iterator[Tried]:
    """Results y with scales left out, inverted, or used twice."""
    changes: tuple[tuple[str, str, Callable[[Wide], Wide]], ...] = (
        ("scale-missing", "without its scales", np.ones_like),
        ("scale-inverse", "divided by its scales", np.reciprocal),
        ("scale-twice", "with its scales used twice", np.square),
    )
    for fault, text, function in changes:
        other = [function(scale) for scale in scene.terms.scales]
        for i, s in _sides(scene):
            yield _one(scene, fault, f"{s.name} {text}", i, other[i])
        yield with_scales(scene.terms, fault, f"x and w {text.replace('its', 'their')}", other[0], other[1])


def _running(scene: Scene) -> Iterator[Tried]:
    """The result y if each scale multiplies the sum of all groups so far, not only its own group's."""
    t = scene.terms
    if len(t.starts) < 2:
        return
    a, b = (np.asarray(np.cumprod(s[:, ::-1], axis=1)[:, ::-1], np.float64) for s in t.scales)
    yield with_scales(
        scene.terms, "scale-once", "the sum so far multiplied with the scales of each group", a, b
    )


# --- along K -------------------------------------------------------------------------------------


def _first_or_last(s: Side, n: int, starts: Index, other: int) -> Iterator[tuple[str, Index]]:
    yield "the scale of the first group for all of K", starts * 0
    yield "the scale of the last group for all of K", starts * 0 + n - 1


def _other_groups(s: Side, n: int, starts: Index, other: int) -> Iterator[tuple[str, Index]]:
    right = starts // s.c
    for step, name in ((1, "the scale of the next group"), (-1, "the scale of the group before")):
        yield f"{name}, ends kept", np.clip(right + step, 0, n - 1)
        yield f"{name}, around", (right + step) % n
    yield "scales of the groups in reverse", n - 1 - right
    yield "the last group under the scale before it", np.minimum(right, n - 2)
    for length in dict.fromkeys((other, 2 * s.c, s.c // 2, *LENGTHS)):
        if length and length != s.c:
            yield f"the scale k // {length}, ends kept", np.clip(starts // length, 0, n - 1)
            yield f"the scale k // {length}, around", starts // length % n


def _beyond(s: Side, n: int, starts: Index, other: int) -> Iterator[tuple[str, Index]]:
    for step, name in ((1, "the scale of the next group"), (-1, "the scale of the group before")):
        at = starts // s.c + step
        yield f"{name}, zero beyond the ends", np.where((at >= 0) & (at < n), at, n)


def beyond(scene: Scene) -> Iterator[Tried]:
    """Results y with the scale of a neighbouring group, 0 at the end; they may look like a tail left out."""
    yield from _along_k(scene, "scale-neighbour", _beyond)


def _along_k(scene: Scene, fault: str, indices: Indices) -> Iterator[Tried]:
    t = scene.terms
    by_words: dict[str, dict[int, Wide]] = {}
    for i, s in _sides(scene):
        n = s.grid.shape[1]
        if n < 2:
            continue
        seen = {(t.starts // s.c).tobytes()}
        other = (scene.b if i == 0 else scene.a).c
        for variant, index in indices(s, n, t.starts, other):
            alone = fault == "scale-neighbour" and (index == index[0]).all()  # that is one scale for all
            if index.tobytes() in seen or alone:
                continue
            seen.add(index.tobytes())
            scale = _taken(s.grid, s.tiles, index)
            by_words.setdefault(variant, {})[i] = scale
            yield _one(scene, fault, f"{s.name}: {variant}", i, scale)
            if s.zeros is not None:
                words = f"{s.name}: {variant}, zero points too"
                yield _one(scene, fault, words, i, scale, _taken(s.zeros, s.tiles, index))
    for variant, both in by_words.items():
        if len(both) == 2:
            yield with_scales(scene.terms, fault, f"x and w: {variant}", both[0], both[1])


def _taken(grid: Wide, rows: Index, columns: Index) -> Wide:
    """Values at some places; the place behind the last row or column holds zero."""
    padded = np.zeros((grid.shape[0] + 1, grid.shape[1] + 1))
    padded[:-1, :-1] = grid
    return padded[np.ix_(rows, columns)]


# --- along rows ----------------------------------------------------------------------------------


def _wrong_rows(s: Side) -> Iterator[tuple[str, Index]]:
    n, right, i = len(s.grid), s.tiles, s.rows
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


def _other_rows(scene: Scene) -> Iterator[Tried]:
    t = scene.terms
    for i, s in _sides(scene):
        if len(s.grid) < 2:
            continue
        seen = {s.tiles.tobytes()}
        for variant, index in _wrong_rows(s):
            if index.tobytes() in seen:
                continue
            seen.add(index.tobytes())
            columns = s.columns(t.starts)
            scale = _taken(s.grid, index, columns)
            yield _one(scene, "scale-rows", f"{s.name}: {variant}", i, scale)
            if s.zeros is not None:
                words = f"{s.name}: {variant}, zero points too"
                yield _one(scene, "scale-rows", words, i, scale, _taken(s.zeros, index, columns))


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


def _transposed(scene: Scene) -> Iterator[Tried]:
    fault = "scale-transposed"
    for i, s in _sides(scene):
        if min(s.grid.shape) < 2:
            continue
        for variant, scale in _turned(s.grid, s.tiles, s.columns(scene.terms.starts)):
            yield _one(scene, fault, f"{s.name}: {variant}", i, scale)


def _exchanged_limit(t: Terms, y: Wide) -> Wide:
    return t.limit(y) + 1e-6 * np.abs(y)


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
        limit = partial(_exchanged_limit, t, y)
        yield Mistake("scale-transposed", variant, Replay(y, limit))
