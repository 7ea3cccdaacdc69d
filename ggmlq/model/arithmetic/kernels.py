"""``Kernels``: products and attention by the library's kernels, everything else in float32."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.array import QuantArray
from ...base.devices import namespace
from ...ops.attention import attention
from ...ops.expert_linear import expert_linear
from ...ops.linear import linear
from ...ops.rows import take
from ..config import Rope
from ..rope import turned, turns
from . import parts

Array = Any  # an array of the arithmetic's type


class Seen(NamedTuple):
    """The positions that queries see, and what is done to their scores."""

    scale: float
    window: int
    cap: float
    sinks: Array | None


class Keys(NamedTuple):
    """Keys and values [B, HK, S, D] of all positions so far."""

    k: QuantArray
    v: QuantArray

    def of_heads(self) -> tuple[QuantArray, QuantArray]:
        """Keys and values of the only sequence, [HK, S, D]."""
        return self.k[0], self.v[0]


class Kernels:
    """The fastest arithmetic: what the kernels of this machine take by themselves."""

    dtype: Any = np.float32
    device = "cpu"
    steps = False  # angles as ggml computes them
    best: Any = None  # (logits): the best token of each row on the device, and a function that waits for it
    joins = False  # parts that follow each other are one launch, where nobody looks between them

    def placed(self, q: QuantArray) -> QuantArray:
        """Weights on the device."""
        return q

    def stacked(self, parts: list[QuantArray]) -> QuantArray:
        """Matrices [..., N, K] of one type over each other, on the device."""
        rows = [self.placed(part) for part in parts]
        raw = namespace(rows[0].memory).concatenate([part.raw for part in rows], axis=-2)
        shape = *rows[0].shape[:-2], sum(part.shape[-2] for part in rows), rows[0].shape[-1]
        return QuantArray(rows[0].format, shape, raw)

    def rows(self, q: QuantArray, ids: NDArray[np.int64]) -> Array:
        """Rows of the embedding."""
        return self.real(take(q, ids))

    def real(self, x: Any) -> Array:
        """Numbers in the type that everything is computed in."""
        return np.asarray(x).astype(self.dtype, copy=False)

    def linear(self, x: Array, q: QuantArray, bias: Array | None = None) -> Array:
        """``x @ q.T + bias``."""
        return np.asarray(linear(x, q, bias=bias))

    def expert_linear(self, x: Array, q: QuantArray, ids: Array) -> Array:
        """Rows times the experts that their tokens use, [T, U, N]."""
        return np.asarray(expert_linear(x, q, ids))

    def norm(self, x: Array, epsilon: float) -> Array:
        """Rows divided by the root of their mean square."""
        mean = np.square(x).mean(axis=-1, keepdims=True, dtype=np.float64).astype(self.dtype)
        return x * (self.dtype(1) / np.sqrt(mean + self.dtype(epsilon)))

    def weighted_norm(self, x: Array, epsilon: float, weights: Array) -> Array:
        """The norm of rows times its weights."""
        return self.norm(x, epsilon) * weights

    def attend(self, q: Array, cache: Keys, seen: Seen) -> Array:
        """Attention of queries [H, T, D] over a cache, [H, T, DV]: the last query is at its end."""
        return np.asarray(attention(
            q[None], cache.k, cache.v, causal=True, scale=seen.scale, window=seen.window or None,
            softcap=seen.cap, sinks=seen.sinks,
        ))[0]  # fmt: skip

    def turns(self, how: Rope, positions: NDArray[np.int64], factors: Array | None) -> tuple[Array, Array]:
        """Cosine and sine of positions in a row, [T, dims / 2]."""
        return turns(how, positions, factors, self.steps)

    def turned(self, x: Array, how: Rope, cos: Array, sin: Array) -> Array:
        """Heads [T, H, D] turned by their positions."""
        return turned(x, how, cos, sin)

    def ranked(self, shares: Array) -> Array:
        """Experts from the largest share of each token on."""
        return np.argsort(-shares, axis=-1, kind="stable")

    def routed(
        self, scores: Array, used: int, after: bool, of_one: bool, scale: float
    ) -> tuple[Array, Array] | None:
        """The experts [T, U] of the largest scores and their weights; None where it takes several steps."""
        return None

    def weighted_sum(self, y: Array, weights: Array) -> Array:
        """Results of experts [T, U, N] added up by weights [T, U], one after the other."""
        weighted = y * weights[..., None]
        total = weighted[:, 0]
        for i in range(1, weighted.shape[1]):
            total = total + weighted[:, i]
        return total

    def scores(self, q: Array, k: QuantArray) -> Array:
        """Queries times keys of one head, [T, S]."""
        return q @ self.real(k.dequantize()).T

    def mixed(self, weights: Array, v: QuantArray) -> Array:
        """Values of one head, summed by their weights, [T, DV]."""
        return weights @ self.real(v.dequantize())

    def attend_in_steps(self, q: Array, cache: Keys, seen: Seen, tell: parts.Tell) -> Array:
        """Attention with ``tell`` called for scores, weights and results."""
        return parts.attend(self, q, cache, seen, tell)

    def normed_sum(self, y: Array, x: Array, epsilon: float, weights: Array) -> tuple[Array, Array]:
        """The sum of rows, and its norm times the weights."""
        total = y + x
        return total, self.weighted_norm(total, epsilon, weights)

    def gated_product(self, activation: str, x: Array, q: QuantArray, bias: Array | None) -> Array:
        """act(gate) · up of rows times two matrices over each other, the gate's first."""
        return self.gated_pair(activation, self.linear(x, q, bias))

    def gated_experts(
        self, activation: str, x: Array, q: QuantArray, bias: Array | None, ids: Array
    ) -> Array:
        """act(gate) · up of the experts of tokens, [T, U, N], whose two matrices are over each other."""
        y = self.expert_linear(x, q, ids)
        return self.gated_pair(activation, y if bias is None else y + bias[ids])

    def gated_pair(self, activation: str, both: Array) -> Array:
        """act(gate) · up of rows that have both, gate first."""
        middle = both.shape[-1] // 2
        return self.gated(activation, both[..., :middle], both[..., middle:])

    def gated(self, activation: str, gate: Array, up: Array) -> Array:
        """act(gate) · up, by the activation's name: silu, gelu, swiglu_oai."""
        with np.errstate(over="ignore"):
            if activation == "silu":
                return gate / (1 + np.exp(-gate)) * up
            if activation == "gelu":
                return self.gelu(gate) * up
            gate, up = np.minimum(gate, self.dtype(7)), np.clip(up, self.dtype(-7), self.dtype(7))
            return gate / (1 + np.exp(self.dtype(-1.702) * gate)) * (up + 1)

    def gelu(self, x: Array) -> Array:
        """GELU by its approximation with a hyperbolic tangent."""
        one = self.dtype
        inner = one(0.79788456080286535587989211986876) * x * (1 + one(0.044715) * x * x)
        return one(0.5) * x * (1 + np.tanh(inner))

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x)), a share for each number by itself."""
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-x))

    def softmax(self, x: Array) -> Array:
        """Rows as shares of 1."""
        with np.errstate(invalid="ignore"):
            shares = np.exp(x - x.max(axis=-1, keepdims=True))
        return shares / shares.sum(axis=-1, keepdims=True)
