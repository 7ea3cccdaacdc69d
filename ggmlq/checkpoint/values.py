"""Lazy tensors for conversions of checkpoints: rows of float32, computed a few at a time when they are read.

Permuting, stacking and cutting only choose rows; only adding 1 to a norm changes numbers. So memory is
bounded by the rows that are read, however large the tensor is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.companion import by_row, multiply
from ..arrays.scaled import ScaledArray
from ..formats import Format
from ..gguf.source import release
from ..ops import dequantize
from ..safetensors import SafetensorsFile

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
FLOATS = ("f32", "f16", "bf16")  # what both kinds of files have


@dataclass(frozen=True)
class Values:
    """A lazy tensor: its shape, and a function that reads rows, counted through all axes but the last.

    A tensor of one axis has rows of one number. ``plain`` is the array itself where nothing is done to it,
    ``floats`` the type of its numbers where rows are moved only and are no blocks.
    """

    shape: tuple[int, ...]
    read: Callable[[Rows], Floats]
    plain: QuantArray | None = None
    floats: Format | None = None
    blocks: Callable[[Rows], QuantArray] | None = None  # rows as blocks, where rows are moved only

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.shape[0] if len(self.shape) == 1 else prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Numbers of a row."""
        return 1 if len(self.shape) < 2 else self.shape[-1]


def stored(file: SafetensorsFile, name: str) -> Values:
    """A tensor of the checkpoint; 8-bit codes through their scales."""
    x: Any = file[name]
    if isinstance(x, Values):
        return x
    columns = 1 if len(x.shape) < 2 else x.shape[-1]
    if isinstance(x, ScaledArray):
        flat = ScaledArray(x.codes.reshape(-1, x.shape[-1]), x.scales, x.code, x.tile, x.zeros)
        if len(x.shape) < 2:
            return Values(x.shape, lambda rows: dequantize_scaled(x)[rows].reshape(-1, 1))
        return Values(x.shape, lambda rows: dequantize_scaled(flat[_picked(rows)]))
    if isinstance(x, QuantArray):
        blocks = x.blocks.reshape(-1, columns)

        def read(rows: Rows) -> Floats:
            part = blocks[_picked(rows)]
            values: Floats = x.format.decode(part).astype(np.float32, copy=False)
            release(part)
            return values

        return Values(x.shape, read, x)
    numbers = x.reshape(-1, columns)
    return Values(x.shape, lambda rows: numbers[_picked(rows)].astype(np.float32))


def dequantize_scaled(s: ScaledArray) -> Floats:
    """Codes times scales, by the compiled way where there is one."""
    floats: Floats = s.dequantize()
    return floats


def _picked(rows: Rows) -> Any:
    """Row numbers as a slice, which gives a view, if they follow each other; else as they are."""
    if (
        len(rows)
        and int(rows[-1]) - int(rows[0]) + 1 == len(rows)
        and (len(rows) < 3 or (np.diff(rows) == 1).all())
    ):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def permuted(values: Values, heads: int) -> Values:
    """Rows of each head with its two halves interleaved: how llama.cpp's rope wants q and k."""
    length = values.shape[0] // heads

    def moved(rows: Rows) -> Rows:
        head, place = np.divmod(rows, length)
        places: Rows = head * length + place % 2 * (length // 2) + place // 2
        return places

    blocks = values.blocks
    return Values(
        values.shape, lambda rows: values.read(moved(rows)),
        blocks=None if blocks is None else lambda rows: blocks(moved(rows)),
    )  # fmt: skip


def separated(values: Values, heads: int) -> Values:
    """The inverse permutation of heads."""
    length = values.shape[0] // heads

    def read(rows: Rows) -> Floats:
        head, place = np.divmod(rows, length)
        return values.read(head * length + place % (length // 2) * 2 + place // (length // 2))

    return Values(values.shape, read, floats=values.floats)


def shifted(values: Values, by: float) -> Values:
    """The tensor with a constant added to every number."""
    return Values(values.shape, lambda rows: values.read(rows) + np.float32(by))


def scaled(values: Values, by: float) -> Values:
    """The tensor with every number times a constant."""
    return Values(values.shape, lambda rows: values.read(rows) * np.float32(by))


def first_rows(values: Values, count: int) -> Values:
    """The first rows of a matrix."""
    if count >= values.shape[0]:
        return values
    return Values((count, *values.shape[1:]), values.read)


def stacked(parts: Sequence[Values]) -> Values:
    """Matrices of one shape as [experts, rows, columns]."""
    rows_each = parts[0].rows

    def read(rows: Rows) -> Floats:
        experts, places = np.divmod(rows, rows_each)
        joined = np.empty((len(rows), parts[0].columns), np.float32)
        for expert in np.unique(experts).tolist():
            here = experts == expert
            joined[here] = parts[expert].read(places[here])
        return joined

    return Values((len(parts), *parts[0].shape), read)


def half(values: Values, which: int) -> Values:
    """The first or second half of the rows of every matrix of [experts, rows, columns]."""
    experts, both, columns = values.shape
    count = both // 2

    def read(rows: Rows) -> Floats:
        expert, place = np.divmod(rows, count)
        return values.read(expert * both + which * count + place)

    return Values((experts, count, columns), read)


def matrix_of(values: Values, expert: int) -> Values:
    """One matrix of [experts, rows, columns]."""
    count = values.shape[1]
    return Values(values.shape[1:], lambda rows: values.read(expert * count + rows), floats=values.floats)


def constant(numbers: Sequence[float]) -> Values:
    """A vector of float32 values."""
    vector = np.array(numbers, np.float32)
    return Values(vector.shape, lambda rows: vector[rows].reshape(-1, 1))


def array_values(q: QuantArray) -> Values:
    """A tensor of a GGUF file, blocks decoded."""
    columns = q.shape[-1] if len(q.shape) > 1 else 1
    floats = q.format if q.format.name in FLOATS else None

    def numbers(rows: Rows) -> Floats:
        return np.asarray(dequantize(q), np.float32).reshape(-1)[rows].reshape(-1, 1)

    if len(q.shape) < 2:
        return Values(q.shape, numbers, q, floats)
    blocks = q.blocks.reshape(-1, columns // q.format.block_size)
    swapped = blocks.dtype != q.format.dtype
    scales = None if q.scale is None else by_row(np.asarray(q.scale), q.shape[:-1]).reshape(-1, 1)

    def read(rows: Rows) -> Floats:
        part = np.ascontiguousarray(blocks[_picked(rows)])
        picked = QuantArray(q.format, (len(rows), columns), part.view(np.uint8), swapped)
        numbers = np.asarray(dequantize(picked), np.float32)
        multiply(numbers, None if scales is None else scales[_picked(rows)])
        return numbers

    return Values(q.shape, read, q if scales is None else None, floats)
