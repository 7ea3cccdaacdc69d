"""Measures for recipes the error of each tensor in each type: sum of importance * (value - decoded value)^2.

Measurements stay with the open file, so a recipe for another target or size does not repeat them.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ..base.progress import Progress
from ..formats import Format
from ..ops import dequantize, quantize
from ..ops.quantize import prepare
from .model import Model
from .sample import Floats, Sample, Wide, draw
from .stream import LISTENING


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
    bar = Progress(sum(1 + len(missing) for _, _, missing in todo), "measuring types", "types", progress)
    try:
        for trial, before, missing in todo:
            weights = None if trial.weights is None else trial.weights.astype(np.float64)
            sample = draw(trial.name, file[trial.name], weights, elements)
            bar.advance(1)
            measurement = before or Measured(sample.energy, sample.share)
            for fmt in missing:
                measurement.errors[fmt] = error_of(sample, fmt, trial.weights)
                bar.advance(1)
            measured[_key(trial, elements)] = measurement
    finally:
        bar.close()
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
