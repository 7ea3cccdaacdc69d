"""The forward pass of a float GRU in float64, which yields the values of every stage by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..fixed.tables import sigmoid
from .weights import Weights

Real = NDArray[np.float64]
FEW = 1 << 18  # numbers of each kind that are held at a time


def steps(w: Weights, x: Any, h: Real) -> Iterator[dict[str, Real]]:
    """Yield the tensors of some neighbouring steps at a time, by their names in ``widths.NAMES``.

    Each is [steps, N, …]; the weights are left out. The argument ``h`` is the states before the first step,
    the tensor "h" those after each step. Weights may have any dtype; everything is computed in float64.
    """
    W, R, bx, br = (np.asarray(part, np.float64) for part in w)
    run = max(1, FEW // max(1, 3 * w.units * x.shape[1]))
    for start in range(0, len(x), run):
        part = np.asarray(x[start : start + run], np.float64)
        stages: list[dict[str, Real]] = []
        for wx in part @ W.T:
            stages.append(one(wx, h @ R.T, bx, br, h))
            h = stages[-1]["h"]
        yield {"x": part, **{name: np.stack([step[name] for step in stages]) for name in stages[0]}}


def one(wx: Real, rh: Real, bx: Real, br: Real, h: Real) -> dict[str, Real]:
    """All stages of one step, by name, from its products ``wx`` and ``rh`` [N, 3H] and the states ``h``."""
    units = h.shape[1]
    z, r, g = (slice(i * units, (i + 1) * units) for i in range(3))
    z_pre = wx[:, z] + rh[:, z] + bx[z] + br[z]
    r_pre = wx[:, r] + rh[:, r] + bx[r] + br[r]
    z_out, r_out = sigmoid(z_pre), sigmoid(r_pre)
    added = rh[:, g] + br[g]
    reset = r_out * added
    g_pre = wx[:, g] + reset + bx[g]
    g_out = np.tanh(g_pre)
    old, new = z_out * h, (1 - z_out) * g_out
    return {
        "Wx": wx, "Rh": rh, "z_pre": z_pre, "r_pre": r_pre, "z_out": z_out, "r_out": r_out,
        "Rh_add_br": added, "rRh": reset, "g_pre": g_pre, "g_out": g_out, "old": old, "new": new,
        "h": old + new,
    }  # fmt: skip
