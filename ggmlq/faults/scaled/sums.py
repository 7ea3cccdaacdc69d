"""Mistakes in sums of scaled arrays that the doctor imitates: overflow, too few bits, a tail left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...base.indices import evenly_spaced
from ..findings import Mistake
from ..numbers import Wide, half
from .mistake import Replay, Tried, with_scales
from .scene import Scene
from .terms import dots, grouped, less_zeros, value_of

STEP = 32  # products that a tensor core adds at a time, in FP8
KEPT = 13  # bits after the leading one that a tensor core keeps of a sum
PROMOTED = 128  # products after which a right kernel goes over to float32
PRODUCTS = 1 << 22  # most products of a scene that are examined one by one
PLACES = 8  # rows and columns by which a tail is found
RUNS = (32, 64, 128, 16, 256, 512)


def mistakes(scene: Scene) -> Iterator[Tried]:
    """Results y with each mistake in sums."""
    if scene.a.s is not None and scene.a.s.code.kind == "integer":
        yield from _overflown(scene)
    yield from truncated(scene)
    yield from _tails(scene)
    yield from _halves(scene)


# --- integers ----------------------------------------------------------------------------------


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
        for zeros, (a, b) in ((True, less), (False, plain)) if asymmetric else ((True, less),):
            sums = dots(a, b, length)
            for bits in (32, 16, 8):
                for how, cut in _cut(sums, 2.0**bits):
                    inner = _by_group(cut - sums, group // length, len(right)) + right
                    what = f"sums of {length} products {how} at {bits} bits"
                    zero = ", before zero points are taken off" if not zeros else ""
                    yield with_scales(scene.terms, "sum-overflow", what + zero, inner=inner)


def _cut(sums: Wide, span: float) -> Iterator[tuple[str, Wide]]:
    if sums.size and np.abs(sums).max() >= span / 2:
        yield "wrap", (sums + span / 2) % span - span / 2
        if sums.min() >= 0:
            yield "wrap, unsigned,", sums % span
        yield "end", np.clip(sums, -span / 2, span / 2 - 1)


def _by_group(sums: Wide, count: int, groups: int) -> Wide:
    """Sums of runs, added up by group."""
    if count == 1:
        return sums[:groups]
    starts = np.arange(0, len(sums), count)
    return np.add.reduceat(sums, starts, axis=0)


# --- floats ------------------------------------------------------------------------------------


def truncated(scene: Scene) -> Iterator[Tried]:
    """Results y of FP8 sums in Hopper's tensor cores that are not promoted to float32 every 128 products."""
    group = grouped(scene.a, scene.b)
    if not scene.in_floats or group <= PROMOTED:
        return
    length = 2 * PROMOTED
    while length < 2 * group:
        promote = min(length, group)
        inner = kept_in_few_bits(scene, promote, _sum_cut)
        text = f"sums of {promote} products keep {KEPT + 1} bits, cut off every {STEP}"
        yield with_scales(scene.terms, "no-promotion", text, inner=inner)
        length *= 2


def cut_otherwise(scene: Scene) -> Iterator[Tried]:
    """The result y if products are cut off too, to the bits of the largest number in their step."""
    group = grouped(scene.a, scene.b)
    if not scene.in_floats or group <= PROMOTED:
        return
    if scene.y.size * scene.a.values.shape[1] <= PRODUCTS:
        inner = kept_in_few_bits(scene, group, _products_cut)
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


def kept_in_few_bits(scene: Scene, promote: int, cut: Callable[[Wide, Wide, Wide], Wide]) -> Wide:
    """The sums of each group [G, M, N], cut off at every step, and promoted after ``promote`` products."""
    a, b = scene.a.values, scene.b.values
    group, k = grouped(scene.a, scene.b), a.shape[1]
    sums = np.zeros_like(scene.terms.dots)
    for g in range(len(sums)):
        for start in range(g * group, min(g * group + group, k), promote):
            stop, total = min(start + promote, g * group + group, k), np.zeros(scene.y.shape)
            for at in range(start, stop, STEP):
                part = slice(at, min(at + STEP, stop))
                total = cut(total, a[:, part], b[:, part])
            sums[g] += total
    return sums


def truncation_limit(scene: Scene, promote: int = PROMOTED) -> Wide:
    """The limit of errors of sums that are cut off at every step, but promoted after ``promote`` products."""
    unit = 2.0**-KEPT
    a, b = scene.terms.scales
    magnitude: Wide = np.einsum("gmn,mg,ng->mn", scene.terms.magnitudes, np.abs(a), np.abs(b))
    steps = -(-promote // STEP)
    return unit * magnitude * (1 + steps / 2)


def _halves(scene: Scene) -> Iterator[Tried]:
    """Results y with sums over groups in half precision."""
    parts = scene.terms.parts
    if not 2 <= len(parts) <= 512:
        return
    total = np.zeros(scene.y.shape)
    for part in parts:
        total = half(total + half(part))
    yield Mistake(
        "f16-accumulation", "sums over groups are kept in halves", Replay(total, lambda: scene.limit)
    )


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
