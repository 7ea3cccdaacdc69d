"""The judgement of ``ggmlq check`` on one result: the arithmetic that made it, and how many errors it has.

An element is right where it lies within the bound of the arithmetic, which covers the order of f32 sums and
ties of rounding and no more. A distance is that of the worst row of weights: a figure over the whole matrix
would not see small rows beside a large one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import reference
from ..arrays.array import QuantArray
from ..base.indices import evenly_spaced
from ..errors import UnsupportedError
from .elements import distance, energy_of, measure

# How close a right kernel comes to its arithmetic (docs/arithmetic.md): nearer than this is a fit.
FIT = {
    "ggml-cpu": 1e-11, "ggml-cpu-fp16": 1e-11, "ggml-ref": 1e-11, "q8": 1e-11, "ggml-mmvq": 1e-9,
    "ggml-mmq": 1e-6, "f32": 1e-10, "tf32": 1e-10, "tf32-cut": 1e-10, "f16": 2e-7, "bf16": 2e-7,
}  # fmt: skip

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
    likely = ["ggml-cpu"] if backend == "CPU" else [*(ON_CUDA if few else ON_CUDA[::-1])]
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
        if these.loose and not _may_be_loose(arithmetic, arithmetics[0], len(x)):
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


def pieces_of(y: Any, x: Any, q: QuantArray, ids: Any) -> list[tuple[Any, Any, QuantArray]]:
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


def _may_be_loose(arithmetic: str, first: str, m: int) -> bool:
    """True where a loose limit may count: in the likeliest arithmetic, and in CUDA's two from two rows up."""
    return arithmetic == first or (m > 1 and {arithmetic, first} == set(ON_CUDA))


def _explains_more(candidate: Judgement, best: Judgement) -> bool:
    """True where a less likely arithmetic leaves less than half as many errors, or is ten times nearer."""
    if 2 * candidate.out < best.out:
        return True
    return candidate.out <= best.out and 10 * candidate.distance < best.distance
