"""Wrong elements by their places: ends of rows that fill no vector, whole rows, a part of all elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...reference.nodes.registry import Mask
from ..explanation import Finding
from ..places import where

FIT = 1e-3  # of the squared error that factors of rows may leave
MOST = 0.85  # of the rows: where more are wrong, the others are right by chance
VECTORS = (64, 32, 16, 8, 4)
NAN = 0x7FC0BEEF  # bits of an element that nobody wrote, as a check fills results
OUTSIDE = 0x7FC0FEED  # bits of memory around operands, as a check fills it


def unwritten(y: NDArray[Any]) -> Mask:
    """Elements that hold what the result was filled with before its kernel ran."""
    return _holds(y, NAN)


def outside(y: NDArray[Any]) -> Mask:
    """Elements that a kernel computed from memory around its operands."""
    return _holds(y, OUTSIDE)


def _holds(y: NDArray[Any], bits: int) -> Mask:
    if y.dtype.itemsize != 4:
        return np.zeros(y.shape, np.bool_)
    mask: Mask = np.ascontiguousarray(y).view(np.uint32) == bits
    return mask


def rows_of(wrong: Mask) -> Mask:
    """Wrong elements as a matrix: all axes but the last are rows."""
    return wrong.reshape(-1, wrong.shape[-1])


def by_factors(wrong: Mask, y: NDArray[Any], right: NDArray[Any]) -> Finding | None:
    """The finding where each wrong row is the right one times a number of its own."""
    if y.shape != right.shape or right.dtype.kind != "f" or y.shape[-1] < 8:
        return None
    bad = rows_of(wrong)
    at = bad.any(axis=1)
    ours, theirs = (x.reshape(bad.shape).astype(np.float64)[at] for x in (right, y))
    size = (ours**2).sum(axis=1, keepdims=True)
    factor = (ours * theirs).sum(axis=1, keepdims=True) / size
    off = ((theirs - factor * ours) ** 2).sum(axis=1, keepdims=True)
    if not (off <= FIT * ((theirs - ours) ** 2).sum(axis=1, keepdims=True)).all():
        return None
    low, high = float(factor.min()), float(factor.max())
    if low == high == 0:
        text = f"{int(at.sum())} of {len(bad)} rows are zero, the first is row {int(at.argmax())}"
        return Finding("node-rows", 0.85, text, where(bad), int(bad.sum()))
    text = f"each of the {int(at.sum())} wrong rows is the right one times a number, {low:.6g} to {high:.6g}"
    return Finding("node-row-sum", 0.9, text, where(bad), int(bad.sum()))


def placed(wrong: Mask, y: NDArray[Any]) -> Finding | None:
    """The finding where the places of wrong elements tell the mistake."""
    bad, n = rows_of(wrong), wrong.shape[-1]
    facts, count = where(bad), int(bad.sum())
    empty = unwritten(y)
    if empty.any() and empty.shape == wrong.shape and (empty | ~wrong).all():
        return Finding("node-unwritten", 0.95, f"{count} elements were never written", facts, count)
    beyond = int((outside(y) & wrong).sum()) if y.shape == wrong.shape else 0  # blocks are judged as wholes
    if beyond:
        text = f"{beyond} of the {count} wrong elements are made of memory outside of the operands"
        return Finding("node-outside", 0.95, text, facts, count)
    columns = np.flatnonzero(bad.any(axis=0))
    if columns.size and columns[0] > 0 and n - columns[0] < 64:
        tails = [v for v in VECTORS if n % v and n - n % v <= columns[0]]
        if tails and len(columns) >= (n - columns[0]) / 2:
            text = f"all are in the last {n - columns[0]} of {n} columns, which fill no vector of {tails[-1]}"
            return Finding("node-tail", 0.85, text, facts, count)
    rows: Mask = np.asarray(bad.any(axis=1))
    if 0 < rows.sum() <= MOST * len(rows) and bad[rows].mean() > 0.4:
        first = int(rows.argmax())
        text = f"{int(rows.sum())} of {len(rows)} rows are wrong as wholes, the first is row {first}"
        return Finding("node-rows", 0.7, text, facts, count)
    return None
