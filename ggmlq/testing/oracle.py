"""Is a product right? Judged per weight row, in the arithmetic that the kernel declares."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import reference
from ..array import QuantArray
from ..devices import to_host
from ..ladder import Rung

# How far a kernel may be from the oracle on its own operands, by what it sums in.
TOLERANCE = {"int32": 1e-11, "f32": 1e-10, "f16": 2e-7}


def assert_right(y: Any, x: Any, q: QuantArray, rung: Rung | None = None) -> None:
    """A product must be as near to the oracle as float32 sums (or the rung's own) allow."""
    bound = TOLERANCE[rung.accumulate if rung else "f32"]
    want = reference.linear(x, q, rung.arithmetic if rung else "exact")
    assert y.shape == want.shape, f"{q!r}: shape {y.shape}, expected {want.shape}"
    if not want.size:
        return
    errors = reference.row_errors(to_host(y), want, to_host(x), q)
    worst = int(np.argmax(errors))
    if not errors[worst] <= bound:
        raise AssertionError(
            f"{q!r}, {rung.name if rung else 'auto'}: row {worst} is off by {errors[worst]:.2e}, "
            f"the bound is {bound:.0e}; rows beyond it: {int((~(errors <= bound)).sum())}"
        )
