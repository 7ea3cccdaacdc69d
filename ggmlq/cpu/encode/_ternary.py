"""What tq1_0 and tq2_0 share: one scale for 256 values, and codes 0, 1, 2."""

from __future__ import annotations

from typing import Any

from numba import types

from ..lanes import convert, load
from ..machine.jit import inner
from ._simple import half_away, largest

U8 = types.uint8


@inner
def scale(values: Any, at: int) -> Any:
    """The largest magnitude of 256 values."""
    d = largest(load(values, at, 32))
    for r in range(1, 8):
        d = max(d, largest(load(values, at + r * 32, 32)))
    return d


@inner
def trits(x: Any, inverse: Any) -> Any:
    """Codes as bytes."""
    return convert(half_away(x * inverse) + 1, U8)
