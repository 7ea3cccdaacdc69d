"""uint8: an unsigned integer of 8 bits, for values with a zero point or without negative ones.

bit    7 6 5 4 3 2 1 0              value = 0 … 255
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._integer import Integer, nearest, value


def to_code(x: Any, away: bool) -> int:
    return nearest(x, 0, 255, away)


CODE = Integer(name="uint8", dtype=np.dtype(np.uint8), min=0, max=255, to_code=to_code, value=value)
