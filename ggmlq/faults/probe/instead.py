"""The probe's sentences on wrong weights: from which row, element, scale or code the kernel makes them.

Weights are [N, places] in float64. A scale and a constant are fitted to each group: a kernel's weights are
scale·stored - constant, and both may come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..blocks.operand import Operand
from ..moved import sources
from ..numbers import Index, Mask, Wide
from .patterns import groups

MOST = 0.98  # of the wrong weights that a sentence must explain
CLOSE = 2e-3  # relatively
FEW = 4  # examples
WHOLE = 0.02  # how far a code that was read may be from an integer
SLIPS = 0.05  # squared distance of codes to a place, for columns that are the same


class Compared(NamedTuple):
    """Weights as the kernel uses them beside the right ones."""

    used: Wide
    right: Wide
    wrong: Mask
    limit: Wide

    def explained(self, other: Wide) -> bool:
        """True if nearly all wrong weights equal those of ``other``."""
        near = np.abs(self.used - other) <= np.maximum(self.limit, CLOSE * np.abs(other))
        return bool(near[self.wrong].mean() >= MOST)


def sentences(c: Compared, w: Operand | None, places: Index, block: int) -> Iterator[str]:
    """Sentences about the wrong weights, the surest first."""
    simple = _zero(c) or _factor(c) or _rows(c) or _columns(c, places)
    if simple:
        yield simple
        return
    if w is not None and w.values is None:
        groups_seen = places[:: w.group] // w.group  # whole blocks, so whole groups
        w = w.but(stored=w.stored[:, places], scale=w.scale[:, groups_seen], offset=w.offset[:, groups_seen])
        fitted = list(_by_group(c, w, block // w.group))
        yield from fitted
        if fitted:
            return
        codes = _codes(c, w, block)
        if codes:
            yield codes
            return
    about = _about(c)
    if about:
        yield about


def _zero(c: Compared) -> str | None:
    return "They are zero: nothing is multiplied there." if c.explained(np.zeros_like(c.used)) else None


def _factor(c: Compared) -> str | None:
    """A sentence about one factor for all."""
    big = c.wrong & (np.abs(c.right) > np.median(np.abs(c.right[c.wrong])))
    if not big.any():
        return None
    factor = float(np.median(c.used[big] / c.right[big]))
    if not np.isfinite(factor) or abs(factor - 1) < 1e-5 or not c.explained(factor * c.right):
        return None
    spread = np.abs(c.used[big] / c.right[big] / factor - 1).max()
    return f"They are {factor:.5g} times the right ones." if spread < 1e-4 else None


def _rows(c: Compared) -> str | None:
    """Weights of another row at the same places of K."""
    moved = _elsewhere(c.used.T, c.right.T, c.wrong.T, 1)
    if moved is None or not c.explained(moved[2].T):
        return None
    at, source, _ = moved
    steps = np.unique(source - at)
    if len(steps) == 1:
        return f"They are those of row n{steps[0]:+d}."
    shown = ", ".join(f"row {a} has those of row {s}" for a, s in list(zip(at, source, strict=True))[:FEW])
    return f"They are those of other rows: {shown}{' …' if len(at) > FEW else ''}."


def _columns(c: Compared, places: Index) -> str | None:
    """Weights of another place in K of their row."""
    moved = _elsewhere(c.used, c.right, c.wrong, 2)  # one row matches by chance
    if moved is None or not c.explained(moved[2]):
        return None
    at, source = places[moved[0]], places[moved[1]]
    steps = np.unique(source - at)
    if len(steps) == 1:
        return f"They are those of element k{steps[0]:+d} of the same row."
    shown = ", ".join(f"k = {a} has that of {s}" for a, s in list(zip(at, source, strict=True))[:FEW])
    return f"They are those of other elements of K: {shown} …."


def _elsewhere(used: Wide, right: Wide, wrong: Mask, least: int) -> tuple[Index, Index, Wide] | None:
    """Wrong columns, the columns they are nearest to, and the weights with these; None if unsure."""
    at, use = np.flatnonzero(wrong.any(axis=0)), np.flatnonzero(wrong.any(axis=1))
    source = sources(used[np.ix_(use, at)], right[use], np.abs(right[use]) + 1e-30)
    if len(use) < least or right.shape[1] < 2 or (source == at).any():
        return None
    other = right.copy()
    other[:, at] = right[:, source]
    return at, source, other


# --- scales and constants -------------------------------------------------------------------


def _by_group(c: Compared, w: Operand, groups_of_block: int) -> Iterator[str]:
    """Sentences on a wrong scale or a wrong constant: both are fitted to the codes of each group."""
    n = len(c.used)
    used, stored = (a.reshape(n, -1, w.group) for a in (c.used, w.stored))
    middle = stored.mean(axis=-1, keepdims=True)
    spread = ((stored - middle) ** 2).sum(axis=-1)
    usable = spread > 0
    scale = ((stored - middle) * (used - used.mean(axis=-1, keepdims=True))).sum(axis=-1) / np.where(
        usable, spread, 1
    )
    constant = scale * middle[..., 0] - used.mean(axis=-1)
    left = np.abs(used - (scale[..., None] * stored - constant[..., None])).max(axis=-1)
    size = np.abs(scale) * np.abs(stored).max(axis=-1) + np.abs(constant) + 1e-30
    linear = left <= 1e-4 * size
    wrong = c.wrong.reshape(used.shape).any(axis=-1)
    if not (linear & usable)[wrong].mean() >= MOST:
        return  # codes are wrong
    right_constant = w.zero * w.scale + w.offset
    for name, terms, fit, right in (
        ("scale", "codes", scale, w.scale), ("constant", "sums", constant, right_constant),
    ):  # fmt: skip
        off = (
            (np.abs(fit - right) > 1e-4 * size / np.maximum(np.abs(stored).max(axis=-1), 1)) & usable & wrong
        )
        if name == "constant":
            off = (np.abs(fit - right) > 1e-4 * size) & usable & wrong
        if off.any():
            yield _mixed(name, terms, fit, right, off, groups_of_block)


def _mixed(name: str, terms: str, fit: Wide, right: Wide, off: Mask, count: int) -> str:
    """The sentence on groups with a wrong scale (or constant), and of which groups theirs is made."""
    used, source = fit.reshape(-1, count), right.reshape(-1, count)
    bad: Any = off.reshape(-1, count).any(axis=0)
    head = f"The {name}s that the {terms} are multiplied with are wrong"
    head += f" in {groups(bad)} of each {count}" if count > 1 else ""
    mixture, *_ = np.linalg.lstsq(source, used, rcond=None)
    left = np.abs(used - source @ mixture).max() / max(np.abs(used).max(), 1e-30)
    weights = np.rint(mixture).astype(int)
    if count > 1 and len(source) > 2 * count and left < 1e-3 and np.abs(mixture - weights).max() < 0.02:
        words = [f"{g} has {_sum_of(weights[:, g])}" for g in np.flatnonzero(bad)]
        return f"{head}: group {', '.join(words[:8])}."
    return f"{head}{_ratio(used[:, bad], source[:, bad])}."


def _sum_of(weights: Index) -> str:
    """Words for a sum of groups: ``that of 4``, ``twice that of 0``, ``those of 0 and 4``, ``none``."""
    at = np.flatnonzero(weights)
    if not len(at):
        return "none"
    if (weights[at] == 1).all():
        return f"that of {at[0]}" if len(at) == 1 else f"those of {' and '.join(map(str, at[:FEW]))}"
    times = {1: "", 2: "twice ", -1: "minus "}
    words = [f"{times.get(int(weights[i]), f'{weights[i]} times ')}that of {i}" for i in at[:FEW]]
    return " and ".join(words)


def _ratio(used: Wide, right: Wide) -> str:
    """Words for the ratio of wrong scales (or constants) to right ones."""
    use = right != 0
    ratio = used[use] / right[use]
    if not ratio.size:
        return ""
    if np.abs(ratio - 1).max() < 0.02:
        return f", by up to {np.abs(ratio - 1).max():.1%}"
    if np.ptp(ratio) < 1e-3:
        return f": {np.median(ratio):.4g} times the right ones"
    n, g = (int(i) for i in np.argwhere(use)[0])
    return f": {used[n, g]:.5g} where {right[n, g]:.5g} is right"


# --- codes ----------------------------------------------------------------------------------


def _codes(c: Compared, w: Operand, block: int) -> str | None:
    """The sentence on wrong codes under right scales: of another row or element, or off by a number."""
    scale = w.scale.repeat(w.group, axis=1)
    constant = (w.zero * w.scale + w.offset).repeat(w.group, axis=1)
    use = c.wrong & (scale != 0)
    codes = np.divide(c.used + constant, scale, out=w.stored.copy(), where=scale != 0)
    if not use.any() or not (np.abs(codes - np.rint(codes))[use] < WHOLE).mean() >= MOST:
        return None
    taken, head = np.rint(codes), "The scales are right, the codes are others"
    rows, seen = np.flatnonzero(use.any(axis=1)), scale != 0  # a scale of 0 hides its codes
    columns = seen.all(axis=0)
    source = _equal(taken[rows][:, columns].T, w.stored[:, columns].T)
    if source is not None and (source != rows).all():
        return f"{head}: {_moved('row', rows, source, 'n')}."
    blocks = seen.reshape(-1, block).all(axis=1)
    source = _equal(*(a.reshape(-1, block)[blocks] for a in (taken, w.stored)))
    if source is not None:
        at = np.flatnonzero(source != np.arange(block))
        return f"{head}: {_moved('element', at, source[at], 'i')} of its block."
    steps, counts = np.unique((taken - w.stored)[use], return_counts=True)
    likely = np.argsort(-counts)[:FEW]
    if counts[likely].sum() >= MOST * counts.sum():
        return f"{head}, off by {', '.join(f'{int(step):+d}' for step in sorted(steps[likely]))}."
    return f"{head}."


def _equal(taken: Wide, stored: Wide) -> Index | None:
    """The column with the same codes, for each column; None where one has none."""
    if not taken.size:
        return None
    distance = (taken**2).sum(axis=0)[:, None] - 2 * taken.T @ stored + (stored**2).sum(axis=0)
    source: Index = distance.argmin(axis=1)
    near = np.take_along_axis(distance, source[:, None], axis=1)[:, 0]
    return source if (near <= SLIPS * len(taken)).all() else None


def _moved(name: str, at: Index, source: Index, letter: str) -> str:
    """Words for places that have the codes of others."""
    steps = np.unique(source - at)
    if len(steps) == 1:
        return f"those of {name} {letter}{steps[0]:+d}"
    shown = [f"{a} has that of {s}" for a, s in list(zip(at.tolist(), source.tolist(), strict=True))[:FEW]]
    return f"{name} {', '.join(shown)}{' …' if len(at) > FEW else ''}"


def _about(c: Compared) -> str | None:
    """A sentence about the size of the error."""
    use = c.wrong & (c.right != 0)
    if not use.any():
        return None
    relative = np.abs(c.used[use] / c.right[use] - 1)
    if relative.max() < 0.02:
        return f"They are off by up to {relative.max():.2%}: something is rounded."
    rows, columns = np.argwhere(c.wrong)[0]
    used, right = c.used[rows, columns], c.right[rows, columns]
    return f"The first, of row {rows}, is {used:.6g} and not {right:.6g}."
