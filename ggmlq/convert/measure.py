"""Measures for recipes the error of each tensor in each type: sum of importance * (value - decoded value)^2.

Measurements stay with the open file, so a recipe for another target or size does not repeat them.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.progress import Progress
from ..base.threads import share
from ..formats import Format
from ..gguf.header import piece
from ..gguf.source import release
from ..ops import dequantize, quantize
from ..ops.quantize import prepare
from .model import Model
from .stream import LISTENING, check_finite, slabs

# --- sampled rows ----------------------------------------------------------------------------
# From them a recipe estimates the error of the whole tensor and its deviation. The error of a quantized row
# is near a constant share of its energy, the sum of squares weighted by importance. So rows are drawn with
# a probability in proportion to their energy, and an error is divided by that probability: rows of outliers
# are in for certain, and only the share is estimated, which hardly varies. All rows are read for their
# energy; a few are encoded, once for every type.

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]

ELEMENTS = 1 << 17  # of a tensor are measured, if it is not told otherwise
LEAST_ROWS = 16
FLOOR = 0.05  # of the mean energy is added to every row's: some error may lie where importance is 0


@dataclass(frozen=True)
class Sample:
    """Sampled rows of a tensor. ``chance``: the probability with which each row is drawn."""

    values: Floats  # [n, K]
    matrix: NDArray[np.int64]  # which matrix each is of
    chance: Wide
    energy: float  # of the whole tensor
    share: float  # of the rows that are here

    def total(self, errors: Wide) -> tuple[float, float]:
        """The estimate of the tensor's error from those of its sampled rows, and its standard deviation."""
        if (self.chance == 1).all():
            return float(errors.sum()), 0.0
        parts = errors / self.chance
        energies = float(parts.sum())
        n = len(parts)
        spread = (1 - self.chance) * (parts - energies / n) ** 2
        return energies, float(np.sqrt(n / (n - 1) * spread.sum()))


def draw(name: str, q: QuantArray, weights: Wide | None, elements: int) -> Sample:
    """A sample of a tensor's rows, the same in each call. ``weights``: importance [matrices, K]."""
    columns, rows = q.shape[-1], prod(q.shape[:-1])
    energies = _energies(name, q, weights)
    ids, chance = choose(name, energies, columns, elements)
    flat = piece(q, 0, (rows, columns))
    values = np.concatenate([dequantize(flat[int(i) : int(i) + 1]) for i in ids])
    release(q.blocks)
    matrix = ids // q.shape[-2] if len(q.shape) > 1 else ids * 0
    return Sample(values, matrix, chance, float(energies.sum()), len(ids) / rows)


def choose(name: str, energies: Wide, columns: int, elements: int) -> tuple[NDArray[np.int64], Wide]:
    """A sample of rows that stands for a tensor with these energies, and the probability of each row."""
    rows, count = len(energies), max(LEAST_ROWS, elements // columns)
    if rows <= 2 * count:
        return np.arange(rows), np.ones(rows)
    sizes = energies + FLOOR * energies.mean() if energies.any() else np.ones(rows)
    return _drawn(sizes, count, zlib.crc32(name.encode()))


def _drawn(sizes: Wide, count: int, seed: int) -> tuple[NDArray[np.int64], Wide]:
    """Row numbers drawn in proportion to sizes: at even steps along the sorted sizes, from a random start."""
    certain = np.zeros(len(sizes), bool)
    while True:  # what would be drawn more than once is in, and the others share what is left
        rest = sizes * ~certain
        chance = np.where(certain, 1.0, rest * (count - certain.sum()) / rest.sum())
        if not (chance > 1).any():
            break
        certain |= chance > 1
    order = np.argsort(sizes, kind="stable")
    ends = np.cumsum(chance[order])
    start = np.random.default_rng(seed).random()
    marks = np.floor(ends - start + 1e-9)
    ids = np.sort(order[np.diff(marks, prepend=np.floor(-start + 1e-9)) > 0])
    return ids, chance[ids]


def _energies(name: str, q: QuantArray, weights: Wide | None) -> Wide:
    """The energy of every row, a slab at a time."""
    columns, rows = q.shape[-1], prod(q.shape[:-1])
    energies = np.zeros(rows)
    for first, part in slabs(q, 1 if weights is None else len(weights)):
        values = dequantize(part)
        release(part.blocks)
        check_finite(name, q.shape, values, first)
        row = np.ones(columns) if weights is None else weights[_of(q, first) % len(weights)]

        def work(start: int, stop: int, values: Floats = values, row: Wide = row, first: int = first) -> None:
            wide = values[start:stop].astype(np.float64)
            energies[first + start : first + stop] = np.einsum("ij,ij,j->i", wide, wide, row)

        share(work, len(values))
    return energies


def _of(q: QuantArray, row: int) -> int:
    return row // q.shape[-2] if len(q.shape) > 1 else 0


# --- errors of types -------------------------------------------------------------------------


class TensorTrial(NamedTuple):
    """A tensor, the types to measure, and its importance [matrices, K] if there is any."""

    name: str
    formats: Sequence[Format]
    weights: Floats | None


class Error(NamedTuple):
    """The error of a tensor in a type, and its standard deviation where only some rows were encoded."""

    value: float
    deviation: float


@dataclass
class Measured:
    """The measurements of a tensor."""

    energy: float  # what an error would be if all became 0
    share: float  # of its rows were encoded
    errors: dict[Format, Error] = field(default_factory=dict)


Key = tuple[str, int, int]

_known: WeakKeyDictionary[Model, dict[Key, Measured]] = WeakKeyDictionary()


def measure(
    file: Model, trials: Sequence[TensorTrial], elements: int, progress: bool | None = None
) -> Mapping[str, Measured]:
    """Measure the errors by tensor and type. ``elements``: of each tensor are encoded, in each type."""
    measured = _known.setdefault(file, {})
    todo: list[tuple[TensorTrial, Measured | None, list[Format]]] = []
    for trial in trials:
        measurement = measured.get(_key(trial, elements))
        missing = [fmt for fmt in trial.formats if measurement is None or fmt not in measurement.errors]
        if missing or measurement is None:
            todo.append((trial, measurement, missing))
    _prepare(file, todo, elements)
    with Progress(
        sum(1 + len(missing) for _, _, missing in todo), "measuring types", "types", progress
    ) as bar:
        for trial, before, missing in todo:
            weights = None if trial.weights is None else trial.weights.astype(np.float64)
            sample = draw(trial.name, file[trial.name], weights, elements)
            bar.advance(1)
            measurement = before or Measured(sample.energy, sample.share)
            for fmt in missing:
                measurement.errors[fmt] = error_of(sample, fmt, trial.weights)
                bar.advance(1)
            measured[_key(trial, elements)] = measurement
    return {trial.name: measured[_key(trial, elements)] for trial in trials}


def _key(trial: TensorTrial, elements: int) -> Key:
    return trial.name, elements, 0 if trial.weights is None else zlib.crc32(trial.weights.tobytes()) + 1


def _prepare(file: Model, todo: Sequence[tuple[TensorTrial, object, list[Format]]], elements: int) -> None:
    """Load the encoders that all samples together repay: each call encodes a few rows only."""
    sums: dict[tuple[Format, bool], int] = {}
    for trial, _, missing in todo:
        count = min(2 * elements, prod(file.info(trial.name).shape))
        for fmt in missing:
            key = fmt, trial.weights is not None
            sums[key] = sums.get(key, 0) + count
    for (fmt, weighted), count in sums.items():
        if fmt.can_quantize:
            prepare(fmt, count, weighted)


def error_of(sample: Sample, fmt: Format, weights: Floats | None) -> Error:
    """The error of a sample in a type; infinite for a type that cannot hold the values."""
    errors = np.zeros(len(sample.values))
    for matrix in np.unique(sample.matrix):
        rows = sample.matrix == matrix
        row = None if weights is None else weights[matrix % len(weights)]
        values = sample.values[rows]
        with LISTENING, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of scales that a block cannot hold: asked below
            encoded = quantize(values, fmt, row)
        if fmt.invalid(encoded.blocks).any():
            return Error(np.inf, 0.0)
        lost = values.astype(np.float64) - dequantize(encoded)
        scale: Wide = np.ones(values.shape[1]) if row is None else row.astype(np.float64)
        errors[rows] = np.einsum("ij,ij,j->i", lost, lost, scale)
    return Error(*sample.total(errors))


# --- the weight of a tensor's error in the sum that a recipe minimizes -----------------------
# **error**: 1, the plain sum of importance * (value - new value)^2. A tensor that the matrix lacks counts
# as if each of its columns had the importance that is usual in the model: the median of the means of the
# others.
#
# **relative**: 1 over the tensor's own energy. Norms take scales out again, so what a layer puts out is off
# by as much as its tensors are, relative to themselves. The layers' outputs are added up, so a tensor of
# one of L layers counts 1 / L beside the embedding and the output matrix, which all tokens pass.
#
# **both**: *relative* and a quarter of *error*, each divided by its value for a model of zeros. Logits
# follow *relative*; where that differs little *error* decides.

OBJECTIVES = ("both", "relative", "error")
QUARTER = 0.25
LAYER = re.compile(r"(?:^|\.)blk\.(\d+)\.")


def factors(trials: Sequence[TensorTrial], measured: Mapping[str, Measured], objective: str) -> list[float]:
    """The factor for the error of each tensor, under an objective."""
    energies = np.array([measured[trial.name].energy for trial in trials])
    factors_by_objective = {
        "error": lambda: _plain(trials),
        "relative": lambda: _relative(trials, energies),
        "both": lambda: (
            _shares(_relative(trials, energies), energies) + QUARTER * _shares(_plain(trials), energies)
        ),
    }[objective]()
    return [float(factor) for factor in factors_by_objective]


def _shares(counts: Wide, energies: Wide) -> Wide:
    """The counts, scaled so that the energies weighted by them sum to 1."""
    return counts / (float(counts @ energies) or 1.0)


def _plain(trials: Sequence[TensorTrial]) -> Wide:
    means = [float(trial.weights.mean()) for trial in trials if trial.weights is not None]
    usual = float(np.median(means)) if means else 1.0
    return np.array([usual if trial.weights is None else 1.0 for trial in trials])


def _relative(trials: Sequence[TensorTrial], energies: Wide) -> Wide:
    layer_names = [LAYER.search(trial.name) for trial in trials]
    layers = len({layer[1] for layer in layer_names if layer})
    return np.array(
        [
            (1 / energy if energy else 0.0) / (layers if layer else 1)
            for energy, layer in zip(energies, layer_names, strict=True)
        ]
    )


# --- measured: what an error of a tensor costs in KL of the logits ------------------------------
# The KL that one type of a tensor alone gives, divided by its error in that type, is the price of an error
# there; KL of small errors adds up, and grows with them. Where a layer was not measured its price lies
# between those of the layers around it that were, on a scale of logarithms; a tensor of no layer, or of a
# role that none has, gets the median of all.


class Sensitivity(NamedTuple):
    """The KL that one tensor alone in a type gives."""

    format: Format
    kl: float


def prices(
    trials: Sequence[TensorTrial], measured: Mapping[str, Measured],
    sensitivities: Mapping[str, Sensitivity],
) -> list[float]:  # fmt: skip
    """The KL that a unit of the error of each tensor costs."""
    logs = {}
    for name, one in sensitivities.items():
        error = measured[name].errors[one.format].value if name in measured else 0.0
        if one.kl > 0 and 0 < error < np.inf:
            logs[name] = float(np.log(one.kl / error))
    usual = float(np.median([*logs.values()])) if logs else 0.0
    roles: dict[str, list[tuple[int, float]]] = {}
    for name, log in logs.items():
        if (place := LAYER.search(name)) is not None:
            roles.setdefault(name[place.end() :], []).append((int(place[1]), log))
    return [float(np.exp(logs[t.name] if t.name in logs else _between(t.name, roles, usual))) for t in trials]


def _between(name: str, roles: Mapping[str, list[tuple[int, float]]], usual: float) -> float:
    place = LAYER.search(name)
    if place is None or name[place.end() :] not in roles:
        return usual
    layers, logs = zip(*sorted(roles[name[place.end() :]]), strict=True)
    return float(np.interp(int(place[1]), layers, logs))
