"""Types of arrays, and limits of half, bfloat16 and float32, for all parts of the doctor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]

HALF, BF16 = 2.0**-11, 2.0**-8  # what a store in half or bfloat16 rounds off, relatively
LEAST_HALF = 2.0**-25  # half of the smallest half
LARGEST_HALF = 65504.0
OVERFLOWS_HALF = 65519.99  # a value beyond it rounds to an infinite half
SMALLEST = 2.0**-126  # below it a device may flush to zero
HUGE = 1e37  # beyond it partial sums may overflow float32
CAP = 1e6  # what one element may add to a score
NEAR = 0.02  # part of the error that a near explanation may leave


def half(values: Wide) -> Wide:
    """Values rounded to half, in float64."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float64)
