"""The doctor's y and its repeats, checked and brought to the host as float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import QuantArray
from ..base.devices import to_host
from ..dispatch.checks import as_floats
from ..errors import DTypeError, ShapeError
from .numbers import BF16, HALF, Wide

CALL = "diagnose(y, x, q)"


class Results(NamedTuple):
    """Results of one kernel on the same operands, each [M, N] in float64."""

    y: Wide
    repeats: Sequence[Wide] = ()  # of further runs
    store: float = 0.0  # relative rounding of the type that y is stored in
    flipped: bool = False  # y came as [N, M]


def results(y: Any, repeats: Any, shape: tuple[int, ...], m: int) -> Results:
    """Results y and repeats as [m, N]; each may have ``shape``, [m, N], or be transposed as [N, m]."""
    values, store, flipped = _result("y", y, shape, m)
    others = [_result(f"repeats[{i}]", other, shape, m)[0] for i, other in enumerate(repeats)]
    return Results(values, others, store, flipped)


def _result(name: str, y: Any, shape: tuple[int, ...], m: int) -> tuple[Wide, float, bool]:
    if isinstance(y, QuantArray):
        raise DTypeError(f"{CALL}: {name} is {y!r}; a kernel's output is floats; pass its array")
    values = as_floats(f"{CALL}: {name}", to_host(y))
    store = HALF if values.dtype.itemsize == 2 else 0.0
    if getattr(getattr(y, "dtype", None), "name", "") == "bfloat16":
        store = BF16
    n = shape[-1]
    flipped = values.shape == (n, m) and values.shape not in (shape, (m, n))
    if flipped:
        values = values.T
    elif values.shape not in (shape, (m, n)):
        raise ShapeError(
            f"{CALL}: {name} has shape {values.shape}, x and q give {shape}; "
            "pass the whole output of the same product, reshaped if it was dumped flat"
        )
    return np.ascontiguousarray(values.reshape(m, n), np.float64), store, flipped
