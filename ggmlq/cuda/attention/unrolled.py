"""Loops that are written out: arrays of a thread stay in registers only where every index is a constant."""

from __future__ import annotations

from typing import Any

from ..intrinsics.atoms import inlined


def unrolled(count: int, body: Any, step: int = 1) -> Any:
    """The device function that calls ``body(i, a, b, c, d, e, f)`` for each i from its first argument on.

    There are ``count`` calls, ``step`` apart.
    """
    if count == 1:
        return body
    half = count // 2
    first, second, ahead = unrolled(half, body, step), unrolled(count - half, body, step), half * step

    @inlined
    def both(i: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> None:
        first(i, a, b, c, d, e, f)
        second(i + ahead, a, b, c, d, e, f)

    return both
