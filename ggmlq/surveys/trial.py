"""Rows that stand for a tensor, encoded in each type: what is lost, told for all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import tasks
from ..convert.measure import error_of
from ..convert.sample import Sample, choose
from ..convert.tasks import prepare_once
from ..formats import FORMATS
from .walk import rows_between


class Drawn(NamedTuple):
    """Rows of a tensor, and the chance that each had to be among them."""

    ids: NDArray[np.int64]
    chance: NDArray[np.float64]
    energy: float  # of the whole tensor


class Trial(NamedTuple):
    """Types to be tried on some rows, plainly and, where there is importance, by it."""

    model: int
    name: str
    rows: tasks.Rows
    types: Sequence[tuple[str, int]]  # and how many elements of all tensors are tried in it
    plain: Drawn
    weighted: Drawn | None
    weights: NDArray[np.float32] | None  # importance [matrices, K]

    @property
    def what(self) -> str:
        return f"tensor {self.name!r} in {', '.join(kind for kind, _ in self.types)}"


class Tried(NamedTuple):
    """The error of each type relative to the energy; not of those that cannot hold the values."""

    errors: dict[str, float]
    sensitivity: dict[str, float] | None


def drawn(name: str, energies: NDArray[np.float64], columns: int, elements: int) -> Drawn:
    """Rows of a tensor of these energies."""
    return Drawn(*choose(name, energies, columns, elements), float(energies.sum()))


def trial(task: Trial) -> Tried:
    """Done by a worker."""
    plain = _errors(task, task.plain, None)
    return Tried(plain, None if task.weighted is None else _errors(task, task.weighted, task.weights))


def _errors(task: Trial, some: Drawn, weights: NDArray[np.float32] | None) -> dict[str, float]:
    x = task.rows.array()
    values = np.concatenate([rows_between(x, i, i + 1) for i in some.ids.tolist()])
    sample = Sample(values, some.ids // x.shape[-2], some.chance, some.energy, 0.0)
    losses = {}
    for kind, count in task.types:
        fmt = FORMATS[kind]
        if fmt.needs_imatrix and weights is None:
            continue
        prepare_once(fmt, weights is not None, count)
        error = error_of(sample, fmt, weights).value
        if np.isfinite(error):
            losses[kind] = error / some.energy if some.energy else 0.0
    return losses
