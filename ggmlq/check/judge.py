"""The verdict on one result: in which arithmetic it was made, and whether it is right in that.

An element is right where it lies within the bound of the arithmetic: what f32 sums and ties of
rounding may do, and no more. Distances are by weight row, the worst one: a figure over the whole
matrix would be blind to small rows beside a large one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import reference
from ..array import QuantArray
from ..errors import UnsupportedError

Wide = NDArray[np.float64]

# How close a right kernel comes to its arithmetic (docs/arithmetic.md): nearer than this is a fit.
FIT = {
    "ggml-cpu": 1e-11, "ggml-ref": 1e-11, "q8": 1e-11, "ggml-mmvq": 1e-9, "ggml-mmq": 1e-6,
    "f32": 1e-10, "f16": 2e-7, "bf16": 2e-7,
}  # fmt: skip

# Where an arithmetic gives no bound (sums in halves, order unknown): six times an NMSE of 1e-4.
LOOSE = 0.06

SAMPLED = 1 << 16  # elements of a result beyond which a sample chooses the arithmetic


@dataclass(frozen=True)
class Judgement:
    """A result against one arithmetic."""

    arithmetic: str
    distance: float  # from the arithmetic, worst row
    from_exact: float  # the same from exact values
    out: int  # elements out of bound, or finite where they should not be, or the reverse

    @property
    def ok(self) -> bool:
        """Whether every element may be what it is."""
        return self.out == 0

    @property
    def fits(self) -> bool:
        """Whether no other arithmetic needs to be looked at."""
        return self.ok and not self.distance > FIT[self.arithmetic]  # NaN: all overflows, as it should


def candidates(backend: str, m: int) -> list[str]:
    """All arithmetics, the likely one of a backend first."""
    first = "ggml-cpu" if backend == "CPU" else "ggml-mmvq" if m <= 8 else "ggml-mmq"
    return [first, *(name for name in FIT if name != first)]


def judge(y: Any, x: Any, q: QuantArray, arithmetics: Sequence[str]) -> Judgement:
    """The first arithmetic that fits; of all the one that explains much more than those before.

    A large product is first judged in a sample of its rows and columns, to choose the arithmetic.
    """
    if y.size > SAMPLED and len(arithmetics) > 1:
        rows, columns = _spread(len(x), 16), _spread(q.shape[0], 256)
        found = judge(y[np.ix_(rows, columns)], x[rows], q[columns], arithmetics)
        arithmetics = [found.arithmetic]
    energy = _energy(x, q)
    from_exact = _distance(y, reference.linear(x, q, "exact"), energy)
    best: Judgement | None = None
    for arithmetic in arithmetics:
        try:
            wanted = reference.linear(x, q, arithmetic)
            slack = reference.bound(x, q, arithmetic)
        except UnsupportedError:  # nobody multiplies this type so
            continue
        if np.isposinf(slack).any():
            if arithmetic != arithmetics[0]:  # a loose limit must not excuse what others refuse
                continue
            slack = np.where(np.isposinf(slack), LOOSE * np.sqrt(energy), slack)
        out = _out_of_bound(y, wanted, slack)
        found = Judgement(arithmetic, _distance(y, wanted, energy), from_exact, out)
        if best is None or _explains_more(found, best):
            best = found
        if found.fits:
            break
    if best is None:
        raise UnsupportedError(
            f"{q.format.name} weights are not multiplied in {' or '.join(arithmetics)}; "
            "leave --arithmetic out, or choose another"
        )
    return best


def by_expert(y: Any, x: Any, q: QuantArray, ids: Any, arithmetics: Sequence[str]) -> Judgement:
    """The same for ids [T, U] of experts: each expert's rows, in the arithmetic of the one with most."""
    uses, lines = ids.reshape(-1), y.reshape(ids.size, -1)
    rows = x.reshape(-1, x.shape[-1])[np.arange(ids.size) // (1 if x.ndim == 3 else ids.shape[1])]
    experts, counts = np.unique(uses, return_counts=True)
    judged: list[Judgement] = []
    for e in experts[np.argsort(-counts, kind="stable")].tolist():
        mine = uses == e
        found = judge(lines[mine], rows[mine], q[e], [judged[0].arithmetic] if judged else arithmetics)
        if judged and not found.ok and judged[0].ok and len(arithmetics) > 1:
            found = judge(lines[mine], rows[mine], q[e], arithmetics)  # kernels may differ by rows
        judged.append(found)
    far = [[one.distance for one in judged], [one.from_exact for one in judged]]
    distance, from_exact = (max((d for d in some if not math.isnan(d)), default=math.nan) for some in far)
    return Judgement(judged[0].arithmetic, distance, from_exact, sum(one.out for one in judged))


def _explains_more(found: Judgement, best: Judgement) -> bool:
    """Less likely, so it must leave half as much, or be ten times nearer."""
    if 2 * found.out < best.out:
        return True
    return found.out <= best.out and 10 * found.distance < best.distance


def _spread(length: int, n: int) -> NDArray[np.intp]:
    """Indices from the first to the last."""
    return np.unique(np.linspace(0, length - 1, n).astype(np.intp))


def _out_of_bound(y: NDArray[Any], wanted: Wide, slack: Wide) -> int:
    with np.errstate(invalid="ignore"):
        inside = np.abs(y - wanted) <= slack
    finite = np.isfinite(wanted) & ~np.isnan(slack)
    return int(np.count_nonzero(np.where(finite, ~inside, np.isfinite(y))))


def _energy(x: NDArray[Any], q: QuantArray) -> NDArray[np.float64]:
    """What a product of such lengths has if its signs are random: ‖x‖²·‖w‖²/K, [M, N]."""
    w = q.dequantize(np.float64)
    of_x = np.sum(np.asarray(x, np.float64) ** 2, axis=1)
    return np.asarray(of_x[:, None] * np.sum(w**2, axis=1) / q.shape[1])


def _distance(y: NDArray[Any], wanted: Wide, energy: Wide) -> float:
    """Worst row of weights, over elements that are finite in both; NaN where there are none."""
    finite = np.isfinite(y) & np.isfinite(wanted)
    if not finite.any():
        return math.nan
    difference = np.subtract(y, wanted, where=finite, out=np.zeros_like(wanted))
    error = np.sum(difference**2, axis=0)
    total = np.sum(np.where(finite, energy, 0), axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.where(error == 0, 0.0, error / total).max())
