"""The oracle of ``linear``: what a product is, before any kernel rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..array import QuantArray
from ..checks import check_linear
from ..devices import to_host
from ..errors import UnsupportedError

SLAB = 1 << 22  # weights decoded at a time


def linear(x: Any, q: QuantArray, arithmetic: str = "exact") -> NDArray[np.float64]:
    """``x [..., K] @ q [N, K].T`` in float64 on the host, as a NumPy array.

    Parameters
    ----------
    x : array of floats
        Activations, on any device.
    q : QuantArray
        Weights, on any device.
    arithmetic : str
        How the program that is judged multiplies. ``"exact"``: the activations as given times
        the decoded weights, both in float64.
    """
    if arithmetic not in ARITHMETICS:
        raise UnsupportedError(
            f"reference.linear(x, q, {arithmetic!r}): this version computes "
            f"{', '.join(map(repr, ARITHMETICS))}; use one of these"
        )
    x, q = to_host(x), to_host(q)
    x = check_linear("reference.linear(x, q)", x, q)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return ARITHMETICS[arithmetic](rows, q).reshape(*x.shape[:-1], q.shape[0])


def exact(x: NDArray[Any], q: QuantArray) -> NDArray[np.float64]:
    """Float64 on the decoded weights; rows of weights slab by slab."""
    wide = x.astype(np.float64)
    y = np.empty((len(x), q.shape[0]))
    step = max(1, SLAB // max(q.shape[1], 1))
    for start in range(0, q.shape[0], step):
        w = q.format.decode(q.blocks[start : start + step], np.float64)
        y[:, start : start + step] = wide @ w.T
    return y


ARITHMETICS: dict[str, Callable[[NDArray[Any], QuantArray], NDArray[np.float64]]] = {"exact": exact}
