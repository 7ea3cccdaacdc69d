"""Mistakes between blocks that the doctor imitates: sums that carry over, rounded products of scales.

They are not linear in the weights, so the product is computed again by blocks, on a few rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...formats import BlockFormat
from ..explanation import Mistake
from ..numbers import Wide, half
from .readings import Reading
from .scene import Scene

LARGEST = 1 << 22  # terms [M, N, groups] that are held at a time


class Terms(NamedTuple):
    """Parts of y that groups add, [M, N, blocks, groups of a block], and the scales of each block."""

    codes: Wide  # scale·Σ code·x
    offsets: Wide  # offset·Σ x
    scale: Wide  # [M, N, blocks]: of the block of weights times that of the activations


def between_blocks(scene: Scene, readings: list[Reading]) -> Iterator[Mistake[Wide]]:
    """Results y with each mistake between blocks that this format allows."""
    fmt = scene.fmt
    if (
        not isinstance(fmt, BlockFormat)
        or scene.weights.values is not None
        or scene.blocks.dtype.names is None
    ):
        return
    k, names = scene.x.shape[1], scene.blocks.dtype.names
    if "d" not in names or scene.blocks["d"].ndim != 2:
        return
    if scene.y.size * (k // fmt.group) > LARGEST:
        return
    for reading in readings:
        if reading.codes is None:
            continue
        terms = _group_terms(fmt, scene, reading)
        if terms is None:
            continue
        if k > fmt.block_size:
            for variant, y in _carried(terms):
                yield Mistake("sum-carried", variant, y, beside=reading.name)
        for variant, y in _rounded(terms):
            yield Mistake("scale-rounding", variant, y, beside=reading.name)


def _group_terms(fmt: BlockFormat, scene: Scene, reading: Reading) -> Terms | None:
    """The terms of all groups; None where a block of weights meets more than one scale of activations."""
    assert reading.codes is not None
    w, block, groups = scene.weights, fmt.block_size, fmt.block_size // fmt.group
    values = reading.values.reshape(len(reading.values), -1, block)
    codes = reading.codes.reshape(values.shape)
    d = np.divide(values, codes, out=np.zeros_like(values), where=codes != 0)
    one = np.take_along_axis(d, np.abs(codes).argmax(axis=-1)[..., None], axis=-1)
    if (np.abs(d - one)[codes != 0] > 1e-6 * np.abs(one).max(initial=0)).any():
        return None
    weight_scale = scene.blocks["d"][scene.columns].astype(np.float64)
    x = values.reshape(len(values), -1, groups, fmt.group)
    stored = (w.stored - w.zero).reshape(len(w.stored), -1, groups, fmt.group)
    scale, offset = (a.reshape(len(a), -1, groups) for a in (w.scale, w.offset))
    sums = np.einsum("mbgi,nbgi->mnbg", x, stored, optimize=True) * scale
    return Terms(sums, np.einsum("mbg,nbg->mnbg", x.sum(axis=-1), offset), one[:, None, :, 0] * weight_scale)


def _carried(terms: Terms) -> Iterator[tuple[str, Wide]]:
    """Integer sums of some groups of a block, not cleared before the next block."""
    unit = np.where(terms.scale == 0, 1, terms.scale)[..., None]
    groups = terms.codes.shape[-1]
    i = np.arange(groups)
    right = (terms.codes - terms.offsets).sum(axis=(2, 3))
    parts = {"of all groups": i >= 0}
    if groups > 1:
        parts |= {"of odd groups": i % 2 == 1, "of even groups": i % 2 == 0}
        parts |= {f"of groups from {groups // 2} on": i >= groups // 2}
        parts |= {f"of groups below {groups // 2}": i < groups // 2}
    for name, part in parts.items():
        whole = (terms.codes[..., part] / unit).sum(axis=-1)
        before = np.cumsum(whole, axis=-1) - whole
        yield f"the sum {name} goes on from block to block", right + (terms.scale * before).sum(axis=-1)
        last = np.concatenate([np.zeros_like(whole[..., :1]), whole[..., :-1]], axis=-1)
        yield f"the sum {name} of the block before counts again", right + (terms.scale * last).sum(axis=-1)


def _rounded(terms: Terms) -> Iterator[tuple[str, Wide]]:
    """The scale of a block of weights times that of the activations as half."""
    unit = np.where(terms.scale == 0, 1, terms.scale)
    ratio = half(terms.scale) / unit
    codes, offsets = terms.codes.sum(axis=-1), terms.offsets.sum(axis=-1)
    yield "d·d8 of each block", (ratio * codes - offsets).sum(axis=-1)
    if np.any(terms.offsets):
        yield "d·d8 of each block, offsets alike", (ratio * (codes - offsets)).sum(axis=-1)
