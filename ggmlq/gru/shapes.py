"""Inputs and initial states of a GRU, float or fixed: their shapes, checked with errors in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DTypeError, ShapeError
from .weights import Floats, floats


def inputs(request: str, x: Any, channels: int, batch_first: Any, device: str = "cpu") -> Floats:
    """The array x as [T, N, C]."""
    if not isinstance(batch_first, bool | np.bool_):
        raise DTypeError(
            f"{request}: batch_first is {batch_first!r}; it is True ([N, T, C]) or False ([T, N, C])"
        )
    x = floats(request, x, "x", device)
    if x.ndim != 3 or x.shape[2] != channels:
        way = f"[N, T, {channels}]" if batch_first else f"[T, N, {channels}]"
        raise ShapeError(
            f"{request}: x has shape {x.shape}; this GRU takes {way} with batch_first={bool(batch_first)}; "
            "reshape it, one sequence as x[:, None]"
        )
    sequences: Floats = x.swapaxes(0, 1) if batch_first else x
    return sequences


def states(
    request: str, h0: Any, directions: int, n: int, units: int, device: str = "cpu"
) -> list[Floats] | None:
    """The array h0 as a list of [N, H], one for each direction; None stays None."""
    if h0 is None:
        return None
    h0 = floats(request, h0, "h0", device)
    rule = (directions, n, units)
    if h0.shape != rule and (directions != 1 or h0.shape != rule[1:]):
        short = rule[1:] if directions == 1 else rule
        raise ShapeError(
            f"{request}: h0 has shape {h0.shape}; states are {short}, one row a sequence; pass that, or "
            "None for zeros"
        )
    return list(h0.reshape(rule))
