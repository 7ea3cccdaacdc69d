"""The error that the rounding of each tensor makes in the next state, from slopes that calibration observed.

A code is off by a step / √12, the root of the mean square. A slope is the change of the next state by that of
a number. Terms of a sum are rounded one by one, where their step is finer than the sum's. Errors that
saturation makes are not in it, nor those that grow over many steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..fixed.observers import Observed
from ..fixed.qformat import QFormat
from .weights import Weights

Real = NDArray[np.float64]
GATES_OF_A_UNIT = 3  # the errors of three rows of Wx or Rh meet in one state
TERMS = {
    "z_pre": ("Wx", "Rh", "bx", "br"), "r_pre": ("Wx", "Rh", "bx", "br"), "g_pre": ("Wx", "rRh", "bx"),
    "Rh_add_br": ("Rh", "br"), "h": ("old", "new"),
}  # fmt: skip


def slopes(run: Mapping[str, Real], h: Real) -> dict[str, Any]:
    """The change of the next state by that of each tensor, in the steps after the states ``h``."""
    z, r, g, added = (run[name] for name in ("z_out", "r_out", "g_out", "Rh_add_br"))
    by_z = np.concatenate([h[None], run["h"][:-1]]) - g
    by_g_pre = (1 - z) * (1 - g**2)
    by_r, by_added, by_z_pre = by_g_pre * added, by_g_pre * r, by_z * z * (1 - z)
    by_r_pre = by_r * r * (1 - r)
    return {
        "Wx": np.stack([by_z_pre, by_r_pre, by_g_pre]), "Rh": np.stack([by_z_pre, by_r_pre, by_added]),
        "z_pre": by_z_pre, "r_pre": by_r_pre, "g_pre": by_g_pre, "z_out": by_z, "r_out": by_r, "g_out": 1 - z,
        "Rh_add_br": by_added, "rRh": by_g_pre, "old": 1.0, "new": 1.0, "h": 1.0, "x": 0.0,
    }  # fmt: skip


def costs_of(
    weights: Weights, observed: Mapping[str, Observed], formats: Mapping[str, QFormat]
) -> dict[str, float]:
    """The root mean square of each tensor's error in the next state."""
    squares = {name: float(np.mean(f.scale**2)) / 12 for name, f in formats.items()}
    for name, sources in TERMS.items():
        finer = (np.mean(formats[source].exponent > formats[name].exponent) for source in sources)
        squares[name] *= float(sum(finer))
    for name, seen in observed.items():
        squares[name] *= seen.mean_square_slope * (GATES_OF_A_UNIT if name in ("Wx", "Rh") else 1)
    for product, rows, bias, operand in (("Wx", "W", "bx", "x"), ("Rh", "R", "br", "h")):
        slope = GATES_OF_A_UNIT * observed[product].mean_square_slope
        w = np.asarray(getattr(weights, rows), np.float64)
        by_operand = slope * float((w**2).sum(1).mean())
        squares[rows] *= slope * w.shape[1] * observed[operand].mean_square
        squares[bias] *= slope
        squares[operand] += by_operand * float(formats[operand].scale ** 2) / 12
    return {name: float(np.sqrt(square)) for name, square in squares.items()}
