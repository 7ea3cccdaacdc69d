"""The doctor's operands of a product with blocks, checked and brought to the host: a Case."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import reference
from ...arrays.array import QuantArray
from ...base.devices import to_host
from ...errors import NonFiniteError, ShapeError, UnsupportedError
from ...ops.operands import check_linear
from ..inputs import CALL, Results, results
from ..numbers import Mask
from .survey import Case


def checked(
    y: Any, x: Any, q: QuantArray, arithmetic: str | None, repeats: Any, unwritten: Any
) -> tuple[Case, Results]:
    """The case and all results; errors say what does not fit."""
    if arithmetic is not None and arithmetic not in reference.ARITHMETICS:
        raise UnsupportedError(
            f"{CALL} with arithmetic={arithmetic!r}: there is no such arithmetic; a kernel may "
            f"claim {', '.join(map(repr, reference.ARITHMETICS))}; or leave it out"
        )
    q = q.to("cpu") if isinstance(q, QuantArray) else q
    x = check_linear(CALL, to_host(x), q)
    if arithmetic is not None:
        reference.rule(q.format, arithmetic)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).astype(np.float32).astype(np.float64)
    if not np.isfinite(rows).all():
        at = [int(i) for i in np.argwhere(~np.isfinite(rows))[0]]
        raise NonFiniteError(
            f"{CALL}: x{at} is {rows[tuple(at)]}; activations must be finite, a product with NaN "
            "shows nothing; dump x again, or replace what is not finite"
        )
    r = results(y, repeats, (*x.shape[:-1], q.shape[0]), len(rows))
    mask = None if unwritten is None else _mask(unwritten, r)
    return Case(r.y, rows, q, r.store, unwritten=mask), r


def _mask(unwritten: Any, r: Results) -> Mask | None:
    """The mask of elements that were never written, in the order of y; None if there are none."""
    mask = np.asarray(to_host(unwritten))
    mask = mask.T if r.flipped else mask
    if mask.dtype != np.bool_ or mask.size != r.y.size:
        raise ShapeError(
            f"{CALL}: unwritten is {mask.dtype} of {mask.shape}, y has shape {r.y.shape}; pass a mask of "
            "booleans, one for each element of y"
        )
    return mask.reshape(r.y.shape) if mask.any() else None
