"""``Kernels``: products and attention by the library's kernels, everything else in float32, rope too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...arrays.array import QuantArray
from ...base.devices import namespace
from ...ops.attention import attention
from ...ops.expert_linear import expert_linear
from ...ops.linear import linear
from ...ops.rows import take
from ..config import Rope

# --- attention in steps: scores, weights and results, by llama.cpp's names of their nodes ----

Array = Any  # an array of the arithmetic's type
Tell = Callable[[str, Array], None]


class Products(Protocol):
    """The two products of attention in an arithmetic, for one head."""

    dtype: Any

    def scores(self, q: Array, k: Any) -> Array: ...
    def mixed(self, weights: Array, v: Any) -> Array: ...


def attend(a: Products, q: Array, cache: Any, seen: Any, tell: Tell) -> Array:
    """Attention of queries [H, T, D], [H, T, DV]; ``tell`` gets kq, kq_soft_max and kqv."""
    heads, (k, v) = len(q), cache.of_heads()
    kv_heads = len(k)
    of = [h * kv_heads // heads for h in range(heads)]
    xp = namespace(q)
    scores = xp.stack([a.scores(q[h], k[of[h]]) for h in range(heads)]).astype(a.dtype, copy=False)
    tell("kq", scores)
    if seen.cap:
        cap = a.dtype(seen.cap)
        scores = scores * (1 / cap)
        tell("kq_scaled_1", scores)
        scores = np.tanh(scores)
        tell("kq_tanh", scores)
        scores = scores * cap
        tell("kq_scaled_2", scores)
    weights = weighed(scores * a.dtype(seen.scale), seen)
    tell("kq_soft_max", weights)
    result = xp.stack([a.mixed(weights[h], v[of[h]]) for h in range(heads)])
    result = result.astype(a.dtype, copy=False)
    tell("kqv", result)
    return result


def visible(
    queries: int, positions: int, window: int, xp: Any = np, start: int = 0, stop: int | None = None
) -> NDArray[np.bool_]:
    """The positions [T, S] that each query sees, the last query at the last position.

    ``start`` and ``stop``: of these positions alone.
    """
    at = xp.arange(start, positions if stop is None else stop)
    place = xp.arange(queries)[:, None] + positions - queries
    mask: NDArray[np.bool_] = at <= place
    return mask & (at > place - window) if window else mask


def weighed(scores: Array, seen: Any) -> Array:
    """Scores [H, T, S] as weights: the softmax over the positions that are seen, and the sinks."""
    xp = namespace(scores)
    mask = visible(scores.shape[1], scores.shape[2], seen.window, xp)
    scores = xp.where(mask, scores, scores.dtype.type(-np.inf))
    top = scores.max(axis=-1, keepdims=True)
    if seen.sinks is not None:
        sinks = xp.asarray(seen.sinks, scores.dtype)[:, None, None]
        top = np.maximum(top, sinks)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True, dtype=np.float64)
    if seen.sinks is not None:
        total = total + np.exp(sinks - top)
    return (weights / total).astype(scores.dtype)


# --- RoPE: queries and keys rotated by their positions ---------------------------------------
# Pairs of columns are rotated, each by an angle of its own. The angle of pair i at position p is ``p ·
# base^(-2i / dims)``, divided by the pair's factor where the file has some. A stretched context multiplies
# it by a scale; YaRN leaves fast pairs as they were trained.


class Angles(NamedTuple):
    """RoPE's angles at some positions: cosine and sine [T, dims / 2].

    ``neox``: pairs are half of them apart; otherwise neighbours.
    """

    neox: bool
    cos: Any
    sin: Any


def rope_angles(
    rope: Rope, positions: NDArray[np.int64], factors: Any = None, steps: bool = False
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Cosine and sine [T, dims / 2], in float64.

    ``steps``: as ggml computes them, in float32, each angle from the one before it.
    """
    real: Any = np.float32 if steps else np.float64
    pairs = rope.dims // 2
    ratio = real(rope.base) ** real(-2.0 / rope.dims)
    if steps:
        away: Any = np.empty((pairs, len(positions)), real)
        angle: Any = positions.astype(real)
        for i in range(pairs):
            away[i] = angle
            angle = angle * ratio
        away = away.T
    else:
        away = positions[:, None] * ratio ** np.arange(pairs)
    if factors is not None:
        away = away / np.asarray(factors, real)
    angle, length = away * real(rope.scale), rope.length
    if rope.mix:
        share = (_slow_pairs(rope, pairs) * rope.mix).astype(real)
        angle = angle * (1 - share) + away * share
        length *= 1 + 0.1 * math.log(1 / rope.scale)
    angle = angle.astype(np.float64)
    return np.cos(angle) * real(length), np.sin(angle) * real(length)


def _slow_pairs(rope: Rope, pairs: int) -> NDArray[np.float64]:
    """The share of the trained angle for each pair: 1 for fast ones, 0 for slow ones, a ramp between."""

    def pair_of(rotations: float) -> float:
        return rope.dims * math.log(rope.context / (rotations * 2 * math.pi)) / (2 * math.log(rope.base))

    low = max(0.0, math.floor(pair_of(rope.fast)))
    high = min(rope.dims - 1.0, math.ceil(pair_of(rope.slow)))
    ramp = (np.arange(pairs) - low) / max(0.001, high - low)
    share: NDArray[np.float64] = 1 - np.clip(ramp, 0, 1)
    return share


def apply_rope(x: NDArray[Any], rope: Rope, cos: NDArray[Any], sin: NDArray[Any]) -> NDArray[Any]:
    """Heads [T, H, D] rotated by RoPE; columns beyond ``rope.dims`` stay."""
    pairs = rope.dims // 2
    if rope.neox:
        first, second = slice(0, pairs), slice(pairs, rope.dims)
    else:
        first, second = slice(0, rope.dims, 2), slice(1, rope.dims, 2)
    cos, sin = (part[:, None, :].astype(x.dtype) for part in (cos, sin))
    a, b = x[..., first], x[..., second]
    y = x.copy()
    y[..., first] = a * cos - b * sin
    y[..., second] = a * sin + b * cos
    return y


# --- the arithmetic --------------------------------------------------------------------------


class Seen(NamedTuple):
    """The positions that queries see, and what is done to their scores."""

    scale: float
    window: int
    cap: float
    sinks: Array | None


class Routing(NamedTuple):
    """The way in which tokens choose experts by their shares, and weigh them."""

    used: int  # experts of a token
    after: bool  # shares of 1 among those chosen, and not among all
    sigmoid: bool  # a share for each expert by itself
    of_one: bool  # shares of those chosen are made to add up to 1
    scale: float  # of weights
    groups: int  # of experts, of which some are used, if there are several
    used_groups: int


class Past(NamedTuple):
    """The rows of a step that a sequence has, and its state in a layer before them and behind them."""

    rows: slice
    before: list[Array]
    behind: list[Array]


class Net(NamedTuple):
    """The delta rule of a layer: its vectors, and how heads of values take those of queries and keys."""

    bias: Array  # of the speed of forgetting, [H]
    decay: Array  # its factor, [H]
    norm: Array  # weights of the norm of a head's results, [D]
    groups: int  # heads of queries and of keys
    run: int  # heads of values whose gates follow each other: shares of so many, then speeds of as many
    turns: bool  # heads of values take those of keys in turns; otherwise as many follow each other
    epsilon: float


def joined(parts: Sequence[Array]) -> Array:
    """The rows of parts, one after the other."""
    return parts[0] if len(parts) == 1 else namespace(parts[0]).concatenate(parts)


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
    stacked_bytes = math.inf  # of a matrix, up to which it is stacked with others
    keeps = False  # the order of weights that its kernels read is kept on the disk
    latent = False  # attention over short vectors has kernels
    joins = False  # parts that follow each other are one launch, where nobody looks between them
    invariant = False  # bits of a row do not depend on the rows beside it, in any part
    xp = staticmethod(namespace)  # the module of an array's type

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
        return np.asarray(linear(x, q, bias=bias, invariant=self.invariant))

    def expert_linear(self, x: Array, q: QuantArray, ids: Array) -> Array:
        """Rows times the experts that their tokens use, [T, U, N]."""
        return np.asarray(expert_linear(x, q, ids, invariant=self.invariant))

    def sum(self, x: Array, y: Array) -> Array:
        """The sum of rows, or of rows and a bias."""
        return x + y

    def biased(self, y: Array, bias: Array, ids: Array) -> Array:
        """Results of experts [T, U, N] and the biases [E, N] of these."""
        return y + bias[ids]

    def by_head(self, x: Array, q: QuantArray) -> Array:
        """Heads [T, H, D] times a matrix of each head, [T, H, N]."""
        xp = namespace(x)
        return self.expert_linear(x, q, xp.broadcast_to(xp.arange(x.shape[1]), x.shape[:2]))

    def some_columns(self, x: Array, first: int, count: int) -> Array:
        """So many columns of rows from one on, contiguous."""
        return namespace(x).ascontiguousarray(x[..., first : first + count])

    def times(self, x: Array, factor: float) -> Array:
        """Rows times a number."""
        return x * self.dtype(factor)

    def capped(self, x: Array, cap: float) -> Array:
        """Numbers bent below a cap by a hyperbolic tangent."""
        most = self.dtype(cap)
        return np.tanh(x * (1 / most)) * most

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

    def layer(self, walk: Callable[[Any, int], Any], step: Any, x: Any, number: int) -> Any:
        """The rows behind a layer, which are ``walk(x, number)``."""
        return walk(x, number)

    def attend_all(self, sequences: Sequence[tuple[Array, Any]], seen: Seen) -> Array:
        """Attention of the queries of sequences, each over its own cache, one after the other [H, T, DV]."""
        parts = [self.attend(q, cache, seen) for q, cache in sequences]
        return parts[0] if len(parts) == 1 else namespace(parts[0]).concatenate(parts, axis=1)

    def angles(self, how: Rope, positions: NDArray[np.int64], factors: Array | None) -> tuple[Array, Array]:
        """Cosine and sine of positions in a row, [T, dims / 2]."""
        return rope_angles(how, positions, factors, self.steps)

    def apply_rope(self, x: Array, how: Rope, cos: Array, sin: Array) -> Array:
        """Heads [T, H, D] rotated by their positions."""
        return apply_rope(x, how, cos, sin)

    def ranked(self, shares: Array) -> Array:
        """Experts from the largest share of each token on."""
        return np.argsort(-shares, axis=-1, kind="stable")

    def routed(self, logits: Array, bias: Array | None, how: Routing) -> tuple[Array, Array] | None:
        """The experts [T, U] of the largest shares and their weights; None where it takes several steps.

        ``bias``: added to shares for the choice alone.
        """
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

    def attend_in_steps(self, q: Array, cache: Keys, seen: Seen, tell: Tell) -> Array:
        """Attention with ``tell`` called for scores, weights and results."""
        return attend(self, q, cache, seen, tell)

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
        return self.gated_pair(activation, y if bias is None else self.biased(y, bias, ids))

    def gated_pair(self, activation: str, both: Array) -> Array:
        """act(gate) · up of rows that have both, gate first."""
        middle = both.shape[-1] // 2
        return self.gated(activation, both[..., :middle], both[..., middle:])

    def gated(self, activation: str, gate: Array, up: Array) -> Array:
        """act(gate) · up, by the activation's name: silu, sigmoid, gelu, swiglu_oai."""
        with np.errstate(over="ignore"):
            if activation == "silu":
                return self.silu(gate) * up
            if activation == "sigmoid":
                return self.sigmoid(gate) * up
            if activation == "gelu":
                return self.gelu(gate) * up
            gate, up = np.minimum(gate, self.dtype(7)), np.clip(up, self.dtype(-7), self.dtype(7))
            return gate / (1 + np.exp(self.dtype(-1.702) * gate)) * (up + 1)

    def relu(self, x: Array) -> Array:
        """Numbers above 0, and 0."""
        return np.maximum(x, self.dtype(0))

    def gelu(self, x: Array) -> Array:
        """GELU by its approximation with a hyperbolic tangent."""
        one = self.dtype
        inner = one(0.79788456080286535587989211986876) * x * (1 + one(0.044715) * x * x)
        return one(0.5) * x * (1 + np.tanh(inner))

    def convolved(self, x: Array, weights: Array, pasts: Sequence[Past], silu: bool = False) -> Array:
        """Columns of rows [T, C], each with those of the K - 1 rows before it, weighted by [C, K].

        The first array of a state has the last K - 1 rows. ``silu``: results go through it.
        """
        parts = []
        for rows, before, behind in pasts:
            count = rows.stop - rows.start
            whole = namespace(x).concatenate([before[0], x[rows]])
            behind[0][...] = whole[count:]
            y = whole[:count] * weights[:, 0]
            for i in range(1, weights.shape[1]):
                y = y + whole[i : i + count] * weights[:, i]
            parts.append(y)
        y = joined(parts)
        return self.silu(y) if silu else y

    def short_convolution(self, parts: Array, weights: Array, pasts: Sequence[Past]) -> Array:
        """The rows c ∘ convolution(b ∘ z) of rows [T, 3 C], which are b, c and z."""
        b, c, z = namespace(parts).split(parts, 3, axis=-1)
        return c * self.convolved(b * z, weights, pasts)

    def delta_rule(self, heads: Sequence[Array], pasts: Sequence[Past]) -> Array:
        """Readings of queries [T, H, D] from states [H, D, D] that keys and values were written to.

        ``heads``: queries, keys, values, the logarithm of what stays of a state [T, H], and the share of a
        value that replaces what its key had before [T, H].
        """
        q, k, v, forgets, share = heads
        y, scale, stays = [], self.dtype(1 / math.sqrt(q.shape[-1])), np.exp(forgets)
        for rows, before, behind in pasts:
            state = before[-1]
            for t in range(rows.start, rows.stop):
                state = state * stays[t, :, None, None]
                new = (v[t] - (state @ k[t, :, :, None])[..., 0]) * share[t, :, None]
                state = state + new[:, :, None] * k[t, :, None, :]
                y.append((state @ q[t, :, :, None])[..., 0] * scale)
            behind[-1][...] = state
        return namespace(q).stack(y)

    def scanned(
        self, values: Array, keys: Array, queries: Array, decay: Array, pasts: Sequence[Past]
    ) -> Array:
        """Readings of queries [T, H, N] from states [H, P, N], which decay [T, H] and add values by keys."""
        y = []
        for rows, before, behind in pasts:
            state = before[-1]
            for t in range(rows.start, rows.stop):
                state = state * decay[t, :, None, None] + values[t, :, :, None] * keys[t, :, None, :]
                y.append((state @ queries[t, :, :, None])[..., 0])
            behind[-1][...] = state
        return namespace(values).stack(y)

    def takes_net(self, state: tuple[int, ...]) -> bool:
        """True where :meth:`delta_net` has a kernel for states [H, D, D]."""
        return False

    def delta_net(
        self, mixed: Array, z: Array, gates: tuple[Array, Array], net: Net, pasts: Sequence[Past]
    ) -> Array:
        """All between the convolution and the last product of a layer with the delta rule, [T, H · D].

        ``mixed``: queries, keys and values. ``z``: what gates the norm. ``gates``: the share of what is new
        and the speed of forgetting, as products give them.
        """
        raise NotImplementedError

    def plus_share(self, x: Array, y: Array, gate: Array) -> Array:
        """Rows x and a share of rows y, the sigmoid of a number [T, 1]."""
        return x + y * self.sigmoid(gate)

    def silu(self, x: Array) -> Array:
        """The product of x and its sigmoid, x / (1 + exp(-x))."""
        with np.errstate(over="ignore"):
            return x / (1 + np.exp(-x))

    def softplus(self, x: Array) -> Array:
        """log(1 + exp(x))."""
        with np.errstate(over="ignore"):
            return namespace(x).where(x > 20, x, np.log1p(np.exp(x)))

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x)), a share for each number by itself."""
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-x))

    def softmax(self, x: Array) -> Array:
        """Rows as shares of 1."""
        with np.errstate(invalid="ignore"):
            shares = np.exp(x - x.max(axis=-1, keepdims=True))
        return shares / self.total(shares)

    def total(self, x: Array) -> Array:
        """The sums of rows, [T, 1]."""
        return x.sum(axis=-1, keepdims=True)
