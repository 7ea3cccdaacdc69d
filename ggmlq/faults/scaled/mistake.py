"""The doctor's imitation of one mistake in a product of scaled arrays: y and the rounding allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..findings import Mistake
from ..numbers import Wide
from .terms import Side, Terms, terms


class Replay(NamedTuple):
    """The result y with a mistake in it."""

    y: Wide
    limit: Callable[[], Wide]  # how far float32 sums may be from it


Tried = Mistake[Replay]


def with_scales(
    t: Terms, fault: str, words: str, a: Wide | None = None, b: Wide | None = None, inner: Wide | None = None
) -> Tried:
    """The mistake of other scales, or of other sums under the scales, with its y."""
    y = t.product(inner, a, b)
    return Mistake(fault, words, Replay(y, lambda: t.limit(y, a, b)))


def with_codes(fault: str, words: str, a: Side, b: Side, free: int = 0) -> Tried:
    """The mistake of other codes, with its y."""
    t = terms(a, b)
    y = t.product()
    return Mistake(fault, words, Replay(y, lambda: t.limit(y)), free)
