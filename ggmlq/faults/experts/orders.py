"""Causes that the doctor finds for wrong lines of experts: ids read in another order, or edges of tiles."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..numbers import Index, Mask
from .inputs import Lines

AGREE = 0.98  # of the lines that a way of reading says anything about
TILES = (128, 64, 48, 32, 24, 16, 12, 8, 6, 4, 2)
ANY = -1  # what lies beyond the ids is not known


def readings(ids: Index, experts: int) -> Iterator[tuple[str, Index]]:
    """Each wrong way to read ids, with the expert that each line then gets."""
    (t, u), flat = ids.shape, ids.reshape(-1)
    token, use = (part.reshape(-1) for part in np.indices((t, u)))
    yield "they are read as [U, T]: ids[u·T + t]", flat[use * t + token]
    for stride in range(max(2 * u, experts) + 1):
        if stride == u:
            continue
        at = token * stride + use
        for beyond, which in (("", np.where(at < flat.size, flat[at % flat.size], ANY)),
                              (", around the end", flat[at % flat.size]),
                              (", up to the last", flat[np.minimum(at, flat.size - 1)])):  # fmt: skip
            yield f"the stride between tokens is {stride} in place of {u}{beyond}", which
    line = np.arange(flat.size)
    for name, at in (
        ("the first of each token is read for all", token * u),
        ("one further", line + 1),
        ("one before", line - 1),
        ("each token from its last", token * u + u - 1 - use),
        ("from the last token", (t - 1 - token) * u + use),
    ):
        inside = (at >= 0) & (at < flat.size)
        yield name, np.where(inside, flat[at % flat.size], ANY)
        yield f"{name}, around the end", flat[at % flat.size]
    yield "64-bit ids are read as 32: every other is 0", np.where(line % 2, 0, flat[line // 2])
    yield (
        "32-bit ids are read as 64: every second one is skipped",
        np.where(2 * line < flat.size, flat[(2 * line) % flat.size], ANY),
    )


def misread_ids(g: Lines, met: Index, bad: Mask) -> str | None:
    """The way of reading ids that explains which experts lines met (-1: unknown), if one does."""
    right = g.experts
    best: tuple[float, str] | None = None
    for name, which in readings(g.ids, len(g.q)):
        known = (which != ANY) & (met >= 0)
        wrong = known & bad & (met != right)
        if (which[known] != right[known]).sum() < 2 or wrong.sum() < max(2, 0.5 * bad.sum()):
            continue
        agree = float((which[known] == met[known]).mean())
        if agree >= AGREE and (best is None or agree > best[0]):
            best = agree, name
    return best[1] if best else None


def places(g: Lines) -> tuple[Index, Index]:
    """For each line its place in the list of its expert's lines, and the length of that list."""
    experts = g.experts
    order = np.argsort(experts, kind="stable")
    counts = np.bincount(experts, minlength=len(g.q))
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    place = np.empty(len(experts), np.intp)
    place[order] = np.arange(len(experts)) - starts[experts[order]]
    return place, counts[experts]


def at_an_edge(g: Lines, bad: Mask) -> str | None:
    """Words for the places of bad lines in their experts' lists, where a tile explains them."""
    if bad.all():
        return None
    place, count = places(g)
    if np.array_equal(bad, place == count - 1):
        return "the last of each expert"
    for tile in TILES:
        if np.array_equal(bad, place >= count // tile * tile):
            return f"what each expert has beyond whole tiles of {tile}"
    for tile in TILES:
        if np.array_equal(bad, (place >= count // tile * tile) & (count > tile)):
            return f"what each expert has beyond whole tiles of {tile}, where it has one"
    limit = int(place[bad].min(initial=1 << 30))
    if limit and np.array_equal(bad, place >= limit):
        return f"all beyond the first {limit} of each expert"
    for tile in TILES:
        for at in (tile - 1, 0):
            if np.array_equal(bad, (place % tile == at) & (place > 0)):
                return f"one row of each tile of {tile}"
    return None


def repeated(ids: Index) -> Mask:
    """Lines whose expert their token uses more than once."""
    same = ids[:, :, None] == ids[:, None, :]
    twice: Mask = same.sum(axis=2) > 1
    return twice.reshape(-1)


def once_only(ids: Index, bad: Mask) -> bool:
    """True if bad lines are of experts that a token uses more than once, and some of these uses are right."""
    twice = repeated(ids)
    if (bad & ~twice).any() or not bad.any():
        return False
    lines, u = np.flatnonzero(twice), ids.shape[1]
    pairs = np.stack([lines // u, ids.reshape(-1)[lines]], axis=1)
    _, group = np.unique(pairs, axis=0, return_inverse=True)
    wrong, all_of = np.bincount(group.reshape(-1), bad[lines]), np.bincount(group.reshape(-1))
    return bool(((wrong > 0) & (wrong < all_of)).mean() >= 0.9)
