"""A task of a survey: encode sampled rows of a tensor in each type, and estimate the tensor's error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import tasks
from ...convert.measure import error_of
from ...convert.sample import Sample, choose
from ...convert.tasks import prepare_once
from ...formats import FORMATS
from .walk import rows_between


class Drawn(NamedTuple):
    """A sample of a tensor's rows, and the probability with which each was drawn."""

    ids: NDArray[np.int64]
    chance: NDArray[np.float64]
    energy: float  # of the whole tensor


class Trial(NamedTuple):
    """A task: types to try on sampled rows, plainly and, where there is importance, by it."""

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
    """The error of each type relative to the tensor's energy, without types that cannot hold the values."""

    errors: dict[str, float]
    sensitivity: dict[str, float] | None


def drawn(name: str, energies: NDArray[np.float64], columns: int, elements: int) -> Drawn:
    """A sample of a tensor's rows, drawn by their energies."""
    return Drawn(*choose(name, energies, columns, elements), float(energies.sum()))


def trial(task: Trial) -> Tried:
    """The errors of all types on the sample of one task; a worker calls it."""
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
