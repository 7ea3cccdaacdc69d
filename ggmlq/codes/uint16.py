"""uint16: an unsigned integer of 16 bits, for values with a zero point or without negative ones.

bit    15 …  0                      value = 0 … 65535
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._integer import Integer, nearest, value


def to_code(x: Any, away: bool) -> int:
    return nearest(x, 0, 65535, away)


CODE = Integer(name="uint16", dtype=np.dtype(np.uint16), min=0, max=65535, to_code=to_code, value=value)
