"""The address of a matrix element in GPU memory, computed in 64 bits from sizes of 32."""

from __future__ import annotations

from typing import Any

from .atoms import inlined
from .language import uint64


@inlined
def address(base: Any, row: Any, pitch: Any, column: Any, size: Any) -> Any:
    """The address of element [row, column] of a matrix with ``pitch`` columns, ``size`` bytes each."""
    return base + (uint64(row) * uint64(pitch) + uint64(column)) * uint64(size)
