"""Small tables of values that two formats share."""

from __future__ import annotations

import numpy as np

# The 16 levels of iq4_nl and iq4_xs.
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)

# Twice the values of e2m1 (mxfp4, nvfp4): bit 3 is the sign, code 8 is the -0 that counts as 0.
# The missing factor of one half is in the scales of both formats.
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
