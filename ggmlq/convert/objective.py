"""The weight of each tensor's error in the sum that a recipe minimizes, for the three objectives.

**error**: 1, the plain sum of importance * (value - new value)^2. A tensor that the matrix lacks counts as if
each of its columns had the importance that is usual in the model: the median of the means of the others.

**relative**: 1 over the tensor's own energy. Norms take scales out again, so what a layer puts out is off by
as much as its tensors are, relative to themselves. The layers' outputs are added up, so a tensor of one of L
layers counts 1 / L beside the embedding and the output matrix, which all tokens pass.

**both**: *relative* and a quarter of *error*, each divided by its value for a model of zeros. Logits follow
*relative*; where that differs little *error* decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from .measure import Measured, TensorTrial
from .sample import Wide

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
