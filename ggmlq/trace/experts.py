"""A trace's diagnosis of a wrong MUL_MAT_ID: rows used another expert's weights, or stand in other places.

``gq.diagnose`` sees one product at a time. These mistakes show only when all products of the node are
compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.indices import evenly_spaced
from ..faults import Diagnosis
from .operands import Part

COLUMNS = 48  # of each row: by chance no other row agrees with so many
MOST = 64  # wrong rows that a mix-up must explain; 8 times as many rows are compared
NEAR = 1e-3  # squared distance from an explanation, by the row's own size

Rows = NDArray[np.float64]
ASK = "look at the mapping from tokens to experts: matrix_rows, ids, and the strides of both"


def mix_up(parts: Sequence[Part], bad: Sequence[Part], all_experts: Sequence[QuantArray]) -> Diagnosis | None:
    """The diagnosis "wrong-expert" or "tokens-permuted" if it explains all wrong rows it tries, else None."""
    columns = evenly_spaced(bad[0].q.shape[0], COLUMNS)
    rows = [(part, m) for part in parts for m in range(len(part.x))][: MOST * MOST]
    right = np.stack([_product(part.x[m : m + 1], part.q, columns)[0] for part, m in rows[: 8 * MOST]])
    got = np.stack([part.y[m, columns] for part, m in rows[: 8 * MOST]]).astype(np.float64)
    size = (right**2).sum(axis=1) + 1e-300
    wrong = np.flatnonzero(~(((got - right) ** 2).sum(axis=1) <= NEAR * size))
    if not len(wrong):
        return None
    sample = wrong[:MOST]
    by_expert = _by_another_expert(rows, got, sample, columns, all_experts)
    if by_expert is not None:
        pairs = ", ".join(f"{a} by {b}" for a, b in sorted(by_expert.items()))
        return _diagnosis(
            "wrong-expert", f"rows of an expert were multiplied with another one's weights: {pairs}; {ASK}",
            rows, wrong,
        )  # fmt: skip
    by_row = _by_another_row(right, got, sample)
    if by_row is not None:
        pairs = ", ".join(f"{_place(rows, a)} holds {_place(rows, b)}" for a, b in list(by_row.items())[:8])
        return _diagnosis(
            "tokens-permuted", f"rows of the result stand in other places: {pairs}; {ASK}", rows, wrong
        )
    return None


def _product(x: NDArray[np.float32], q: QuantArray, columns: NDArray[np.intp]) -> Rows:
    product: Rows = x.astype(np.float64) @ q[columns].dequantize(np.float64).T
    return product


def _by_another_expert(
    rows: Sequence[tuple[Part, int]], got: Rows, wrong: NDArray[np.intp], columns: NDArray[np.intp],
    all_experts: Sequence[QuantArray],
) -> dict[str, str] | None:  # fmt: skip
    """For each expert with wrong rows, the one whose weights explain them all; None where none does."""
    x = np.stack([rows[i][0].x[rows[i][1]] for i in wrong])
    named = [rows[i][0].name for i in wrong]
    off = np.full((len(all_experts), len(wrong)), np.inf)
    for e, q in enumerate(all_experts):
        y = _product(x, q, columns)
        off[e] = ((got[wrong] - y) ** 2).sum(axis=1) / ((y**2).sum(axis=1) + 1e-300)
    pairs = {}
    for name in dict.fromkeys(named):
        members = np.array([i for i, other in enumerate(named) if other == name])
        e = int(off[:, members].max(axis=1).argmin())
        if not off[e, members].max() <= NEAR:
            return None
        pairs[name] = f"expert {e}"
    return pairs


def _by_another_row(right: Rows, got: Rows, wrong: NDArray[np.intp]) -> dict[int, int] | None:
    pairs = {}
    for i in wrong:
        off = ((got[i] - right) ** 2).sum(axis=1) / ((right**2).sum(axis=1) + 1e-300)
        j = int(np.nan_to_num(off, nan=np.inf).argmin())
        if not off[j] <= NEAR:
            return None
        pairs[int(i)] = j
    return pairs


def _place(rows: Sequence[tuple[Part, int]], i: int) -> int:
    """The position of a row among those of the node."""
    part, m = rows[i]
    return m if part.rows is None else int(part.rows[m])


def _diagnosis(fault: str, text: str, rows: Sequence[tuple[Part, int]], wrong: NDArray[np.intp]) -> Diagnosis:
    names = list(dict.fromkeys(rows[i][0].name for i in wrong))
    return Diagnosis(False, fault, 0.95, text, where={"experts": names, "rows": len(wrong)})
