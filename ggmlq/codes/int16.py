"""int16: an integer of 16 bits, for states that need more than 8 bits.

bit    15 …  0                      value = -32768 … 32767, two's complement
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._integer import Integer, nearest, value


def to_code(x: Any, away: bool) -> int:
    return nearest(x, -32768, 32767, away)


CODE = Integer(name="int16", dtype=np.dtype(np.int16), min=-32768, max=32767, to_code=to_code, value=value)
