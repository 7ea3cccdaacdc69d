"""The doctor's search, by linear algebra, for a wrong order of elements, bits or scales that is in no list.

If place i of every block gets the code (bit, scale) of place π(i), then y is a sum of features:
Σ F[i, π(i)], one feature a place, each linear in the outputs. π is found place by place, from the
right order on, as long as the error falls. Many outputs see the same π, so a few hundred are enough.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...formats import BlockFormat
from ..numbers import Index, Wide
from .misread import low_bits
from .readings import Reading
from .scene import Scene

ROUNDS = 12
EVIDENCE = 6  # outputs a place that must be there to believe an order
FEATURES = 1 << 24


def orders_taken(scene: Scene, readings: list[Reading]) -> Iterator[tuple[str, Index, float]]:
    """Fault, order and score of each order of codes, high bits or sub-scales that explains y better."""
    fmt = scene.fmt
    if not isinstance(fmt, BlockFormat):
        return
    seen = scene.seen.reshape(-1)
    for reading in readings:
        for fault, base, features in _questions(fmt, scene, reading):
            places = len(features)
            if places < 2 or seen.sum() < EVIDENCE * places:
                continue
            size = scene.size.reshape(-1)[seen]
            target = (scene.y - base).reshape(-1)[seen] / size
            flat = features.reshape(*features.shape[:2], -1)[..., seen] / size
            if not (np.isfinite(flat).all() and np.isfinite(target).all()):
                continue
            order, score = _descend(flat, target)
            if (order != np.arange(places)).any():
                yield fault, order, score


def _questions(fmt: BlockFormat, scene: Scene, reading: Reading) -> Iterator[tuple[str, Wide, Wide]]:
    """Questions: a fault, the certain part of y [M, N], and features [places, candidates, M, N]."""
    w, x = scene.weights, reading.values
    n, k = w.stored.shape
    m, block = len(x), fmt.block_size
    groups = block // w.group
    scale = w.scale.repeat(w.group, axis=1).reshape(n, -1, block)
    codes = (w.stored - w.zero).reshape(n, -1, block)
    offset = x @ w.offset.repeat(w.group, axis=1).T
    runs = x.reshape(m, -1, block)
    split = low_bits(fmt)
    high = 2**split * (w.stored // 2**split).reshape(codes.shape)
    low = x @ ((codes - high) * scale).reshape(n, k).T - offset
    if groups == 1 and block**2 * m * n <= FEATURES:
        yield "nibble-order", -offset, _pairs(runs, scale * codes)
        if split:
            yield "high-bits", low, _or_none(_pairs(runs, scale * high))
    if block == 256:
        yield "nibble-order", -offset, _planes(runs, scale, codes)
        if split:
            yield "high-bits", low, _or_none(_planes(runs, scale, high))
    if groups > 1 and groups**2 * m * n <= FEATURES:
        by_group = (x.reshape(m, -1, groups, w.group), codes.reshape(n, -1, groups, w.group))
        dots = np.einsum("mbgi,nbgi->gmnb", *by_group, optimize=True)
        features = np.einsum("gmnb,nbh->ghmn", dots, w.scale.reshape(n, -1, groups), optimize=True)
        yield "sub-scale-order", -offset, features


def _or_none(features: Wide) -> Wide:
    """One more candidate: nothing, a bit that is never set."""
    return np.concatenate([features, np.zeros_like(features[:, :1])], axis=1)


def _planes(x: Wide, scale: Wide, codes: Wide) -> Wide:
    """Features [planes, planes, M, N]: planes of 32 elements with the codes of another plane."""
    x, scale, codes = (a.reshape(*a.shape[:2], -1, 32) for a in (x, scale, codes))
    parts = [
        np.stack([np.einsum("mbi,nbi->mn", x[:, :, p], scale[:, :, p] * codes[:, :, q], optimize=True)
                  for q in range(codes.shape[2])])
        for p in range(codes.shape[2])
    ]  # fmt: skip
    return np.stack(parts)


def _pairs(x: Wide, w: Wide) -> Wide:
    """Sums [places of x, places of w, M, N] of x[m, b, i] · w[n, b, j] over blocks."""
    m, n, places = len(x), len(w), x.shape[2]
    left = x.transpose(2, 0, 1).reshape(places * m, -1)
    right = w.transpose(2, 0, 1).reshape(places * n, -1)
    return (left @ right.T).reshape(places, m, places, n).transpose(0, 2, 1, 3)


def _descend(features: Wide, target: Wide) -> tuple[Index, float]:
    """The order, place by place, that leaves the least of the target; and how much it leaves."""
    places = len(features)
    order = np.arange(places)
    left = target - features[order, order].sum(axis=0)
    for _ in range(ROUNDS):
        before = order.copy()
        for i in range(places):
            without = left + features[i, order[i]]
            error = ((without - features[i]) ** 2).sum(axis=1)
            order[i] = int(error.argmin())
            left = without - features[i, order[i]]
        if (order == before).all():
            break
    return order, float((left**2).mean())
