"""The error of each tensor in each type, measured: sum of importance * (value - decoded value)^2.

What was measured stays with the open file: another target, or another size, asks again and waits for nothing.
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
from ..ops.encoding import prepare
from .model import Model
from .sample import Floats, Sample, Wide, draw
from .stream import LISTENING


class Wanted(NamedTuple):
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
    file: Model, wanted: Sequence[Wanted], elements: int, progress: bool | None = None
) -> Mapping[str, Measured]:
    """Errors by tensor and type. ``elements``: of a tensor are encoded, in each type."""
    known = _known.setdefault(file, {})
    todo: list[tuple[Wanted, Measured | None, list[Format]]] = []
    for want in wanted:
        found = known.get(_key(want, elements))
        missing = [fmt for fmt in want.formats if found is None or fmt not in found.errors]
        if missing or found is None:
            todo.append((want, found, missing))
    _prepare(file, todo, elements)
    bar = Progress(sum(1 + len(missing) for _, _, missing in todo), "measuring types", "types", progress)
    try:
        for want, before, missing in todo:
            weights = None if want.weights is None else want.weights.astype(np.float64)
            sample = draw(want.name, file[want.name], weights, elements)
            bar.advance(1)
            found = before or Measured(sample.energy, sample.share)
            for fmt in missing:
                found.errors[fmt] = error_of(sample, fmt, want.weights)
                bar.advance(1)
            known[_key(want, elements)] = found
    finally:
        bar.close()
    return {want.name: known[_key(want, elements)] for want in wanted}


def _key(want: Wanted, elements: int) -> Key:
    return want.name, elements, 0 if want.weights is None else zlib.crc32(want.weights.tobytes()) + 1


def _prepare(file: Model, todo: Sequence[tuple[Wanted, object, list[Format]]], elements: int) -> None:
    """Rows are encoded a few at a time; what is worth compiling shows in their sum."""
    sums: dict[tuple[Format, bool], int] = {}
    for want, _, missing in todo:
        count = min(2 * elements, prod(file.info(want.name).shape))
        for fmt in missing:
            key = fmt, want.weights is not None
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
            made = quantize(values, fmt, row)
        if fmt.invalid(made.blocks).any():
            return Error(np.inf, 0.0)
        lost = values.astype(np.float64) - dequantize(made)
        scale: Wide = np.ones(values.shape[1]) if row is None else row.astype(np.float64)
        errors[rows] = np.einsum("ij,ij,j->i", lost, lost, scale)
    return Error(*sample.total(errors))
