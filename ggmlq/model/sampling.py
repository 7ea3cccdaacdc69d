"""Choice of the next token from logits: the largest one, or a random one among the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.devices import is_host, to_host
from ..errors import ShapeError
from .finite import finite


@dataclass(frozen=True)
class Sampling:
    """The rule by which tokens are drawn.

    ``temperature`` 0 takes the largest logit. ``top_k``: the best so many, 0 for all. ``top_p``: the fewest
    whose shares reach that sum.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and self.top_k >= 0 and 0 < self.top_p <= 1):
            raise ShapeError(
                f"generate: temperature={self.temperature}, top_k={self.top_k}, top_p={self.top_p}; the "
                "first two are 0 or more, the last above 0 and up to 1; choose others"
            )

    def draw_each(self, rows: Any, live: Sequence[int], rngs: Sequence[np.random.Generator]) -> list[int]:
        """A token for the row of logits of each of the sequences ``live``, which draw independently."""
        if not is_host(rows):  # those of the host have been looked at
            finite(rows)
        if self.temperature == 0:
            best: list[int] = to_host(rows.argmax(axis=-1)).tolist()  # numbers alone come from a GPU
            return best
        return [self.draw(row, rng) for row, rng in zip(to_host(rows), (rngs[b] for b in live), strict=True)]

    def draw(self, logits: Any, rng: np.random.Generator) -> int:
        """A token, drawn from its logits by the rule."""
        if self.temperature == 0:
            return int(logits.argmax())  # one number comes from a GPU
        scaled = np.asarray(to_host(logits), np.float64) / self.temperature
        order = np.argsort(-scaled, kind="stable")
        order = order[: self.top_k] if self.top_k else order
        shares = np.exp(scaled[order] - scaled[order[0]])
        sums = np.cumsum(shares / shares.sum())
        count = int(np.searchsorted(sums, self.top_p)) + 1 if self.top_p < 1 else len(order)
        count = min(count, len(order))
        return int(order[min(np.searchsorted(sums, rng.random() * sums[count - 1], side="right"), count - 1)])
