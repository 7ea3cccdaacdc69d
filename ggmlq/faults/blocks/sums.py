"""Mistakes in sums that the doctor imitates: products that saturate 16 bits, accumulators of half precision.

They are not linear in the weights, so they are recomputed step by step, on a few rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...formats import BlockFormat
from ..findings import Mistake
from ..numbers import Wide, half
from .operand import Operand
from .readings import Reading
from .scene import Scene

SIXTEEN = 32767
NEIGHBOURS = 4  # products of bytes that an instruction adds up in a lane


# --- 16 bits --------------------------------------------------------------------------------


def saturated(readings: list[Reading], w: Operand) -> Iterator[Mistake[Wide]]:
    """Results y with sums that saturate or wrap at 16 bits."""
    if w.values is not None:
        return
    run = min(w.group, 32)
    for reading in readings:
        if reading.codes is None:
            continue
        codes = reading.codes.reshape(len(reading.codes), -1, run)
        step = np.divide(
            reading.values, reading.codes, out=np.zeros_like(reading.values), where=reading.codes != 0
        ).reshape(codes.shape)
        d = step.sum(axis=-1) / np.maximum((codes != 0).sum(axis=-1), 1)
        for form, added in (("signed codes", -w.zero), ("stored codes", 0.0), ("codes + 128", 128 - w.zero)):
            if added == 0 and w.zero == 0 and form == "signed codes":
                continue  # the same as stored
            weights = (w.stored + added).reshape(len(w.stored), -1, run)
            limit = np.abs(codes).max(initial=0) * np.abs(weights).max(initial=0)
            if limit * run <= SIXTEEN:
                continue
            products = np.einsum("mgi,ngi->mngi", codes, weights)
            for name, dot in _dots(products, limit):
                y = _scaled(dot, d, w, added, codes)
                yield Mistake("int8-saturation", f"{form}, {name}", y, beside=reading.name)


def _dots(products: Wide, limit: float) -> Iterator[tuple[str, Wide]]:
    """Sums over the last axis in which some partial sum has only 16 bits."""
    run = products.shape[-1]
    for length in (2, 4, 8, 16, 32):
        if length > run or limit * length <= SIXTEEN:
            continue
        near = products.reshape(*products.shape[:-1], run // length, length)
        far = products.reshape(*products.shape[:-1], length, run // length)
        for order, sums in (("neighbours", near.sum(axis=-1)), ("strided", far.sum(axis=-2))):
            yield f"{length} {order} saturate", np.clip(sums, -SIXTEEN - 1, SIXTEEN).sum(axis=-1)
            yield f"{length} {order} wrap", ((sums + SIXTEEN + 1) % 65536 - SIXTEEN - 1).sum(axis=-1)
        if length > 2:
            pairs = near.reshape(*near.shape[:-1], length // 2, 2).sum(axis=-1)
            total = np.zeros(near.shape[:-1])
            for i in range(length // 2):
                total = np.clip(total + pairs[..., i], -SIXTEEN - 1, SIXTEEN)
            yield f"pairs of {length} saturate one by one", total.sum(axis=-1)


def _scaled(dot: Wide, d: Wide, w: Operand, added: float, codes: Wide) -> Wide:
    """Σ scale·d·dot, with what the codes were raised by taken off through the exact sum."""
    per = w.scale.repeat(w.group // codes.shape[-1], axis=1)
    extra = added + w.zero  # what was added beyond the right code
    sums = codes.sum(axis=-1)
    y: Wide = np.einsum("mng,mg,ng->mn", dot, d, per)
    y -= extra * ((d * sums) @ per.T)
    y -= (d * sums) @ w.offset.repeat(w.group // codes.shape[-1], axis=1).T
    return y


# --- half accumulators ----------------------------------------------------------------------


def half_sums(readings: list[Reading], w: Operand) -> Iterator[Mistake[Wide]]:
    """Results y with sums in half precision, by block or by element, in several orders."""
    for reading in readings:
        by_element = reading.codes is None
        for name, terms in _terms(reading.values, w, by_element):
            for rounded_first in (False, True):
                addends = half(terms) if rounded_first else terms
                rule = "half products" if rounded_first else "products as they are"
                for order, total in _accumulated(addends):
                    yield Mistake("f16-accumulation", f"{name}, {rule}, {order}", total, beside=reading.name)
        if not by_element:
            for order, total in _in_registers(reading.values, w):
                yield Mistake("f16-accumulation", order, total, beside=reading.name)


def _in_registers(values: Wide, w: Operand) -> Iterator[tuple[str, Wide]]:
    """Sums of vector code: the lanes of a register take neighbours in turn, and add up blocks in half."""
    for run in dict.fromkeys((w.grain, 32, 256)):
        for lanes in (4, 8, 16):
            if values.shape[1] % run or run % (NEIGHBOURS * lanes):
                continue
            shape = (-1, run // (NEIGHBOURS * lanes), lanes, NEIGHBOURS)
            x, weights = (a.reshape(len(a), *shape) for a in (values, w.dense))
            sums = np.zeros((lanes, len(x), len(weights)))
            for block in range(x.shape[1]):
                sums = half(sums + np.einsum("malc,nalc->lmn", x[:, block], weights[:, block]))
            name = f"{lanes} lanes of {NEIGHBOURS} neighbours, by {run}"
            yield f"{name}, these added in float32", sums.sum(axis=0)
            yield f"{name}, a tree", _tree(sums)


def _terms(values: Wide, w: Operand, by_element: bool) -> Iterator[tuple[str, Wide]]:
    """The terms [T, M, N] that a kernel adds up."""
    k = values.shape[1]
    dense = w.dense
    if by_element:
        if k <= 1024:
            yield "element by element", values.T[:, :, None] * dense.T[:, None, :]
        return
    for run in dict.fromkeys((w.grain, 32, 256)):
        if k % run == 0 and run <= k:
            x, weights = (a.reshape(len(a), -1, run).swapaxes(0, 1) for a in (values, dense))
            yield f"by {run}", x @ weights.swapaxes(1, 2)


def _accumulated(terms: Wide) -> Iterator[tuple[str, Wide]]:
    """Half sums of [T, M, N] over T: in order, backwards, in lanes, as a tree."""
    t = len(terms)
    for lanes in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        if t % lanes:
            continue
        by_lane = terms.reshape(t // lanes, lanes, *terms.shape[1:])
        for back in (False, True) if lanes == 1 and t > 1 else (False,):
            sums = np.zeros(by_lane.shape[1:])
            for term in by_lane[::-1] if back else by_lane:
                sums = half(sums + term)
            yield f"{lanes} lanes{' backwards' if back else ''}", _tree(sums)
            if lanes > 1:
                yield f"{lanes} lanes, these added in float32", sums.sum(axis=0)
    if t > 1 and t & (t - 1) == 0:
        yield "a tree", _tree(half(terms))


def _tree(sums: Wide) -> Wide:
    while len(sums) > 1:
        middle = len(sums) // 2
        sums = half(sums[:middle] + sums[middle : 2 * middle])
    total: Wide = sums[0]
    return total


def looks_half(y: Wide) -> bool:
    """True if y has at least four values that are finite and not zero, and all of them are halves."""
    values = y[np.isfinite(y) & (y != 0)]
    return values.size >= 4 and bool((half(values) == values).all())


# --- between blocks: sums that carry over, rounded products of scales ------------------------------

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
