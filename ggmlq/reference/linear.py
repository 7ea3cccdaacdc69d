"""The oracle of ``linear``: the product in a named arithmetic, without the roundings of float32 sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.weights import Transposed
from ..base.devices import to_host
from ..dispatch.checks import as_floats
from ..errors import ShapeError, UnsupportedError
from ..ops.operands import check_blocks, check_linear
from .multiply import multiply
from .operands import Activations, Weights, Wide, activations, weights
from .rules import Rule, rule

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
    request: str,
    x: Any,
    q: QuantArray,
    arithmetic: str | Rule,
    compute: Callable[[Weights, Activations, Rule], Wide],
) -> Wide:
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
