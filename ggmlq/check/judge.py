"""The judgement of ``ggmlq check`` on one result: the arithmetic that made it, and how many errors it has.

An element is right where it lies within the bound of the arithmetic, which covers the order of f32 sums and
ties of rounding and no more. A distance is that of the worst row of weights: a figure over the whole matrix
would not see small rows beside a large one.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import reference
from ..arrays.array import QuantArray
from ..base.indices import evenly_spaced
from ..errors import GGMLQError, UnsupportedError

# How close a right kernel comes to its arithmetic (docs/arithmetic.md): nearer than this is a fit.
FIT = {
    "ggml-cpu": 1e-11, "ggml-cpu-fp16": 1e-11, "ggml-ref": 1e-11, "q8": 1e-11, "ggml-mmvq": 1e-9,
    "ggml-mmq": 1e-6, "f32": 1e-10, "tf32": 1e-10, "tf32-cut": 1e-10, "f16": 2e-7, "bf16": 2e-7,
}  # fmt: skip

OF_CUDA = ("CUDA", "ROCm", "MUSA")  # backends of one source
Piece = tuple[Any, Any, QuantArray]  # y [M, N], x [M, K] and q [N, K]
ON_CUDA = ("ggml-mmvq", "ggml-mmq")  # for few rows of activations, and for more

SAMPLED = 1 << 16  # elements of a result beyond which a sample chooses the arithmetic


@dataclass(frozen=True)
class Judgement:
    """The distance of a result from one arithmetic, and the number of its elements out of bound."""

    arithmetic: str
    distance: float  # from the arithmetic, worst row
    from_exact: float  # from exact values, worst row
    out: int  # elements out of bound, or finite where they should not be, or the reverse

    @property
    def ok(self) -> bool:
        """True where every element lies within its bound."""
        return self.out == 0

    @property
    def fits(self) -> bool:
        """True where no other arithmetic needs to be tried."""
        return self.ok and not self.distance > FIT.get(
            self.arithmetic, 0.0
        )  # NaN: all overflows, as it should


def candidates(backend: str, m: int) -> list[str]:
    """All arithmetics, the likely ones of a backend first; where CUDA changes kernels differs by year."""
    few = m <= 8
    likely = [*(ON_CUDA if few else ON_CUDA[::-1])] if backend in OF_CUDA else ["ggml-cpu", "f32"]
    return [*likely, *(name for name in FIT if name not in likely)]


def judge(y: Any, x: Any, q: QuantArray, arithmetics: Sequence[str], written: Any = None) -> Judgement:
    """The judgement in the first arithmetic that fits; where none does, in the one that explains most.

    ``written`` is a mask of the elements that the kernel wrote: only these are judged. A large product is
    first judged in a sample of its rows and columns, to choose the arithmetic.
    """
    if y.size > SAMPLED and len(arithmetics) > 1:
        rows, columns = evenly_spaced(len(x), 16), evenly_spaced(q.shape[0], 256)
        at = np.ix_(rows, columns)
        judgement = judge(y[at], x[rows], q[columns], arithmetics, None if written is None else written[at])
        arithmetics = [judgement.arithmetic]
    energy = energy_of(x, q)
    from_exact = distance(y, reference.linear(x, q, "exact"), energy)
    best: Judgement | None = None
    for arithmetic in arithmetics:
        if reference.ONE_TYPE.get(arithmetic, q.format.name) != q.format.name and len(arithmetics) > 1:
            continue
        try:
            these = measure(y, x, q, arithmetic, energy)
        except UnsupportedError:  # no program multiplies this type so
            continue
        # A loose limit may count in the likeliest arithmetic, and in CUDA's two from two rows up.
        of_cuda = len(x) > 1 and {arithmetic, arithmetics[0]} == set(ON_CUDA)
        if these.loose and arithmetic != arithmetics[0] and not of_cuda:
            continue
        out = these.out if written is None else these.out & written
        judgement = Judgement(arithmetic, these.distance, from_exact, int(np.count_nonzero(out)))
        if best is None or _explains_more(judgement, best):
            best = judgement
        if judgement.fits:
            break
    if best is None:
        raise UnsupportedError(
            f"{q.format.name} weights are not multiplied in {' or '.join(arithmetics)}; "
            "leave --arithmetic out, or choose another"
        )
    return best


def pieces_of(y: Any, x: Any, q: QuantArray, ids: Any) -> list[Piece]:
    """The product of each expert that ids [T, U] name, with its rows and weights; that of most rows first."""
    uses, lines = ids.reshape(-1), y.reshape(ids.size, -1)
    rows = x.reshape(-1, x.shape[-1])[np.arange(ids.size) // (1 if x.ndim == 3 else ids.shape[1])]
    experts, counts = np.unique(uses, return_counts=True)
    each = experts[np.argsort(-counts, kind="stable")].tolist()
    return [(lines[uses == e], rows[uses == e], q[e]) for e in each]


def by_expert(y: Any, x: Any, q: QuantArray, ids: Any, arithmetics: Sequence[str]) -> Judgement:
    """The judgement of a product with experts, ids [T, U], in the arithmetic of the expert of most rows."""
    judgements: list[Judgement] = []
    for piece in pieces_of(y, x, q, ids):
        judgement = judge(*piece, [judgements[0].arithmetic] if judgements else arithmetics)
        if judgements and not judgement.ok and judgements[0].ok and len(arithmetics) > 1:
            judgement = judge(*piece, arithmetics)  # kernels may differ by rows
        judgements.append(judgement)
    far = [[one.distance for one in judgements], [one.from_exact for one in judgements]]
    distance, from_exact = (
        max((d for d in distances if not math.isnan(d)), default=math.nan) for distances in far
    )
    return Judgement(judgements[0].arithmetic, distance, from_exact, sum(one.out for one in judgements))


def _explains_more(candidate: Judgement, best: Judgement) -> bool:
    """True where a less likely arithmetic leaves less than half as many errors, or is ten times nearer."""
    if 2 * candidate.out < best.out:
        return True
    return candidate.out <= best.out and 10 * candidate.distance < best.distance


# --- one arithmetic against one result, with a limit for each element -----------------------------

Wide = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Where an arithmetic gives no bound (sums in halves, order unknown): six times an NMSE of 1e-4. Such sums are
# steps of the smallest half apart, and beyond the largest one infinite, or no number.
LOOSE = 0.06
LARGEST_HALF, SMALLEST_HALF = 65504.0, 2.0**-24
PARTIAL = 4  # a partial sum may be so many times what the whole is expected to be


@dataclass(frozen=True)
class Elements:
    """The elements [M, N] of one result, each with its expected value and its limit."""

    y: Wide
    expected: Wide
    limit: Wide
    loose: bool  # the limit is no bound of this arithmetic
    energy: Wide

    @property
    def out(self) -> Mask:
        """Elements that are out of bound, or finite where they should not be, or the reverse."""
        with np.errstate(invalid="ignore"):
            inside = (np.abs(self.y - self.expected) <= self.limit) | np.isposinf(self.limit)
        finite = np.isfinite(self.expected) & ~np.isnan(self.limit)
        mask: Mask = np.where(finite, ~inside, np.isfinite(self.y))
        return mask

    @property
    def excess(self) -> Wide:
        """The error in units of its limit; infinite where an element is out in another way."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.abs(self.y - self.expected) / self.limit
        ratio = np.where(np.isnan(ratio), 0.0, ratio)
        return np.where(self.out & ~(ratio > 1), np.inf, np.where(self.out, ratio, np.minimum(ratio, 1.0)))

    @property
    def distance(self) -> float:
        """The distance from the arithmetic, in the worst row of weights."""
        return distance(self.y, self.expected, self.energy)


def measure(y: NDArray[Any], x: Any, q: QuantArray, arithmetic: str, energy: Wide | None = None) -> Elements:
    """Judge y [M, N] of x [M, K] and q [N, K]; an UnsupportedError where no program multiplies so."""
    expected = reference.linear(x, q, arithmetic)
    limit = reference.bound(x, q, arithmetic)
    energy = energy_of(x, q) if energy is None else energy
    loose = bool(np.isposinf(limit).any())
    if loose:
        limit = np.where(np.isposinf(limit), _loose_limit(expected, energy, q, arithmetic), limit)
    return Elements(np.asarray(y, np.float64), expected, limit, loose, energy)


def _loose_limit(expected: Wide, energy: Wide, q: QuantArray, arithmetic: str) -> Wide:
    """The limit where an arithmetic gives no bound; infinite where sums of halves may overflow."""
    typical = np.sqrt(energy)
    limit = LOOSE * typical
    if reference.rule(q.format, arithmetic).floats != "f16":
        return limit
    overflows = np.abs(expected) + PARTIAL * typical > LARGEST_HALF
    return np.where(overflows, np.inf, limit + np.sqrt(q.shape[1]) * SMALLEST_HALF)


def energy_of(x: NDArray[Any], q: QuantArray) -> Wide:
    """The expected square of a product of such lengths with random signs: ‖x‖²·‖w‖²/K, [M, N]."""
    w = q.dequantize(np.float64)
    squares = np.sum(np.asarray(x, np.float64) ** 2, axis=1)
    return np.asarray(squares[:, None] * np.sum(w**2, axis=1) / q.shape[1])


def distance(y: NDArray[Any], expected: Wide, energy: Wide) -> float:
    """The distance in the worst row of weights, over elements that are finite in both; NaN without any."""
    finite = np.isfinite(y) & np.isfinite(expected)
    if not finite.any():
        return math.nan
    difference = np.subtract(y, expected, where=finite, out=np.zeros_like(expected))
    error = np.sum(difference**2, axis=0)
    total = np.sum(np.where(finite, energy, 0), axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.where(error == 0, 0.0, error / total).max())


# --- the reason why a case has no verdict ---------------------------------------------------------


def for_json(value: float | None) -> float | None:
    """The value for JSON, which has neither NaN nor infinity."""
    return value if value is not None and math.isfinite(value) else None


def reason(error: Exception) -> str:
    """The message of an error; of one that ggmlq does not raise on purpose also its kind and its place."""
    if isinstance(error, GGMLQError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"this machine has too little memory: {error}"
    words = (str(error).strip().splitlines() or [""])[-1]
    frames = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
    return (
        f"an error of ggmlq itself, not of the library: {type(error).__name__}: {words} "
        f"({' '.join(frames[-1:])}); please report it"
    )
