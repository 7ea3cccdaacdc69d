"""The oracle of ``linear``: the product in a named arithmetic, without the roundings of float32 sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..arrays.weights import Transposed
from ..base.devices import to_host
from ..dispatch.checks import as_floats
from ..errors import ShapeError, UnsupportedError
from ..ops.gated_linear import ACTIVATIONS, ALPHA, LIMIT
from ..ops.operands import check_blocks, check_linear, experts
from .multiply import multiply
from .operands import Activations, Weights, Wide, activations, weights
from .rules import Rule, rule
from .scaled_linear import SUMS, scaled_linear

SLAB = 1 << 22  # elements of either operand at a time


def linear(x: Any, q: QuantArray | Transposed, arithmetic: str | Rule = "exact") -> NDArray[np.float64]:
    """``x [..., K] @ q [N, K].T`` in float64 on the host, as a NumPy array.

    Parameters
    ----------
    x : array of floats, or QuantArray
        Activations, on any device; or activations already quantized, as q8_0, q8_1 or q8_K.
    q : QuantArray
        Weights, on any device; or ``q.T``, for ``y @ q`` of rows y [..., N].
    arithmetic : str or Rule
        How the program that is judged multiplies: a name in ``reference.ARITHMETICS``, or a Rule.
        ``"exact"``: the activations as given times the decoded weights, both in float64.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32), "q4_0")
    >>> x = np.linspace(0, 1, 32, dtype=np.float32)
    >>> for arithmetic in ("exact", "ggml-cpu", "ggml-mmvq"):
    ...     print(gq.reference.linear(x, q, arithmetic).round(4))
    [-5.2258 10.7742]
    [-5.2202 10.7789]
    [-5.2211 10.7798]
    """
    if isinstance(q, Transposed):
        return _transposed("reference.linear(y, q.T)", x, q.T, arithmetic)
    return by_slabs("reference.linear(x, q)", x, q, arithmetic, multiply)


def _transposed(request: str, y: Any, q: Any, arithmetic: str | Rule) -> NDArray[np.float64]:
    """``y [..., N] @ q [N, K]``: sums over rows of q, of products with the decoded weights."""
    if arithmetic not in ("exact", "f32"):
        raise UnsupportedError(
            f'{request}: arithmetic={arithmetic!r}; products along the rows of q are "exact" or "f32"; pass '
            "one of them"
        )
    y, q = to_host(y), to_host(q)
    check_blocks(request, q)
    y = as_floats(request, y)
    n, k = q.shape
    if y.ndim == 0 or y.shape[-1] != n:
        raise ShapeError(
            f"{request}: y has shape {tuple(y.shape)}, q {q.shape}; y is [..., N]; pass y as [..., {n}]"
        )
    lines = y.reshape(math.prod(y.shape[:-1]), n)
    lines = lines.astype(np.float32 if arithmetic == "f32" else np.float64).astype(np.float64)
    if q.scale is not None:
        lines = lines * np.asarray(q.scale, np.float64)
    out = np.zeros((len(lines), k))
    with np.errstate(invalid="ignore", over="ignore"):  # damaged and overflowing scales are data
        for rows, some in slabs(q):
            values = weights(some, arithmetic).values
            assert values is not None
            out += lines[:, rows] @ values
    return out.reshape(*y.shape[:-1], k)


def by_slabs(
    request: str, x: Any, q: QuantArray, arithmetic: str | Rule,
    compute: Callable[[Weights, Activations, Rule], Wide],
) -> Wide:  # fmt: skip
    """The array [..., N] that ``compute`` makes of the operands, checked, from slabs of their rows."""
    x, q = checked(request, x, q)
    how = rule(q.format, arithmetic)
    y = np.empty((math.prod(x.shape[:-1]), q.shape[0]))
    for rows, some_x in slabs(x):
        a = activations(some_x, q.format, arithmetic)
        for columns, some_q in slabs(q):
            y[rows, columns] = compute(weights(some_q, arithmetic), a, how)
    if q.scale is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            y *= np.asarray(q.scale, np.float64)
    return y.reshape(*x.shape[:-1], q.shape[0])


def checked(request: str, x: Any, q: QuantArray) -> tuple[Any, QuantArray]:
    """Both operands on the host, of shapes that fit."""
    x, q = to_host(x), to_host(q)
    if not isinstance(x, QuantArray):
        return check_linear(request, x, q), q
    if x.scale is not None:
        raise UnsupportedError(
            f"{request}: x is {x!r}; activations have no companion scale; pass x.dequantize()"
        )
    check_linear(request, np.empty(q.shape[-1:] if isinstance(q, QuantArray) else 0, np.float32), q)
    if not x.shape or x.shape[-1] != q.shape[1]:
        raise ShapeError(
            f"{request}: x has shape {x.shape}, q {q.shape}; the last axis of both is K; "
            f"pass x as [..., {q.shape[1]}]"
        )
    return x, q


def slabs(x: Any) -> Iterator[tuple[slice, Any]]:
    """Yield slices of rows of an array or a QuantArray, with these rows as 2-D arrays."""
    shape = (math.prod(x.shape[:-1]), x.shape[-1])
    if isinstance(x, QuantArray):
        rows: Any = QuantArray(x.format, shape, x.raw.reshape(shape[0], x.raw.shape[-1]))
    else:
        rows = x.reshape(shape)
    step = max(1, SLAB // max(x.shape[-1], 1))
    for start in range(0, rows.shape[0], step):
        part = slice(start, start + step)
        yield part, rows[part]


# --- expert_linear: the oracle of linear or scaled_linear for each expert -------------------------

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


# --- gated_linear: both products by their oracles, the activation in float64 ----------------------


def gated_linear(
    x: Any, gate: Any, up: Any, arithmetic: str | Rule = "exact", *, ids: Any = None,
    activation: str = "silu", bias: Any = None,
) -> NDArray[np.float64]:  # fmt: skip
    """``act(x @ gate.T) * (x @ up.T)`` in float64 on the host.

    Parameters
    ----------
    x, gate, up, ids, activation, bias
        As in :func:`ggmlq.gated_linear`, on any device.
    arithmetic : str or Rule
        As in :func:`ggmlq.reference.linear`; the activation is in float64 with all of them.

    >>> import numpy as np, ggmlq as gq
    >>> w = gq.quantize(np.eye(2, 32, dtype=np.float32), "f16")
    >>> gq.reference.gated_linear(np.array([1.0, 2.0] + [0.0] * 30), w, w, activation="relu")
    array([1., 4.])
    """
    if activation not in ACTIVATIONS:
        raise UnsupportedError(
            f"reference.gated_linear(x, gate, up): activation={activation!r}; there are "
            f"{', '.join(ACTIVATIONS)}; pass one of these"
        )
    with np.errstate(all="ignore"):
        both = bias if bias is not None else (None, None)
        g, u = (_product(x, w, ids, arithmetic, b) for w, b in zip((gate, up), both, strict=True))
        if activation == "swiglu_oai":
            g, u = np.minimum(g, LIMIT), np.clip(u, -LIMIT, LIMIT) + 1
            return np.asarray(u * g / (1 + np.exp(-ALPHA * g)))
        return np.asarray(u * _ACTIVATED[activation](g))


def _product(x: Any, w: Any, ids: Any, arithmetic: Any, bias: Any) -> Wide:
    if ids is not None:
        return expert_linear(x, w, ids, arithmetic, bias=bias)
    y = scaled_linear(x, w, arithmetic) if isinstance(w, ScaledArray) else linear(x, w, arithmetic)
    return y if bias is None else y + np.asarray(bias, np.float64)


_ERFC = np.frompyfunc(math.erfc, 1, 1)
_ACTIVATED: dict[str, Callable[[Wide], Any]] = {
    "silu": lambda g: g / (1 + np.exp(-g)),
    "gelu": lambda g: g * 0.5 * np.asarray(_ERFC(-g * math.sqrt(0.5)), np.float64),
    "gelu_tanh": lambda g: g * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))),
    "relu": lambda g: np.maximum(g, 0),
}
