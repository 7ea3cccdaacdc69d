"""The weight of an error in a tensor, by the objective of a recipe.

**error**: 1, the plain sum of importance * (value - new value)^2. A tensor that the matrix lacks counts as if
each of its columns had the importance that is usual in the model: the median of the means of the others.

**relative**: 1 over the tensor's own energy. Norms take scales out again, so what a layer puts out is off by
as much as its tensors are, relative to themselves. What layers put out is added up, so a tensor of one of L
layers counts 1 / L beside the tables at both ends, which all tokens pass.

**both**: the second and a quarter of the first, each over what it would be if all became 0. Logits follow the
second; where that sees little difference the first decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from .measure import Measured, Wanted
from .sample import Wide

OBJECTIVES = ("both", "relative", "error")
QUARTER = 0.25
LAYER = re.compile(r"(?:^|\.)blk\.(\d+)\.")


def factors(wanted: Sequence[Wanted], measured: Mapping[str, Measured], objective: str) -> list[float]:
    """By which the error of each tensor is multiplied."""
    energies = np.array([measured[want.name].energy for want in wanted])
    found = {
        "error": lambda: _plain(wanted),
        "relative": lambda: _relative(wanted, energies),
        "both": lambda: (
            _shares(_relative(wanted, energies), energies) + QUARTER * _shares(_plain(wanted), energies)
        ),
    }[objective]()
    return [float(factor) for factor in found]


def _shares(counts: Wide, energies: Wide) -> Wide:
    """The counts, scaled so that the energies weighted by them sum to 1."""
    return counts / (float(counts @ energies) or 1.0)


def _plain(wanted: Sequence[Wanted]) -> Wide:
    means = [float(want.weights.mean()) for want in wanted if want.weights is not None]
    usual = float(np.median(means)) if means else 1.0
    return np.array([usual if want.weights is None else 1.0 for want in wanted])


def _relative(wanted: Sequence[Wanted], energies: Wide) -> Wide:
    found = [LAYER.search(want.name) for want in wanted]
    layers = len({layer[1] for layer in found if layer})
    return np.array(
        [
            (1 / energy if energy else 0.0) / (layers if layer else 1)
            for energy, layer in zip(energies, found, strict=True)
        ]
    )
