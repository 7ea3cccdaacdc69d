"""``State``: what layers without keys remember of a sequence, in arrays that do not grow with it.

A step reads the arrays that the last one left and writes others, so a step that fails, or is not walked to
its end, leaves the sequence as it was. The last step can be taken back; before it there is no way.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.buffers import address_of
from ..base.devices import namespace

Array = Any  # an array of the arithmetic's type
Shapes = tuple[tuple[int, ...], ...]


class State:
    """The arrays of a sequence's layers without keys, before a step and behind it; zeros at its beginning."""

    def __init__(self, shapes: Shapes, layers: int) -> None:
        self._shapes, self._layers, self._before = shapes, layers, 0
        self.begun = 0  # the position at which the last step began, to which there is a way back
        self._halves: list[list[list[Array]]] = []  # by layers: two lists of arrays
        self._words: list[NDArray[np.int64]] = []

    def arrays(self, number: int, like: Array) -> tuple[list[Array], list[Array]]:
        """The arrays of a layer before the step, and those that the step writes, of the type of rows."""
        if not self._halves:
            self._make(namespace(like), like.dtype)
        halves = self._halves[number]
        return halves[self._before], halves[1 - self._before]

    def _make(self, xp: Any, dtype: Any) -> None:
        self._halves = [
            [[xp.zeros(shape, dtype) for shape in self._shapes] for _ in range(2)]
            for _ in range(self._layers)
        ]

    def words(self) -> NDArray[np.int64]:
        """The addresses that a program fills in: of each layer's arrays one before and one behind a step."""
        if not self._halves:
            self._make(np, np.float32)
        if not self._words:
            ways = [
                [
                    address_of(array)
                    for halves in self._halves
                    for pair in zip(*halves[::way], strict=True)
                    for array in pair
                ]
                for way in (1, -1)
            ]
            self._words = [np.array(way, np.int64) for way in ways]
        return self._words[self._before]

    def advance(self, begun: int) -> None:
        """Go on from what a step wrote that began at a position."""
        self._before, self.begun = 1 - self._before, begun

    def back(self) -> None:
        """Take the last step back."""
        self._before, self.begun = 1 - self._before, 0

    def clear(self) -> None:
        """Be at the beginning again."""
        self._halves, self._words, self._before, self.begun = [], [], 0, 0


def floats_of(shapes: Shapes) -> int:
    """The numbers that a layer's state has, before a step and behind it."""
    return 2 * sum(map(math.prod, shapes))
