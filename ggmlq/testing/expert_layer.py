"""The feed-forward layer of a mixture of experts in NumPy, for tests: router, three products, SwiGLU, sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..ops import expert_linear

Floats = NDArray[np.float32]


class Layer(NamedTuple):
    """The weights of the layer."""

    router: Floats  # [E, C]
    gate: Any  # [E, F, C]
    up: Any  # [E, F, C]
    down: Any  # [E, C, F]

    def route(self, x: Floats, used: int) -> tuple[NDArray[np.int64], Floats]:
        """The experts of each token, the likeliest first, and their shares: [T, U] both."""
        logits = x @ self.router.T
        likely = np.exp(logits - logits.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        ids = np.argsort(-likely, axis=1, kind="stable")[:, :used]
        return ids, np.take_along_axis(likely, ids, axis=1)

    def __call__(self, x: Floats, used: int, product: Callable[..., Any] = expert_linear) -> Floats:
        """The output [T, C] of the layer for x [T, C]; ``product(x, q, ids)`` multiplies with experts."""
        ids, weights = self.route(x, used)
        gate, up = product(x, self.gate, ids), product(x, self.up, ids)
        hidden = gate / (1 + np.exp(-gate)) * up
        y: Floats = (product(hidden.astype(np.float32), self.down, ids) * weights[..., None]).sum(axis=1)
        return y.astype(np.float32)
