"""What is known of a result once the best right kernel was found: what looking for faults goes by."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .readings import Wide

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Judged(Protocol):
    """The whole of y [M, N] beside the right result; one kind for each kind of weights."""

    @property
    def y(self) -> Wide:
        """What the kernel gave."""

    @property
    def prediction(self) -> Wide:
        """What the best right kernel gives."""

    @property
    def size(self) -> Wide:
        """The typical size of each element."""

    @property
    def limit(self) -> Wide:
        """How far a right kernel may be."""

    @property
    def bad(self) -> Mask:
        """Elements that no right kernel explains."""

    @property
    def alternatives(self) -> list[tuple[str, Wide]]:
        """What other right kernels give, by name, best first."""

    def fitting(self, axis: int) -> list[Wide]:
        """What right kernels give whose columns (or rows) stand in y, wherever they stand."""
