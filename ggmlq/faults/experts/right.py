"""The doctor's right products of lines with experts, in the arithmetic that fits, with error limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import reference
from ...arrays.scaled import ScaledArray
from ...base.indices import evenly_spaced
from ...errors import UnsupportedError
from ..numbers import Index, Wide
from ..scaled.inputs import usual_ways
from ..survey import typical
from .inputs import Lines

# Those of kernels, the likely ones first; "exact" stands for none of them.
NAMES = ("ggml-cpu", "q8", "ggml-mmvq", "ggml-mmq", "f32", "ggml-ref", "bf16x", "bf16s", "bf16", "f16")
LOOSE = 0.06  # of the typical size, where an arithmetic promises nothing
SUMS = 2e-3  # of it, for codes with scales: sums of tensor cores that are cut off and promoted
COLUMNS = 64  # on which an arithmetic is chosen
LINES = 64
ENOUGH = 0.999  # of elements that lie within: no other arithmetic needs to be looked at


@dataclass(frozen=True, eq=False)
class Way:
    """One way to take activations: an arithmetic, or scaled activations."""

    name: str
    x: Any = None  # a ScaledArray or floats in place of x

    def lines(self, g: Lines, rows: Index, experts: Index, columns: Any = None) -> tuple[Wide, Wide]:
        """The products of rows with experts, and the limit of their error, for some columns."""
        n = g.q.shape[1] if columns is None else len(columns)
        y, limit = np.empty((len(rows), n)), np.empty((len(rows), n))
        for e in np.unique(experts).tolist():
            at = np.flatnonzero(experts == e)
            matrix = g.q[e] if columns is None else g.q[e][columns]
            y[at], limit[at] = self._product(g, rows[at], matrix)
        return y, limit + g.store * np.abs(y)

    def _product(self, g: Lines, rows: Index, matrix: Any) -> tuple[Wide, Wide]:
        x = (g.x if self.x is None else self.x)[rows]
        if isinstance(matrix, ScaledArray):
            y = reference.scaled_linear(x, matrix)
            return y, SUMS * _size(x, matrix)
        y, limit = reference.linear(x, matrix, self.name), reference.bound(x, matrix, self.name)
        return y, np.where(np.isfinite(limit), limit, LOOSE * _size(x, matrix))


def _size(x: Any, matrix: Any) -> Wide:
    """The typical size of products of such vectors."""
    a, w = (
        s.dequantize(np.float64) if hasattr(s, "dequantize") else np.asarray(s, float) for s in (x, matrix)
    )
    return typical(a, w)


def ways(g: Lines, claim: str | None) -> list[Way]:
    """Ways in which a right kernel may take the activations."""
    if not isinstance(g.q, ScaledArray):
        return [Way(name) for name in ([claim] if claim else NAMES) if _known(g, name)]
    return [Way(way.name, way.s) for way in usual_ways(g.x, g.q[0])[0]]


def _known(g: Lines, name: str) -> bool:
    try:
        reference.rule(g.q.format, name)
    except UnsupportedError:
        return False
    return True


def best(g: Lines, claim: str | None, known: Index, rows: Index, experts: Index) -> Way:
    """The way that explains most of some lines, for which the row and the expert are known."""
    lines = known[evenly_spaced(len(known), LINES)]
    columns = evenly_spaced(g.q.shape[1], COLUMNS)
    y = g.y[np.ix_(lines, columns)]
    ranks: list[tuple[float, float, int]] = []
    choices = ways(g, claim)
    for i, way in enumerate(choices):
        p, limit = way.lines(g, rows[lines], experts[lines], columns)
        inside, size = within(y, p, limit), np.abs(p).mean() or 1.0
        off = np.abs(y - p)
        off = off[~np.isnan(off)]  # where both are infinite none is left
        far = float(np.median(off) / size) if off.size else np.inf
        ranks.append((-round(float(inside.mean()), 2), far, i))
        if inside.mean() > ENOUGH and (limit <= LOOSE / 2 * np.maximum(np.abs(p), size)).all():
            break
    return choices[min(ranks)[2]]


def within(y: Wide, p: Wide, limit: Wide) -> Any:
    """Elements that lie within their limits, or are not finite in both."""
    return (np.abs(y - p) <= limit) | (~np.isfinite(p) & ~np.isfinite(y))
