"""The oracle of ``expert_linear``: that of ``linear`` or ``scaled_linear`` for each expert's rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..base.devices import to_host
from ..errors import UnsupportedError
from ..ops.operands import experts
from .linear import linear
from .rules import Rule
from .scaled_linear import SUMS, scaled_linear

REQUEST = "reference.expert_linear(x, q, ids)"


def expert_linear(
    x: Any, q: QuantArray | ScaledArray, ids: Any, arithmetic: str | Rule = "exact", *, bias: Any = None,
    weights: Any = None,
) -> NDArray[np.float64]:  # fmt: skip
    """``y[t, u] = x[t] @ q[ids[t, u]].T`` in float64 on the host.

    Parameters
    ----------
    x : array of floats, or ScaledArray
        [T, K], or [T, U, K]: a row for each use. Floats x for weights with scales are taken as they are.
    q : QuantArray or ScaledArray
        The experts' weights [E, N, K].
    ids : array of integers
        [T, U]; one that is no expert is an error.
    arithmetic : str or Rule
        As in :func:`ggmlq.reference.linear`; for weights with scales how products are summed:
        ``"exact"``, ``"float32"`` or ``"fp22"``.
    bias : array, optional
        [E, N]: added to the results of each expert.
    weights : array, optional
        [T, U]: the result is the weighted sum of a token's experts, [T, N].

    Examples
    --------
    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 2, 32), "q4_0")
    >>> gq.reference.expert_linear(np.ones((1, 32)), q, [[1, 1]]).round(2)
    array([[[ 7.94, 24.  ],
            [ 7.94, 24.  ]]])
    """
    x, q, ids = to_host(x), to_host(q), to_host(ids)
    if isinstance(q, ScaledArray) and arithmetic not in SUMS:
        raise UnsupportedError(
            f"{REQUEST}: arithmetic={arithmetic!r}; products of {q!r} are summed in one of "
            f"{', '.join(SUMS)}; pass one of these"
        )
    operands = experts(REQUEST, x, q, ids, look=True, quantize=False)
    uses = operands.ids.reshape(-1)
    per = len(uses) // max(len(operands.x), 1)
    y = np.zeros((len(uses), q.shape[1]))
    for e in np.unique(uses).tolist():
        rows = np.flatnonzero(uses == e)
        y[rows] = product(operands.x[rows // per], q[e], arithmetic)
    y = y.reshape(operands.shape)
    if bias is not None:
        y += np.asarray(to_host(bias), np.float64)[operands.ids]
    if weights is not None:
        y = (y * np.asarray(to_host(weights), np.float64)[..., None]).sum(axis=1)
    return y


def product(rows: Any, matrix: Any, arithmetic: str | Rule) -> NDArray[np.float64]:
    """The product of one expert's rows."""
    if isinstance(matrix, ScaledArray):
        return scaled_linear(rows, matrix, str(arithmetic))
    return linear(rows, matrix, arithmetic)
