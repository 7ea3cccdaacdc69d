"""Is a product right? Judged per weight row, in the arithmetic that the kernel declares."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import reference
from ..array import QuantArray
from ..devices import to_host
from ..ladder import Problem, Rung, choose

# How far a kernel may be from the oracle on its own operands, by what it sums in.
TOLERANCE = {"int32": 1e-11, "f32": 1e-10, "f16": 2e-7}


def assert_right(y: Any, x: Any, q: QuantArray, rung: Rung | None = None) -> None:
    """A product must be as near to the oracle as the sums of its rung allow.

    Without a rung: the one that serves this product unless another is asked for.
    """
    if rung is None:
        m, (n, k), kind = math.prod(x.shape[:-1]), q.shape, q.device.partition(":")[0]
        rung = choose(Problem("linear", q.format, m, n, k, kind, q.lasting))
    bound = TOLERANCE[rung.accumulate]
    want = reference.linear(x, q, rung.arithmetic)
    assert y.shape == want.shape, f"{q!r}: shape {y.shape}, expected {want.shape}"
    if not want.size:
        return
    errors = reference.row_errors(to_host(y), want, to_host(x), q)
    worst = int(np.argmax(errors))
    if not errors[worst] <= bound:
        raise AssertionError(
            f"{q!r}, {rung.name}: row {worst} is off by {errors[worst]:.2e}, "
            f"the bound is {bound:.0e}; rows beyond it: {int((~(errors <= bound)).sum())}"
        )
