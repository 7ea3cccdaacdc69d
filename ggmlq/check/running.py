"""One product of ``ggmlq check`` on a libggml: settings, operands, and the call that multiplies them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..llama import Bridge, Measurement
from .batches import Batch
from .cases import Case


@dataclass(frozen=True)
class Settings:
    """Settings of a run that all its cases share."""

    device: str
    backend: str  # of the device; it decides which arithmetic is tried first
    threads: int = 1
    repack: bool | str = False
    repeats: int = 3
    time_runs: int = 0
    arithmetic: str | None = None  # what the kernels claim


@dataclass(frozen=True)
class Product:
    """The operands of a case beside the library that multiplies them; rows of all batches are one matrix."""

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
        if self.ids is not None:
            operands["ids"] = self.ids
        if isinstance(self.case, Batch):
            operands |= {name: np.array(counts) for name, counts in self.case.json_facts.items()}
        return operands

    def run(self) -> Measurement:
        """The product itself, repeated and timed as the settings say; results of batches as rows."""
        how, case, ids = self.how, self.case, self.ids
        x, q = self.x, self.q
        batched = isinstance(case, Batch)
        if isinstance(case, Batch):
            (x, q), ids = case.axes(x, q), None
        result = self.bridge.measure(
            x, q, how.device, threads=how.threads, repack=how.repack, repeats=how.repeats,
            time_runs=how.time_runs, ids=ids, batched=batched,
        )  # fmt: skip
        if not batched:
            return result
        shape = (*(self.x.shape[:1] if self.ids is None else self.ids.shape), case.n)
        repeats = tuple(one.reshape(shape) for one in result.repeats)
        return replace(result, y=result.y.reshape(shape), repeats=repeats)

    def multiply(
        self, x: Any, *, threads: int | None = None, repeats: int = 1, expert: int | None = None
    ) -> Measurement:
        """The library's product of other activations [M, K] with the same weights, layout and device.

        ``expert``: the one whose weights make a plain product. LibraryFailedError where the library dies.
        """
        how, q = self.how, self.q if expert is None else self.q[expert]
        return self.bridge.measure(
            x, q, how.device, threads=threads or how.threads, repack=how.repack, repeats=repeats
        )
