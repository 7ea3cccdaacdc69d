"""int8: an integer of 8 bits that leaves -128 out, so that every code has its negative.

    bit    7 6 5 4 3 2 1 0              value = -127 … 127, two's complement

For weights and activations without a zero point, as in ggml's q8_0: |code| and -code always fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._integer import Integer, nearest, value


def to_code(x: Any, away: bool) -> int:
    return nearest(x, -127, 127, away)


CODE = Integer(name="int8", dtype=np.dtype(np.int8), min=-127, max=127, to_code=to_code, value=value)
