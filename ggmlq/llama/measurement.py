"""``Measurement``: the result of a product in a user's libggml, its repeats, times and stray writes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..formats.format import Floats
from .guards import GUARD, UNWRITTEN, Stray


@dataclass(frozen=True)
class Measurement:
    """The result of a product, and observations about its runs."""

    y: Floats  # [..., N]
    repeats: tuple[Floats, ...]  # the same product again, from fresh buffers of NaN
    seconds: tuple[float, ...]  # of each timed run
    buffer: str  # ggml's name of the memory that held the weights
    strays: tuple[Stray, ...] = ()  # memory beside the result that was overwritten
    forced: bool = False  # supports_op refuses such activations; llama.cpp multiplies them all the same

    @property
    def fastest(self) -> float:
        """Seconds of the fastest timed run, NaN without one."""
        return min(self.seconds, default=math.nan)

    @property
    def median(self) -> float:
        """Median seconds of the timed runs, NaN without one."""
        return float(np.median(self.seconds)) if self.seconds else math.nan

    @property
    def unwritten(self) -> NDArray[np.bool_]:
        """Elements of y that the kernel never wrote."""
        mask: NDArray[np.bool_] = self.y.view(np.uint32) == UNWRITTEN
        return mask

    @property
    def leaked(self) -> NDArray[np.bool_]:
        """A mask of the elements of y that hold the guards' NaN: the kernel read outside of its operands."""
        mask: NDArray[np.bool_] = self.y.view(np.uint32) & np.uint32(0x7FFFFFFF) == GUARD
        return mask

    @property
    def same(self) -> bool:
        """True where all repeats have the bits of the first."""
        return all(np.array_equal(self.y.view(np.uint32), r.view(np.uint32)) for r in self.repeats)
