"""Operations that move elements, some of them into another type: their results are right to the bit.

Where a result is of blocks, its bytes must be those of our encoders. A device's encoder may differ where a
value lies within a few ulp of the middle between two codes, or a scale between two halves: a block then
counts as right if each of its values is as near to the original as ours is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays.array import QuantArray
from ...errors import ShapeError
from ...formats import FORMATS
from ...formats.scalars import bfloat16_bits
from .number import LARGEST, UNIT, Number, quick
from .registry import Call, Mask, Result, copied, oracle, repeated, settled

TIE = 32 * UNIT  # of the largest value of a block: codes within 4 ulp of a tie may go either way
STEP = 2.0**-10  # twice the rounding of a scale to a half, or its step to the next one


def converted(values: NDArray[Any], kind: str) -> NDArray[Any]:
    """Numbers as a type of plain numbers holds them, to nearest, ties to even."""
    if kind == "f32":
        return values.astype(np.float32)
    if kind == "f16":
        return values.astype(np.float32).astype(np.float16)
    if kind == "bf16":
        bits = bfloat16_bits(values.astype(np.float32))
        wide = (bits.astype(np.uint32) << 16).view(np.float32)
        return np.where(np.isnan(values), np.float32(np.nan), wide)
    return values.astype({"i32": np.int32, "i64": np.int64, "i16": np.int16, "i8": np.int8}[kind])


def encoded(values: NDArray[Any], kind: str) -> Result:
    """Numbers as a type holds them: plain ones to the bit, blocks by the rule at the head of this file."""
    fmt = FORMATS[kind]
    if fmt.block_size == 1:
        return copied(converted(values, kind))
    rows = np.ascontiguousarray(values, np.float32).reshape(-1, values.shape[-1])
    blocks = fmt.encode(rows)
    raw = blocks.view(np.uint8).reshape(*values.shape[:-1], -1)
    return Result(raw, np.zeros(raw.shape), accepts=blocks_like(values, raw, kind))


def blocks_like(values: NDArray[Any], raw: NDArray[np.uint8], kind: str) -> Callable[[NDArray[Any]], Mask]:
    """The test whether bytes [.., row bytes] are our encoder's, or as near to the values; one a block."""
    fmt = FORMATS[kind]
    size, n = fmt.dtype.itemsize, fmt.block_size

    def accepts(y: NDArray[Any]) -> Mask:
        ours, theirs = (np.ascontiguousarray(one).reshape(-1, size) for one in (raw, y))
        right: Mask = (ours == theirs).all(axis=1)
        at = np.flatnonzero(~right)
        if at.size:
            x = np.asarray(values, np.float64).reshape(-1, n)[at]
            a, b = (fmt.decode(one[at].copy().view(fmt.dtype)[:, 0]).reshape(-1, n) for one in (ours, theirs))
            largest = np.abs(x).max(axis=1, keepdims=True)
            # A code is chosen by the scale before it is rounded to a half, in which the two are as near.
            slack = TIE * largest + STEP * np.maximum(np.abs(x), np.abs(b))
            right[at] = (np.abs(b - x) <= np.abs(a - x) + slack).all(axis=1)
            right[at] |= np.isnan(x).any(axis=1)  # NaN has no code
            if kind == "iq4_nl":
                right[at] |= _like_cache(theirs[at], without_search(x))
        return right.reshape(*raw.shape[:-1], -1)

    return accepts


def without_search(x: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Blocks of iq4_nl as a program encodes a cache: the first scale is kept, where a file's is searched.

    The element of largest magnitude gets the lowest level; then the scale is the best one for these codes.
    """
    fmt = FORMATS["iq4_nl"]
    levels = fmt.decode(_all_codes(fmt))[0, :16].astype(np.float32)
    x = x.astype(np.float32)
    largest = x[np.arange(len(x)), np.abs(x).argmax(axis=1)][:, None]
    with np.errstate(all="ignore"):
        scaled = (np.float32(1) / (largest / levels[0])) * x
    code = np.searchsorted((levels[1:] + levels[:-1]) / 2, scaled, side="right")
    q, w = levels[code].astype(np.float64), x.astype(np.float64) ** 2
    below = (w * q * q).sum(axis=1)
    d = np.where(below > 0, (w * q * x).sum(axis=1) / np.maximum(below, 1e-300), 0.0)
    blocks = np.zeros(len(x), fmt.dtype)
    blocks["d"] = d.astype(np.float32)
    code = np.where(np.abs(largest) < 1e-15, 0, code)
    blocks["qs"] = code[:, :16] | code[:, 16:] << 4
    return blocks.view(np.uint8).reshape(len(x), -1)


def _like_cache(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> Mask:
    """True for blocks with the same codes, and with scales that are neighbours as halves at most."""
    first, second = (
        np.ascontiguousarray(one[:, :2]).view(np.uint16)[:, 0].astype(np.int64) for one in (a, b)
    )
    near: Mask = (np.abs(first - second) <= 1) & (a[:, 2:] == b[:, 2:]).all(axis=1)
    return near


def _all_codes(fmt: Any) -> NDArray[Any]:
    """A block of scale 1 whose first elements have the codes 0 to 15."""
    block = np.zeros((1, 1), fmt.dtype)
    block["d"], block["qs"] = 1, np.arange(16)
    return block


@oracle("CPY", "DUP", "CONT", rowwise=False)
def copy(c: Call) -> Result:
    """The elements in their logical order, in the result's shape and type."""
    source, shape = c.inputs[0], c.params.get("shape")
    if isinstance(source, QuantArray) and source.format.name == c.kind:
        return copied(np.asarray(source.raw).reshape(*(shape or source.shape)[:-1], -1))
    values = c.array(0)
    values = values.reshape(shape) if shape is not None else values
    if isinstance(source, QuantArray) and quick() and c.kind in ("f32", "f16"):
        return settled(Number(values, 8 * UNIT * np.abs(values).max(initial=0.0)), c.kind)
    return encoded(values, c.params.get("type") or _type_of(values))


def _type_of(values: NDArray[Any]) -> str:
    return {"float32": "f32", "float16": "f16", "int32": "i32", "int64": "i64"}.get(values.dtype.name, "f32")


@oracle("GET_ROWS", rowwise=False)
def get_rows(c: Call) -> Result:
    """The rows that ids name, decoded."""
    source, ids = c.inputs[0], c.array(1)
    if isinstance(source, Number):
        return settled(source.map(lambda rows: _picked(rows, ids)), c.kind)
    if isinstance(source, QuantArray):
        shape = (1,) * (4 - source.ndim) + source.shape
        raw = np.asarray(source.raw).reshape(*shape[:-1], -1)
        picked = _picked(raw, ids)
        rows = QuantArray.from_bytes(picked.copy(), source.format, (*picked.shape[:-1], shape[-1]))
        values = rows.dequantize(np.float32)
        if quick():
            return settled(Number(values, 8 * UNIT * np.abs(values).max(initial=0.0)), c.kind)
    else:
        values = _picked(c.array(0), ids)
    return copied(converted(values, c.params.get("type") or _type_of(values)))


def _picked(rows: NDArray[Any], ids: NDArray[Any]) -> NDArray[Any]:
    """Pick rows [d, c, n, ..] by ids [1, d, c, m]: the result is [d, c, m, ..]."""
    rows = rows.reshape((1,) * (4 - rows.ndim) + rows.shape)
    ids = ids.reshape((1,) * (4 - ids.ndim) + ids.shape)[0]
    if ids.size and not (ids.min() >= 0 and ids.max() < rows.shape[2]):
        raise ShapeError(
            f"node GET_ROWS: ids run from {ids.min()} to {ids.max()}, there are {rows.shape[2]} rows"
        )
    outer = np.arange(ids.shape[0])[:, None, None] % rows.shape[0]
    middle = np.arange(ids.shape[1])[None, :, None] % rows.shape[1]
    picked: NDArray[Any] = rows[outer, middle, ids]
    return picked


@oracle("SET_ROWS", sources=3, rowwise=False)
def set_rows(c: Call) -> Result:
    """The third source with rows replaced by those of the first, in its own type; the others as they were."""
    if c.uncertain(0):
        return _set_numbers(c)
    values, ids, before = c.array(0), c.array(1), c.inputs[2]
    shape = (1,) * (4 - before.ndim) + tuple(before.shape)
    values = values.reshape((1,) * (4 - values.ndim) + values.shape)
    d, m, rows = _targets(values.shape, ids)
    if isinstance(before, QuantArray):
        raw = np.asarray(before.raw).reshape(*shape[:-1], -1).copy()
        fresh = encoded(values, before.format.name)
        raw[d, m, rows] = fresh.value
        originals = before.dequantize(np.float32).reshape(shape).copy()
        originals[d, m, rows] = values
        return Result(raw, np.zeros(raw.shape), accepts=blocks_like(originals, raw, before.format.name))
    whole = np.array(before).reshape(shape)
    whole[d, m, rows] = converted(values, c.params.get("type") or _type_of(whole))
    return copied(whole)


def _targets(shape: tuple[int, ...], ids: NDArray[Any]) -> tuple[Any, Any, Any]:
    """The index of the row into which each row of an array [d, m, n, ..] goes."""
    ids = ids.reshape((1,) * (4 - ids.ndim) + ids.shape)
    d, m, n = np.ix_(*(np.arange(length) for length in shape[:3]))
    return d, m, ids[0, d % ids.shape[1], m % ids.shape[2], n]


def _set_numbers(c: Call) -> Result:
    """Rows that another operation made, with its errors, in plain numbers."""
    rows, before = c.number(0), c.array(2)
    fresh = settled(rows, c.kind)
    shape = (1,) * (4 - before.ndim) + tuple(before.shape)
    value, bound = before.astype(np.float64).reshape(shape), np.zeros(shape)
    four = (1,) * (4 - len(rows.shape)) + rows.shape
    target = _targets(four, c.array(1))
    value[target], bound[target] = fresh.value.reshape(four), fresh.bound.reshape(four)
    return Result(value, bound)


def _window(whole: NDArray[Any], part: tuple[int, ...], p: Any) -> NDArray[Any]:
    """The view of a contiguous array that ACC and SET write to; their strides are bytes of float32."""
    strides = (p["nb3"], p["nb2"], p["nb1"], 4)
    size = whole.dtype.itemsize // 4
    start = whole.reshape(-1)[p["offset"] // 4 :]
    return np.lib.stride_tricks.as_strided(start, part, [stride * size for stride in strides])


VIEW = "nb1:i nb2:i nb3:i offset:i -:i"


@oracle("ACC", words=VIEW, rowwise=False)
def acc(c: Call) -> Result:
    """The first source, with the second added to a part of it."""
    a, b = c.array(0).astype(np.float64), c.array(1).astype(np.float64)
    value, error = np.array(a, order="C"), np.zeros(a.shape)
    b = b.reshape((1,) * (4 - b.ndim) + b.shape)
    sums = _window(value, b.shape, c.params)
    sums += b
    _window(error, b.shape, c.params)[...] = UNIT * np.abs(sums)
    return settled(Number(value, error), c.kind)


@oracle("SET", words=VIEW, rowwise=False)
def set_part(c: Call) -> Result:
    """The first source, with a part of it replaced by the second."""
    value = np.array(c.array(0), np.float64, order="C")
    b = c.array(1)
    b = b.reshape((1,) * (4 - b.ndim) + b.shape)
    _window(value, b.shape, c.params)[...] = b
    return copied(value)


@oracle("CONCAT", words="axis:i", rowwise=False)
def concat(c: Call) -> Result:
    """Two tensors one behind the other along one of ggml's axes."""
    if isinstance(c.inputs[0], QuantArray):
        parts = [np.asarray(q.raw).reshape(*q.shape[:-1], -1) for q in c.inputs[:2]]
    else:
        parts = [c.array(0), c.array(1)]
    return copied(np.concatenate(parts, axis=parts[0].ndim - 1 - c.params["axis"]))


@oracle("REPEAT", rowwise=False)
def repeat(c: Call) -> Result:
    """A tensor repeated until it has the result's shape."""
    return copied(repeated(c.array(0), c.shape))


PADS = "left0:i right0:i left1:i right1:i left2:i right2:i left3:i right3:i circular:i"


@oracle("PAD", sources=1, words=PADS, rowwise=False)
def pad(c: Call) -> Result:
    """Zeros, or the other end of the tensor, before and behind it along each axis."""
    x, p = c.array(0), c.params
    widths = [(p[f"left{i}"], p[f"right{i}"]) for i in reversed(range(x.ndim))]
    if "shape" in p:  # libraries before autumn 2025 pad behind, and have no parameters
        widths = [(left, n - m - left) for (left, _), n, m in zip(widths, c.shape, x.shape, strict=True)]
    return copied(np.pad(x, widths, mode="wrap") if p.get("circular") else np.pad(x, widths))


@oracle("PAD_REFLECT_1D", sources=1, words="left:i right:i")
def pad_reflect(c: Call) -> Result:
    """Rows continued by their mirror images, without the elements at the edges."""
    x = c.array(0)
    edges = (c.params["left"], c.params["right"])
    return copied(np.pad(x, [(0, 0)] * (x.ndim - 1) + [edges], mode="reflect"))


@oracle("ROLL", sources=1, words="shift0:i shift1:i shift2:i shift3:i", rowwise=False)
def roll(c: Call) -> Result:
    """Elements shifted along each axis; those that leave at an end come in at the other."""
    x = c.array(0)
    return copied(np.roll(x, [c.params[f"shift{i}"] for i in reversed(range(x.ndim))], tuple(range(x.ndim))))


@oracle("TRI", sources=1, words="part:i", rowwise=False)
def tri(c: Call) -> Result:
    """One triangle of each matrix, zeros elsewhere: 0 upper with the diagonal, 1 upper, 2 and 3 lower."""
    x, part = c.array(0), c.params["part"]
    row, column = np.ogrid[: x.shape[-2], : x.shape[-1]]
    mask = {0: column >= row, 1: column > row, 2: column <= row, 3: column < row}[part]
    return copied(np.where(mask, x, x.dtype.type(0)))


@oracle("DIAG", sources=1, rowwise=False)
def diag(c: Call) -> Result:
    """Each row as the diagonal of a matrix."""
    x = c.array(0)[..., 0, :]
    return copied(np.where(np.eye(x.shape[-1], dtype=np.bool_), x[..., None], x.dtype.type(0)))


@oracle("DIAG_MASK_INF", "DIAG_MASK_ZERO", sources=1, words="past:i", rowwise=False)
def diag_mask(c: Call) -> Result:
    """Elements above the diagonal, from a column on, replaced by minus infinity or zero.

    GPUs take the largest float32 off instead: softmax makes zero of either.
    """
    x = c.array(0)
    row, column = np.ogrid[: x.shape[-2], : x.shape[-1]]
    hidden, infinite = column > row + c.params["past"], c.op.endswith("INF")
    value = np.where(hidden, -np.inf if infinite else 0.0, x)
    if not (infinite and quick()):
        return copied(value)
    lowered = x.astype(np.float32) - np.float32(LARGEST)

    def accepts(y: NDArray[Any]) -> Mask:
        right: Mask = (y == value) | np.isnan(y) & np.isnan(value) | hidden & (y == lowered)
        return right

    return Result(value, np.zeros(x.shape), accepts=accepts)
