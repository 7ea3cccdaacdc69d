"""What ``diagnose`` is given, checked and brought to the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import reference
from ..arrays.array import QuantArray
from ..base.devices import to_host
from ..dispatch.checks import as_floats
from ..errors import DTypeError, NonFiniteError, ShapeError, UnsupportedError
from ..ops.operands import check_linear
from .judged import Mask
from .readings import Wide
from .survey import Case

ASKED = "diagnose(y, x, q)"


@dataclass(frozen=True, eq=False)
class Given:
    """The operands, and whether y came with its axes exchanged."""

    case: Case
    repeats: list[Wide]
    flipped: bool


def given(
    y: Any, x: Any, q: QuantArray, arithmetic: str | None, repeats: Any, unwritten: Any = None
) -> Given:
    """Everything checked; errors say what does not fit."""
    if arithmetic is not None and arithmetic not in reference.ARITHMETICS:
        raise UnsupportedError(
            f"{ASKED} with arithmetic={arithmetic!r}: there is no such arithmetic; a kernel may "
            f"claim {', '.join(map(repr, reference.ARITHMETICS))}; or leave it out"
        )
    q = q.to("cpu") if isinstance(q, QuantArray) else q
    x = check_linear(ASKED, to_host(x), q)
    if arithmetic is not None:
        reference.rule(q.format, arithmetic)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).astype(np.float32).astype(np.float64)
    if not np.isfinite(rows).all():
        at = [int(i) for i in np.argwhere(~np.isfinite(rows))[0]]
        raise NonFiniteError(
            f"{ASKED}: x{at} is {rows[tuple(at)]}; activations must be finite, a product with NaN "
            "shows nothing; dump x again, or replace what is not finite"
        )
    want = (*x.shape[:-1], q.shape[0])
    values, store, flipped = result("y", y, want, len(rows))
    others = [result(f"repeats[{i}]", r, want, len(rows))[0] for i, r in enumerate(repeats)]
    mask = None if unwritten is None else _mask(unwritten, values.shape, flipped)
    return Given(Case(values, rows, q, store, unwritten=mask), others, flipped)


def _mask(unwritten: Any, shape: tuple[int, ...], flipped: bool) -> Mask | None:
    """Elements that were never written, as y lies; None where there are none."""
    mask = np.asarray(to_host(unwritten))
    mask = mask.T if flipped else mask
    if mask.dtype != np.bool_ or mask.size != math.prod(shape):
        raise ShapeError(
            f"{ASKED}: unwritten is {mask.dtype} of {mask.shape}, y has shape {shape}; pass a mask of "
            "booleans, one for each element of y"
        )
    return mask.reshape(shape) if mask.any() else None


def result(name: str, y: Any, want: tuple[int, ...], m: int) -> tuple[Wide, float, bool]:
    """One output as [M, N] in float64, what storing it rounded off, and whether it lay transposed."""
    if isinstance(y, QuantArray):
        raise DTypeError(f"{ASKED}: {name} is {y!r}; a kernel's output is floats; pass its array")
    values = as_floats(f"{ASKED}: {name}", to_host(y))
    store = 2.0**-11 if values.dtype.itemsize == 2 else 0.0
    if getattr(getattr(y, "dtype", None), "name", "") == "bfloat16":
        store = 2.0**-8
    n = want[-1]
    flipped = values.shape == (n, m) and values.shape not in (want, (m, n))
    if flipped:
        values = values.T
    elif values.shape not in (want, (m, n)):
        raise ShapeError(
            f"{ASKED}: {name} has shape {values.shape}, x and q give {want}; "
            "pass the whole output of the same product, reshaped if it was dumped flat"
        )
    return np.ascontiguousarray(values.reshape(m, n), np.float64), store, flipped
