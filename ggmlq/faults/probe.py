"""The probe of ``ggmlq check``: it feeds a kernel unit vectors, so that y is the weights that it really uses.

One-hot activations have exact codes in every arithmetic. Their value is 127, so that the scale of 8-bit
codes is 1, and block sums are exact as halves. The weights are [N, places] in float64, and come beside
those of the tensor: a kernel's weights are scale·stored - constant, and each part may come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..formats import BlockFormat
from .blocks.operand import Operand, operand
from .numbers import Index, Mask, Wide
from .places import runs_of, sources

Multiply = Callable[[NDArray[np.float32]], tuple[NDArray[np.float32], Mask]]
# activations [M, K] to y [M, N], and a mask of the elements of y that were never written

VALUE = 127.0
UNIT_VECTORS = 1024  # at most
CALLS = 512  # products, where they have few rows
WORK = 1 << 35  # multiplications

EXACT = ("ggml-cpu", "ggml-ref", "q8", "f32", "exact")  # arithmetics that keep weights as they are
NEAR, ROUGH = 1e-5, 8e-3  # of the terms: how far weights may be off in these, and in others
EXPLAINED = 0.98  # of the wrong weights that a sentence must explain
CLOSE = 2e-3  # relatively
FEW = 4  # examples
WHOLE = 0.02  # how far a code that was read may be from an integer
SLIPS = 0.05  # squared distance of codes to a place, for columns that are the same
SHOWN = 6  # ranges
PERIODS = (8, 16, 32, 64, 128, 256)


class Reading(NamedTuple):
    """Findings of unit vectors, in words and as ranges."""

    text: str
    where: dict[str, Any]


def read(multiply: Multiply, q: QuantArray, rows: int, arithmetic: str) -> Reading:
    """Facts about the weights that ``multiply`` really uses, by unit vectors, ``rows`` of them a call."""
    fmt = q.format
    block = fmt.block_size if isinstance(fmt, BlockFormat) else 32
    used, unwritten, places = _used_weights(multiply, q, rows)
    w = operand(fmt, q.blocks)
    terms = np.abs(w.scaled) + np.abs(w.dense)
    all_limits = (NEAR if arithmetic in EXACT else ROUGH) * terms + 1e-30
    right, limit = w.dense[:, places], all_limits[:, places]
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(used - right) <= limit) & ~unwritten
    if not wrong.any():
        return _in_pairs(multiply, q, rows, w.dense, all_limits, block)
    n, k = np.flatnonzero(wrong.any(axis=1)), places[wrong.any(axis=0)]
    share = f"{int(wrong.sum())} of {wrong.size} weights that it multiplies with are not those of the tensor"
    rows_wrong = along("n", n, np.arange(len(right)))
    text = f"Fed with unit vectors: {share}, {along('k', k, places)}, {rows_wrong}."
    compared = Compared(np.where(wrong, used, right), right, wrong, limit)
    if not np.isfinite(compared.used).all():
        return Reading(f"{text} Some are not finite.", {"k": k.tolist()})
    words = sentences(compared, w if isinstance(fmt, BlockFormat) else None, places, block)
    return Reading(" ".join([text, *words]), {"n": n.tolist(), "k": k.tolist()})


def _used_weights(multiply: Multiply, q: QuantArray, rows: int) -> tuple[Wide, Mask, Index]:
    """Weights [N, places] as the kernel uses them, a mask of those it never wrote, and their places in K.

    They are read by ``rows`` unit vectors a call: kernels differ by that. Of long rows both ends are read.
    """
    n, k = q.shape
    block = max(q.format.block_size, 32)
    most = min(UNIT_VECTORS, CALLS * rows, max(WORK // (n * k), 1))
    places = np.arange(k)
    if k > most:
        blocks = max(most // block, 2)
        front = min((blocks + 1) // 2 * block, k)
        places = np.union1d(places[:front], places[max(k - blocks // 2 * block, 0) :])
    weights, unwritten = np.empty((n, len(places))), np.zeros((n, len(places)), np.bool_)
    for start in range(0, len(places), rows):
        part, at = places[start : start + rows], slice(start, start + rows)
        x = np.zeros((rows, k), np.float32)
        x[np.arange(len(part)), part] = VALUE
        y, lost = multiply(x)
        weights[:, at] = y[: len(part)].T.astype(np.float64) / VALUE
        unwritten[:, at] = lost[: len(part)].T
    return weights, unwritten, places


def _in_pairs(multiply: Multiply, q: QuantArray, rows: int, right: Wide, limit: Wide, block: int) -> Reading:
    """The reading where every weight alone is right: blocks are fed in pairs."""
    alone = "Fed with unit vectors, every weight that it multiplies with is right"
    if q.shape[1] < 2 * block:
        return Reading(f"{alone}: sums of several, or the rounding of activations, go wrong.", {})
    together, columns = set(), np.zeros(q.shape[0], np.bool_)
    for pair, wrong in _wrong_pairs(multiply, q, rows, right, limit, block):
        together.add(pair)
        columns |= wrong
    if not together:
        text = f"{alone}, alone and in pairs of blocks: the rounding of activations goes wrong, or long sums."
        return Reading(text, {})
    blocks = sorted(together)
    near = all(b == a + 1 for a, b in blocks)
    shown = ", ".join(f"{a} and {b}" for a, b in blocks[:6])
    text = (
        f"{alone}; two blocks together go wrong ({'neighbours, ' if near else ''}blocks {shown}; "
        f"n {_ranges(np.flatnonzero(columns))}): what one block of {block} gave counts again in another."
    )
    return Reading(text, {"blocks": blocks})


def _wrong_pairs(
    multiply: Multiply, q: QuantArray, rows: int, weights: Wide, limit: Wide, block: int
) -> Iterator[tuple[tuple[int, int], Mask]]:
    """Blocks that go wrong together, with the mask [N] of outputs: the first 8 neighbours, and both ends.

    Of each block one activation is not zero, in each run of 32 in turn.
    """
    k = q.shape[1]
    blocks = k // block
    pairs = [(b, b + 1) for b in range(min(blocks - 1, 8))] + [(0, blocks - 1)] * (blocks > 2)
    places = [(a * block + i, b * block + i) for a, b in pairs for i in range(5 % block, block, 32)]
    for start in range(0, len(places), rows):
        part = np.array(places[start : start + rows])
        x = np.zeros((rows, k), np.float32)
        x[np.arange(len(part))[:, None], part] = VALUE
        y, lost = multiply(x)
        for (i, j), one, gone in zip(part, y[: len(part)] / VALUE, lost[: len(part)], strict=True):
            wrong = (np.abs(one - (weights[:, i] + weights[:, j])) > limit[:, i] + limit[:, j]) | gone
            if wrong.any():
                yield (int(i) // block, int(j) // block), wrong


# --- places in words --------------------------------------------------------------------------


def _ranges(places: Index) -> str:
    """Places as ranges in words: ``0 to 31, 64``."""
    runs = runs_of(places)
    words = [f"{a}" if b == a + 1 else f"{a} to {b - 1}" for a, b in runs[:SHOWN]]
    return ", ".join(words) + (" …" if len(runs) > SHOWN else "")


def along(name: str, places: Index, seen: Index) -> str:
    """Words for the wrong places along an axis, among the places ``seen``."""
    if len(places) == len(seen):
        return f"all {name}"
    wrong = np.isin(seen, places)
    for period in PERIODS:
        if period * 2 > seen.max() + 1:
            break
        rest = seen % period
        part = np.unique(rest[wrong])
        if len(part) < period and (np.isin(rest, part) == wrong).all():
            return f"{name} {_ranges(part)} of every {period}"
    return f"{name} {_ranges(places)}"


def _groups(wrong: Mask) -> str:
    """Words for the wrong groups of a super-block."""
    places = np.flatnonzero(wrong)
    if len(places) > 2 and (places % 2 == places[0] % 2).all() and len(places) == (len(wrong) + 1) // 2:
        return "odd groups" if places[0] % 2 else "even groups"
    return f"group{'s' if len(places) > 1 else ''} {_ranges(places)}"


# --- weights of other places, and one factor ----------------------------------------------------


class Compared(NamedTuple):
    """Weights as the kernel uses them beside the right ones."""

    used: Wide
    right: Wide
    wrong: Mask
    limit: Wide

    def explained(self, other: Wide) -> bool:
        """True if nearly all wrong weights equal those of ``other``."""
        near = np.abs(self.used - other) <= np.maximum(self.limit, CLOSE * np.abs(other))
        return bool(near[self.wrong].mean() >= EXPLAINED)


def sentences(c: Compared, w: Operand | None, places: Index, block: int) -> Iterator[str]:
    """Sentences about the wrong weights, the surest first."""
    simple = _factor(c) or _elsewhere(c)
    if simple is None:
        simple = _elsewhere(c, places)
    if simple:
        yield simple
        return
    if w is not None and w.values is None:
        groups_seen = places[:: w.group] // w.group  # whole blocks, so whole groups
        w = w.but(stored=w.stored[:, places], scale=w.scale[:, groups_seen], offset=w.offset[:, groups_seen])
        fitted = list(_by_group(c, w, block // w.group))
        if not fitted and (codes := _codes(c, w, block)):
            fitted = [codes]
        yield from fitted
        if fitted:
            return
    yield from _about(c)


def _factor(c: Compared) -> str | None:
    """A sentence about zeros, or about one factor for all."""
    if c.explained(np.zeros_like(c.used)):
        return "They are zero: nothing is multiplied there."
    big = c.wrong & (np.abs(c.right) > np.median(np.abs(c.right[c.wrong])))
    if not big.any():
        return None
    factor = float(np.median(c.used[big] / c.right[big]))
    if not np.isfinite(factor) or abs(factor - 1) < 1e-5 or not c.explained(factor * c.right):
        return None
    spread = np.abs(c.used[big] / c.right[big] / factor - 1).max()
    return f"They are {factor:.5g} times the right ones." if spread < 1e-4 else None


def _elsewhere(c: Compared, places: Index | None = None) -> str | None:
    """A sentence on weights of another row at the same places; with ``places`` of another place in K."""
    used, right, wrong = c[:3] if places is not None else (c.used.T, c.right.T, c.wrong.T)
    at, use = np.flatnonzero(wrong.any(axis=0)), np.flatnonzero(wrong.any(axis=1))
    source = sources(used[np.ix_(use, at)], right[use], np.abs(right[use]) + 1e-30)
    least = 1 if places is None else 2  # one row matches by chance
    if len(use) < least or right.shape[1] < 2 or (source == at).any():
        return None
    other = right.copy()
    other[:, at] = right[:, source]
    if not c.explained(other if places is not None else other.T):
        return None
    if places is not None:
        at, source = places[at], places[source]
    one, several = _moved(
        at, source, "row {} has those of row {}" if places is None else "k = {} has that of {}"
    )
    if places is None:
        return f"They are those of {f'row n{one}' if one else f'other rows: {several}'}."
    if one:
        return f"They are those of element k{one} of the same row."
    return f"They are those of other elements of K: {several.removesuffix(' …')} …."


def _moved(at: Index, source: Index, words: str) -> tuple[str, str]:
    """The distance from places to those whose values they hold, if it is one, and examples in words."""
    steps = np.unique(source - at)
    examples = ", ".join(words.format(a, s) for a, s in list(zip(at, source, strict=True))[:FEW])
    return f"{steps[0]:+d}" if len(steps) == 1 else "", examples + (" …" if len(at) > FEW else "")


# --- scales and constants -------------------------------------------------------------------


def _by_group(c: Compared, w: Operand, groups_of_block: int) -> Iterator[str]:
    """Sentences on a wrong scale or a wrong constant: both are fitted to the codes of each group."""
    n = len(c.used)
    used, stored = (a.reshape(n, -1, w.group) for a in (c.used, w.stored))
    middle = stored.mean(axis=-1, keepdims=True)
    spread = ((stored - middle) ** 2).sum(axis=-1)
    usable = spread > 0
    scale = ((stored - middle) * (used - used.mean(axis=-1, keepdims=True))).sum(axis=-1)
    scale = scale / np.where(usable, spread, 1)
    constant = scale * middle[..., 0] - used.mean(axis=-1)
    left = np.abs(used - (scale[..., None] * stored - constant[..., None])).max(axis=-1)
    largest = np.abs(stored).max(axis=-1)
    size = np.abs(scale) * largest + np.abs(constant) + 1e-30
    wrong = c.wrong.reshape(used.shape).any(axis=-1)
    if not ((left <= 1e-4 * size) & usable)[wrong].mean() >= EXPLAINED:
        return  # codes are wrong
    for name, terms, fit, right, limit in (
        ("scale", "codes", scale, w.scale, 1e-4 * size / np.maximum(largest, 1)),
        ("constant", "sums", constant, w.zero * w.scale + w.offset, 1e-4 * size),
    ):
        off = (np.abs(fit - right) > limit) & usable & wrong
        if off.any():
            yield _mixed(name, terms, fit, right, off, groups_of_block)


def _mixed(name: str, terms: str, fit: Wide, right: Wide, off: Mask, count: int) -> str:
    """The sentence on groups with a wrong scale (or constant), and of which groups theirs is made."""
    used, source = fit.reshape(-1, count), right.reshape(-1, count)
    bad: Any = off.reshape(-1, count).any(axis=0)
    head = f"The {name}s that the {terms} are multiplied with are wrong"
    head += f" in {_groups(bad)} of each {count}" if count > 1 else ""
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
    if not use.any() or not (np.abs(codes - np.rint(codes))[use] < WHOLE).mean() >= EXPLAINED:
        return None
    codes, head = np.rint(codes), "The scales are right, the codes are others"
    rows, seen = np.flatnonzero(use.any(axis=1)), scale != 0  # a scale of 0 hides its codes
    columns = seen.all(axis=0)
    source = _equal(codes[rows][:, columns].T, w.stored[:, columns].T)
    if source is not None and (source != rows).all():
        return f"{head}: {_code_places('row', rows, source, 'n')}."
    blocks = seen.reshape(-1, block).all(axis=1)
    source = _equal(*(a.reshape(-1, block)[blocks] for a in (codes, w.stored)))
    if source is not None:
        at = np.flatnonzero(source != np.arange(block))
        if not len(at):
            return None  # rounded values, whose nearest codes are right
        return f"{head}: {_code_places('element', at, source[at], 'i')} of its block."
    steps, counts = np.unique((codes - w.stored)[use], return_counts=True)
    likely = np.argsort(-counts)[:FEW]
    if counts[likely].sum() >= EXPLAINED * counts.sum():
        return f"{head}, off by {', '.join(f'{int(step):+d}' for step in sorted(steps[likely]))}."
    return f"{head}."


def _equal(codes: Wide, stored: Wide) -> Index | None:
    """The column with the same codes, for each column; None where one has none."""
    if not codes.size:
        return None
    distance = (codes**2).sum(axis=0)[:, None] - 2 * codes.T @ stored + (stored**2).sum(axis=0)
    source: Index = distance.argmin(axis=1)
    near = np.take_along_axis(distance, source[:, None], axis=1)[:, 0]
    return source if (near <= SLIPS * len(codes)).all() else None


def _code_places(name: str, at: Index, source: Index, letter: str) -> str:
    """Words for rows or elements that have the codes of others."""
    one, several = _moved(at, source, "{} has that of {}")
    return f"those of {name} {letter}{one}" if one else f"{name} {several}"


def _about(c: Compared) -> Iterator[str]:
    """A sentence about the size of the error, where it has one."""
    use = c.wrong & (c.right != 0)
    if not use.any():
        return
    relative = np.abs(c.used[use] / c.right[use] - 1)
    if relative.max() < 0.02:
        yield f"They are off by up to {relative.max():.2%}: something is rounded."
        return
    rows, columns = np.argwhere(c.wrong)[0]
    used, right = c.used[rows, columns], c.right[rows, columns]
    yield f"The first, of row {rows}, is {used:.6g} and not {right:.6g}."
