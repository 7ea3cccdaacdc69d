"""The doctor's search for the row of activations and the expert that each line of y is really made of.

Products of other rows and experts are as far from a line as its own length; its own product, in whatever
arithmetic, a hundredth of that. So exact products in a few columns tell them apart.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...base.indices import evenly_spaced
from ..numbers import Index, Mask
from .inputs import Lines

COLUMNS = 24
NEAR = 0.05  # squared distance over squared length
MOST = 128  # lines for which every row is tried beside every expert
NOTHING, UNSEEN = -1, -2
AT_ONCE = 1 << 22  # distances


class Sources(NamedTuple):
    """The row and the expert of each line; NOTHING where none make it, UNSEEN where nobody looked."""

    rows: Index
    experts: Index

    @property
    def known(self) -> Mask:
        """The mask of lines for which the row and the expert are known."""
        return self.rows >= 0


class Prints:
    """Exact products of all rows with all experts, in a few columns."""

    def __init__(self, g: Lines) -> None:
        self.columns = evenly_spaced(g.q.shape[1], COLUMNS)
        e, count = len(g.q), len(self.columns)
        w = np.asarray(g.q[:, self.columns].dequantize(), np.float32).reshape(e * count, -1)
        x = g.x if isinstance(g.x, np.ndarray) else g.x.dequantize()
        self.of = (np.asarray(x, np.float32) @ w.T).reshape(len(x), e, count).astype(np.float64)
        self.y = g.y[:, self.columns]

    def far(self, lines: Any, rows: Any, experts: Any) -> Any:
        """Squared distances of lines to products, over the larger of their squared lengths."""
        p, y = self.of[rows, experts], self.y[lines]
        longer = np.maximum((p**2).sum(axis=-1), (y**2).sum(axis=-1))
        return _over(((p - y) ** 2).sum(axis=-1), longer)


def _over(square: Any, length: Any) -> Any:
    """NaN is far, and nothing is near nothing."""
    return np.nan_to_num(np.where(length > 0, square / np.where(length > 0, length, 1), 0), nan=9, posinf=9)


def sources(g: Lines) -> Sources:
    """For each line its own row and expert if these make it, else the nearest that do."""
    prints, rows, experts = Prints(g), g.rows.copy(), g.experts.copy()
    wrong = np.flatnonzero(prints.far(np.arange(len(rows)), rows, experts) > NEAR)
    for search in (_other_experts, _other_rows, _others):
        still = []
        if search is _others:
            rows[wrong] = experts[wrong] = UNSEEN
            wrong = wrong[evenly_spaced(len(wrong), MOST)]
        for line in wrong:
            r, e, far = search(prints, int(line), int(g.rows[line]), int(g.experts[line]))
            rows[line], experts[line] = (r, e) if far <= NEAR else (NOTHING, NOTHING)
            if far > NEAR:
                still.append(line)
        wrong = np.array(still, np.intp)
    return Sources(rows, experts)


def _other_experts(prints: Prints, line: int, r: int, e: int) -> tuple[int, int, float]:
    far = prints.far(line, r, slice(None))
    best = int(np.argmin(far))
    return r, best, float(far[best])


def _other_rows(prints: Prints, line: int, r: int, e: int) -> tuple[int, int, float]:
    far = prints.far(line, slice(None), e)
    best = int(np.argmin(far))
    return best, e, float(far[best])


def _others(prints: Prints, line: int, r: int, e: int) -> tuple[int, int, float]:
    step, best = max(1, AT_ONCE // max(1, prints.of[0].size)), (-1, -1, 9.0)
    for first in range(0, len(prints.of), step):
        far = prints.far(line, slice(first, first + step), slice(None))
        at = np.unravel_index(int(np.argmin(far)), far.shape)
        if far[at] < best[2]:
            best = (first + int(at[0]), int(at[1]), float(far[at]))
    return best
