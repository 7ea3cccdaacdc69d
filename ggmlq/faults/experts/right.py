"""What lines should be: in which arithmetic they were made, and how far each element may be from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import reference
from ...arrays.scaled import ScaledArray
from ...errors import UnsupportedError
from ...ops.operands import how_quantized, takes_zeros
from ...ops.quantize_scaled import quantize_scaled
from ..readings import Wide
from .inputs import Index, Lines

# Those of kernels, the likely ones first; "exact" stands for none of them.
NAMES = ("ggml-cpu", "q8", "ggml-mmvq", "ggml-mmq", "f32", "ggml-ref", "bf16x", "bf16s", "bf16", "f16")
LOOSE = 0.06  # of the typical size, where an arithmetic promises nothing
SUMS = 2e-3  # of it, for codes with scales: sums of tensor cores that are cut off and promoted
COLUMNS = 64  # on which an arithmetic is chosen
LINES = 64
ENOUGH = 0.999  # of elements that lie within: no other arithmetic needs to be looked at


@dataclass(frozen=True, eq=False)
class Way:
    """How activations were taken: an arithmetic, or scaled activations."""

    name: str
    x: Any = None  # a ScaledArray or floats in place of x

    def lines(self, g: Lines, rows: Index, experts: Index, columns: Any = None) -> tuple[Wide, Wide]:
        """The products of rows with experts, and how far they may be, for some columns."""
        n = g.q.shape[1] if columns is None else len(columns)
        y, limit = np.empty((len(rows), n)), np.empty((len(rows), n))
        for e in np.unique(experts).tolist():
            mine = np.flatnonzero(experts == e)
            matrix = g.q[e] if columns is None else g.q[e][columns]
            y[mine], limit[mine] = self._product(g, rows[mine], matrix)
        return y, limit + g.store * np.abs(y)

    def _product(self, g: Lines, rows: Index, matrix: Any) -> tuple[Wide, Wide]:
        x = (g.x if self.x is None else self.x)[rows]
        if isinstance(matrix, ScaledArray):
            y = reference.scaled_linear(x, matrix)
            return y, SUMS * typical(x, matrix)
        y, limit = reference.linear(x, matrix, self.name), reference.bound(x, matrix, self.name)
        return y, np.where(np.isfinite(limit), limit, LOOSE * typical(x, matrix))


def typical(x: Any, matrix: Any) -> Wide:
    """What products of such lengths have if their signs are random."""
    a, w = (
        s.dequantize(np.float64) if hasattr(s, "dequantize") else np.asarray(s, float) for s in (x, matrix)
    )
    size: Wide = np.sqrt(np.outer((a**2).sum(axis=1), (w**2).sum(axis=1)) / max(w.shape[1], 1))
    return size


def ways(g: Lines, claim: str | None) -> list[Way]:
    """All that a right kernel may do."""
    if not isinstance(g.q, ScaledArray):
        return [Way(name) for name in ([claim] if claim else NAMES) if _known(g, name)]
    if isinstance(g.x, ScaledArray):
        return [Way("these codes")]
    code, tile = how_quantized(None, g.q)
    tiles = dict.fromkeys((tuple(tile), (1, 128), (1, None)))
    c = g.q.tiling.c
    fits = [t for t in tiles if t[1] is None or t[1] % c == 0 or c % t[1] == 0 or c >= g.q.shape[2]]
    zeros = takes_zeros(None, code)
    made = [Way(f"x in tiles {t}", quantize_scaled(g.x, code, t, zeros=zeros, ragged="pad")) for t in fits]
    return [*made, Way("x as floats")]


def _known(g: Lines, name: str) -> bool:
    try:
        reference.rule(g.q.format, name)
    except UnsupportedError:
        return False
    return True


def best(g: Lines, claim: str | None, known: Index, rows: Index, experts: Index) -> Way:
    """The way that explains most of some lines whose rows and experts are known."""
    lines = known[spread(len(known), LINES)]
    columns = spread(g.q.shape[1], COLUMNS)
    y = g.y[np.ix_(lines, columns)]
    found: list[tuple[float, float, int]] = []
    choices = ways(g, claim)
    for i, way in enumerate(choices):
        p, limit = way.lines(g, rows[lines], experts[lines], columns)
        inside, size = within(y, p, limit), np.abs(p).mean() or 1.0
        off = np.abs(y - p)
        off = off[~np.isnan(off)]  # where both are infinite none is left
        far = float(np.median(off) / size) if off.size else np.inf
        found.append((-round(float(inside.mean()), 2), far, i))
        if inside.mean() > ENOUGH and (limit <= LOOSE / 2 * np.maximum(np.abs(p), size)).all():
            break
    return choices[min(found)[2]]


def within(y: Wide, p: Wide, limit: Wide) -> Any:
    """Which elements may be what they are."""
    return (np.abs(y - p) <= limit) | (~np.isfinite(p) & ~np.isfinite(y))


def spread(length: int, n: int) -> Index:
    """Indices from the first to the last."""
    return np.unique(np.linspace(0, max(length - 1, 0), n).astype(np.intp))[:length]
