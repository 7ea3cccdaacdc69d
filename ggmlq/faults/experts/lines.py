"""The doctor's search for the row of activations and the expert that each line of y is really made of.

Products of other rows and experts are as far from a line as its own length; its own product, in whatever
arithmetic, a hundredth of that. So exact products in a few columns tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import reference
from ...arrays.scaled import ScaledArray
from ...base.devices import to_host
from ...base.indices import evenly_spaced
from ...errors import NonFiniteError, UnsupportedError
from ...ops.operands import experts
from ..frame import Results, results
from ..numbers import Index, Mask, Wide

CALL = "diagnose(y, x, q, ids=…)"


@dataclass(frozen=True, eq=False)
class Lines:
    """A result and its operands; line t·U + u is the use of the u-th expert of token t."""

    y: Wide  # [T·U, N]
    x: Any  # [R, K]: floats, or a ScaledArray
    q: Any  # [E, N, K]
    ids: Index  # [T, U]
    store: float  # relative rounding of the type that y is stored in

    @property
    def experts(self) -> NDArray[np.intp]:
        """The expert of each line."""
        return self.ids.reshape(-1).astype(np.intp)

    @property
    def rows(self) -> NDArray[np.intp]:
        """The row of x of each line."""
        count = self.ids.size
        return np.arange(count) // (count // max(len(self.x), 1) or 1)


def checked(y: Any, x: Any, q: Any, ids: Any, arithmetic: str | None, repeats: Any) -> tuple[Lines, Results]:
    """The lines and all results; errors say what does not fit."""
    scaled = isinstance(q, ScaledArray)
    if arithmetic is not None and (scaled or arithmetic not in reference.ARITHMETICS):
        known = "scaled weights have one arithmetic" if scaled else ", ".join(reference.ARITHMETICS)
        raise UnsupportedError(
            f"{CALL} with arithmetic={arithmetic!r}: a kernel may not claim that here: {known}; leave it out"
        )
    uses = experts(CALL, to_host(x), to_host(q), to_host(ids), look=True, quantize=False)
    if arithmetic is not None:
        reference.rule(q.format, arithmetic)
    rows = uses.x
    if not isinstance(rows, ScaledArray):
        rows = rows.astype(np.float32)
        if not np.isfinite(rows).all():
            raise NonFiniteError(
                f"{CALL}: x has {int((~np.isfinite(rows)).sum())} values that are not finite; activations "
                "must be finite, a product with NaN shows nothing; dump x again"
            )
    r = results(y, repeats, uses.shape, uses.ids.size)
    return Lines(r.y, rows, uses.q, uses.ids, r.store), r


COLUMNS = 24
NEAR = 0.05  # squared distance over squared length
MOST = 128  # lines for which every row is tried beside every expert
NOTHING, UNSEEN = -1, -2
AT_ONCE = 1 << 22  # distances


class Sources(NamedTuple):
    """The row and the expert of each line; NOTHING where none make it, UNSEEN where nobody looked."""

    rows: Index
    experts: Index

    @property
    def known(self) -> Mask:
        """The mask of lines for which the row and the expert are known."""
        return self.rows >= 0


class Prints:
    """Exact products of all rows with all experts, in a few columns."""

    def __init__(self, g: Lines) -> None:
        self.columns = evenly_spaced(g.q.shape[1], COLUMNS)
        e, count = len(g.q), len(self.columns)
        w = np.asarray(g.q[:, self.columns].dequantize(), np.float32).reshape(e * count, -1)
        x = g.x if isinstance(g.x, np.ndarray) else g.x.dequantize()
        self.of = (np.asarray(x, np.float32) @ w.T).reshape(len(x), e, count).astype(np.float64)
        self.y = g.y[:, self.columns]

    def far(self, lines: Any, rows: Any, experts: Any) -> Any:
        """Squared distances of lines to products, over the larger of their squared lengths."""
        p, y = self.of[rows, experts], self.y[lines]
        longer = np.maximum((p**2).sum(axis=-1), (y**2).sum(axis=-1))
        far = ((p - y) ** 2).sum(axis=-1) / np.where(longer > 0, longer, 1)
        return np.nan_to_num(np.where(longer > 0, far, 0), nan=9, posinf=9)  # nothing is near nothing

    def nearest(self, line: int, rows: range, experts: range) -> tuple[int, int, float]:
        """The nearest product of some rows with some experts: the row, the expert, and how far it is."""
        step, best = max(1, AT_ONCE // max(1, self.of[0].size)), (-1, -1, 9.0)
        for first in range(rows.start, rows.stop, step):
            part = slice(first, min(first + step, rows.stop))
            far = self.far(line, part, slice(experts.start, experts.stop))
            at = np.unravel_index(int(np.argmin(far)), far.shape)
            if far[at] < best[2]:
                best = (first + int(at[0]), experts.start + int(at[1]), float(far[at]))
        return best


def sources(g: Lines) -> Sources:
    """For each line its own row and expert if these make it, else the nearest that do."""
    prints, rows, experts = Prints(g), g.rows.copy(), g.experts.copy()
    wrong = np.flatnonzero(prints.far(np.arange(len(rows)), rows, experts) > NEAR)
    every_row, every_expert = (range(n) for n in prints.of.shape[:2])
    for other_row, other_expert in ((False, True), (True, False), (True, True)):
        if other_row and other_expert:
            rows[wrong] = experts[wrong] = UNSEEN
            wrong = wrong[evenly_spaced(len(wrong), MOST)]
        for line in wrong.tolist():
            r, e = int(g.rows[line]), int(g.experts[line])
            some = every_row if other_row else range(r, r + 1)
            r, e, far = prints.nearest(line, some, every_expert if other_expert else range(e, e + 1))
            rows[line], experts[line] = (r, e) if far <= NEAR else (NOTHING, NOTHING)
        wrong = wrong[rows[wrong] == NOTHING]
    return Sources(rows, experts)


# --- causes: ids read in another order, or edges of tiles ------------------------------------------

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


def misread_ids(g: Lines, used: Index, bad: Mask) -> str | None:
    """The way of reading ids that explains which experts lines ``used`` (-1: unknown), if one does."""
    right = g.experts
    best: tuple[float, str] | None = None
    for name, which in readings(g.ids, len(g.q)):
        known = (which != ANY) & (used >= 0)
        wrong = known & bad & (used != right)
        if (which[known] != right[known]).sum() < 2 or wrong.sum() < max(2, 0.5 * bad.sum()):
            continue
        agree = float((which[known] == used[known]).mean())
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
