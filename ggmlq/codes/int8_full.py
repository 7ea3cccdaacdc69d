"""int8_full: an integer of 8 bits with its whole range.

    bit    7 6 5 4 3 2 1 0              value = -128 … 127, two's complement

With a zero point, where all 256 codes count; its scale still rests on 127.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._integer import Integer, nearest, value


def to_code(x: Any, away: bool) -> int:
    return nearest(x, -128, 127, away)


CODE = Integer(name="int8_full", dtype=np.dtype(np.int8), min=-128, max=127, to_code=to_code, value=value)
