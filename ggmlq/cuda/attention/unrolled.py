"""Loops that are written out: arrays of a thread stay in registers only where every index is a constant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..intrinsics.atoms import inlined


def unrolled(count: int, body: Callable[..., None], step: int = 1) -> Any:
    """The device function that calls ``body(i, …)`` ``count`` times, i growing by ``step``."""
    join = JOINED[len(inspect.signature(body).parameters) - 1]
    return _repeated(count, inlined(body), step, join)


def _repeated(count: int, body: Any, step: int, join: Any) -> Any:
    if count == 1:
        return body
    half = count // 2
    return inlined(
        join(_repeated(half, body, step, join), _repeated(count - half, body, step, join), half * step)
    )


def _of_one(first: Any, second: Any, ahead: int) -> Any:
    def both(i: Any, a: Any) -> None:
        first(i, a)
        second(i + ahead, a)

    return both


def _of_two(first: Any, second: Any, ahead: int) -> Any:
    def both(i: Any, a: Any, b: Any) -> None:
        first(i, a, b)
        second(i + ahead, a, b)

    return both


def _of_three(first: Any, second: Any, ahead: int) -> Any:
    def both(i: Any, a: Any, b: Any, c: Any) -> None:
        first(i, a, b, c)
        second(i + ahead, a, b, c)

    return both


def _of_four(first: Any, second: Any, ahead: int) -> Any:
    def both(i: Any, a: Any, b: Any, c: Any, d: Any) -> None:
        first(i, a, b, c, d)
        second(i + ahead, a, b, c, d)

    return both


def _of_five(first: Any, second: Any, ahead: int) -> Any:
    def both(i: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> None:
        first(i, a, b, c, d, e)
        second(i + ahead, a, b, c, d, e)

    return both


def _of_six(first: Any, second: Any, ahead: int) -> Any:
    def both(i: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> None:
        first(i, a, b, c, d, e, f)
        second(i + ahead, a, b, c, d, e, f)

    return both


# By arguments beside i.
JOINED = {1: _of_one, 2: _of_two, 3: _of_three, 4: _of_four, 5: _of_five, 6: _of_six}
