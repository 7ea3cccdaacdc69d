"""One product of a case on a library: how it is run, and the same weights again for other activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..array import QuantArray
from ..llama import Bridge, Measurement
from .cases import Case


@dataclass(frozen=True)
class Settings:
    """How every case is run."""

    device: str
    backend: str  # the device's: it decides which arithmetic is tried first
    threads: int = 1
    repack: bool | str = False
    repeats: int = 3
    time_runs: int = 0
    arithmetic: str | None = None  # what the kernels claim


@dataclass(frozen=True)
class Product:
    """The operands of a case beside the library that multiplies them."""

    bridge: Bridge
    case: Case
    x: NDArray[np.float32]
    q: QuantArray
    ids: NDArray[np.int32] | None
    how: Settings

    @property
    def arrays(self) -> dict[str, Any]:
        """The operands as a saved case holds them."""
        operands = {"x": self.x, "raw": self.q.raw}
        return operands if self.ids is None else {**operands, "ids": self.ids}

    def run(self) -> Measurement:
        """The product itself, repeated and timed as the settings say."""
        how = self.how
        return self.bridge.measure(
            self.x, self.q, how.device, threads=how.threads, repack=how.repack, repeats=how.repeats,
            time_runs=how.time_runs, ids=self.ids,
        )  # fmt: skip

    def multiply(
        self, x: Any, *, threads: int | None = None, repeats: int = 1, expert: int | None = None
    ) -> Measurement:
        """Other activations [M, K] times the same weights, in the same layout on the same device.

        Of weights of experts one is taken, as a plain product. LibraryFailedError where the library dies.
        """
        how, q = self.how, self.q if expert is None else self.q[expert]
        return self.bridge.measure(
            x, q, how.device, threads=threads or how.threads, repack=how.repack, repeats=repeats
        )
