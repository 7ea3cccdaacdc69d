"""The oracle of ``gated_linear``: both products by their oracles, the activation in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.scaled import ScaledArray
from ..errors import UnsupportedError
from ..ops.gated_linear import ACTIVATIONS, ALPHA, LIMIT
from .expert_linear import expert_linear
from .linear import linear
from .operands import Wide
from .rules import Rule
from .scaled_linear import scaled_linear


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


def _silu(g: Wide) -> Wide:
    return np.asarray(g / (1 + np.exp(-g)))


def _gelu(g: Wide) -> Wide:
    upper = np.asarray(np.frompyfunc(math.erfc, 1, 1)(-g * math.sqrt(0.5)), np.float64)
    return g * 0.5 * upper


def _gelu_tanh(g: Wide) -> Wide:
    return np.asarray(g * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))))


def _relu(g: Wide) -> Wide:
    return np.maximum(g, 0)


_ACTIVATED = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "relu": _relu}
