"""A task of a survey: read all values of a part of a tensor, for their facts and the energy of each row."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import tasks
from ...arrays.array import QuantArray
from ...arrays.scaled import ScaledArray
from ...gguf.source import release
from ...gguf.tensors import piece
from ...ops import dequantize
from .facts import FLOATS, Values

SLAB = 1 << 20  # elements decoded at a time

Doubles = NDArray[np.float64]


class Walk(NamedTuple):
    """A task: a part of a tensor, in rows through all leading axes, or in elements if not ``by_row``."""

    model: int
    name: str
    rows: tasks.Rows
    part: tuple[int, int]
    number: int  # of the part in its tensor
    by_row: bool
    weights: NDArray[np.float64] | None  # importance of the columns of the matrices of these rows
    origin: int  # the matrix that the weights begin with

    @property
    def what(self) -> str:
        kind = "rows" if self.by_row else "elements"
        return f"tensor {self.name!r}, {kind} {self.part[0]} to {self.part[1] - 1}"


class Walked(NamedTuple):
    """The facts of a part, and the energy of each row, plain and by importance."""

    values: Values
    energies: Doubles | None
    weighted: Doubles | None


def walk(task: Walk) -> Walked:
    """The facts about the part of one task; a worker calls it."""
    x = task.rows.array()
    values = Values()
    if not task.by_row:
        for first in range(*task.part, SLAB):
            values.add(_elements(x, first, min(SLAB, task.part[1] - first)))
        return Walked(values, None, None)
    start, stop = task.part
    columns, energies = x.shape[-1], np.zeros(stop - start)
    weighted = None if task.weights is None else np.zeros(stop - start)
    unit = unit_of(x)
    few = max(1, SLAB // (columns * unit)) * unit
    for first in range(start, stop, few):
        last = min(first + few, stop)
        rows = rows_between(x, first, last)
        values.add(rows)
        here = slice(first - start, last - start)
        with np.errstate(invalid="ignore", over="ignore"):
            energies[here] = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        if weighted is not None and task.weights is not None:
            squares = np.square(rows, dtype=np.float64)
            matrices = (np.arange(first, last) // x.shape[-2] - task.origin) % len(task.weights)
            for matrix in np.unique(matrices):
                of = matrices == matrix
                weighted[here][of] = np.einsum("ij,j->i", squares[of], task.weights[matrix])
    return Walked(values, energies, weighted)


def unit_of(x: QuantArray | ScaledArray) -> int:
    """The number of rows to read together: those of a scale tile, or 1."""
    return 1 if isinstance(x, QuantArray) or x.tile[0] is None else x.tile[0]


def rows_between(x: QuantArray | ScaledArray, first: int, last: int) -> NDArray[np.float32]:
    """Rows as floats, counted through all leading axes."""
    rows, columns = prod(x.shape[:-1]), x.shape[-1]
    if isinstance(x, ScaledArray):
        return np.asarray(x.reshape(rows, columns)[first:last].dequantize(np.float32))
    part = piece(x, first * columns, (last - first, columns))
    floats = dequantize(part, np.float32)
    release(part.blocks)
    return floats


def _elements(x: QuantArray | ScaledArray, first: int, count: int) -> NDArray[np.floating]:
    """Elements, counted through; float32 holds all of blocks and floats, integers need more."""
    if isinstance(x, ScaledArray):
        columns = x.shape[-1]
        flat = np.asarray(rows_between(x, first // columns, -(-(first + count) // columns))).reshape(-1)
        return flat[first % columns :][:count]
    part = piece(x, first, (count,))
    plain = x.format.block_size > 1 or x.format.name in FLOATS
    values: NDArray[np.floating] = dequantize(part, np.float32 if plain else np.float64)
    release(part.blocks)
    return values
