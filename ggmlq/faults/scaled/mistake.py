"""Mistakes replayed: what y would be with one, and how far float32 sums may then be."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..explanation import Mistake
from ..numbers import Wide
from .terms import Side, Terms, terms


class Replay(NamedTuple):
    """A result with a mistake in it."""

    y: Wide
    limit: Callable[[], Wide]  # how far float32 sums may be from it


Tried = Mistake[Replay]


def with_scales(
    t: Terms, fault: str, words: str, a: Wide | None = None, b: Wide | None = None, inner: Wide | None = None
) -> Tried:
    """A mistake of other scales, or of other sums under the scales."""
    y = t.product(inner, a, b)
    return Mistake(fault, words, Replay(y, lambda: t.limit(y, a, b)))


def with_codes(fault: str, words: str, a: Side, b: Side, free: int = 0) -> Tried:
    """A mistake of other codes."""
    t = terms(a, b)
    y = t.product()
    return Mistake(fault, words, Replay(y, lambda: t.limit(y)), free)
