"""Small tables of values that two formats share, and the nearest-level search of the FP4 types."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .format import Floats

# The 16 levels of iq4_nl and iq4_xs.
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)

# Twice the values of e2m1 (mxfp4, nvfp4): bit 3 is the sign, code 8 is the -0 that counts as 0.
# The missing factor of one half is in the scales of both formats.
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def nearest_fp4(x: Floats, scale: Floats) -> NDArray[np.uint8]:
    """Codes of the levels ``scale * FP4`` nearest to x; a tie goes to the smaller magnitude.

    The distance is formed in float32 as ggml forms it, level by level: rounding decides ties.
    """
    size = np.abs(x)
    code = np.zeros(x.shape, np.uint8)
    best = size
    for i in range(1, 8):
        distance = np.abs(scale * np.float32(FP4[i]) - size)
        closer = (distance < best).view(np.uint8)
        code = np.maximum(code, closer * np.uint8(i))
        best = np.fmin(best, distance)
    minus = ((x < 0) & (code > 0)).view(np.uint8)
    return code | minus << np.uint8(3)
