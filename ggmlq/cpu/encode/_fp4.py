"""The nearest level of mxfp4 and nvfp4, by the distances that ggml forms."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ...formats._tables import FP4
from ..lanes import chosen, convert, recast
from ..machine.jit import inner
from ._simple import magnitudes

I32, U8 = types.int32, types.uint8
LEVELS = FP4[:8].astype(np.float32)


@inner
def nearest_fp4(x: Any, scale: Any) -> Any:
    """Codes of the levels nearest to x as bytes; a tie goes to the smaller magnitude."""
    size = magnitudes(x)
    best, code = size, recast(x, I32) & 0
    for i in range(1, 8):
        distance = magnitudes(size - scale * LEVELS[i])
        closer = distance < best
        best = chosen(closer, distance, best)
        code = chosen(closer, i, code)
    negative = chosen(x < 0, code | 8, code)
    return convert(chosen(code > 0, negative, code), U8)
