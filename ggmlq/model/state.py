"""``State``: what layers without keys remember of a sequence, in arrays that do not grow with it.

A step reads the arrays that the last one left and writes others, so a step that fails, or is not walked to
its end, leaves the sequence as it was. There is no way back to a position before the last step.
"""

from __future__ import annotations

import math
from typing import Any

from ..base.devices import namespace

Array = Any  # an array of the arithmetic's type
Shapes = tuple[tuple[int, ...], ...]


class State:
    """The arrays of each such layer of a sequence, before a step and behind it; zeros at its beginning."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes, self._before = shapes, 0
        self._halves = dict[int, tuple[list[Array], list[Array]]]()

    def arrays(self, layer: int, like: Array) -> tuple[list[Array], list[Array]]:
        """The arrays of a layer before the step, and those that the step writes, of the type of rows."""
        if layer not in self._halves:
            xp = namespace(like)
            first, second = ([xp.zeros(shape, like.dtype) for shape in self._shapes] for _ in range(2))
            self._halves[layer] = first, second
        halves = self._halves[layer]
        return halves[self._before], halves[1 - self._before]

    def advance(self) -> None:
        """Go on from what the step wrote."""
        self._before = 1 - self._before

    def clear(self) -> None:
        """Be at the beginning again."""
        self._halves.clear()


def floats_of(shapes: Shapes) -> int:
    """The numbers that a layer's state has, before a step and behind it."""
    return 2 * sum(map(math.prod, shapes))
