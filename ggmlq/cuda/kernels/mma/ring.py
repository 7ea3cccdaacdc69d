"""Rings of stages in shared memory that ``cp.async`` fills: the next stage, for loops by its offset."""

from __future__ import annotations

from typing import Any

from ...intrinsics.atoms import inlined
from ...intrinsics.language import uint32


def offset_advancer(count: int, length: int) -> Any:
    """The device function for the next of ``count`` stages, as its offset in a ring of them."""
    end = (count - 1) * length

    @inlined
    def after(stage: Any) -> Any:
        return 0 if stage == end else uint32(stage + length)

    return after
