"""``Step``: some tokens on their way through the layers, with the parts that families build layers from.

A part computes in the model's arithmetic and tells each intermediate by llama.cpp's name for its node:
``Qcur-0``, ``ffn_moe_topk-3``. Families (families/) say which parts follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..base.devices import namespace
from .arithmetic import Kernels
from .arithmetic.kernels import Keys, Seen
from .config import Config, Rope
from .weights import Weights, checked, columns

Array = Any  # an array of the arithmetic's type
Tell = Callable[[str, Array], None]


class Rows(Protocol):
    """The rows that a step has of a sequence, or of several, on their way into a cache."""

    def following(self, count: int) -> Any: ...
    def last(self, count: int) -> Any: ...
    def appended(self, layer: int, q: Array, k: Array, v: Array | None) -> tuple[Array, Keys]: ...
    def back(self, y: Array) -> Array: ...
    def advance(self, count: int) -> None: ...


class Step:
    """Tokens at the next positions of sequences, so many of each. ``ends``: the last row of each.

    ``tell``: called with each intermediate; without it, or with ``flash``, attention is one kernel.
    ``choices``: experts to take instead of the best ones, by the name of their node.
    """

    def __init__(
        self, config: Config, weights: Weights, arithmetic: Kernels, sequences: Sequence[tuple[Rows, int]],
        tell: Tell | None = None, flash: bool = False, choices: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        self.config, self.weights, self.a = config, weights, arithmetic
        stops = list(accumulate(count for _, count in sequences))
        self._parts = [
            (part, slice(stop - count, stop)) for (part, count), stop in zip(sequences, stops, strict=True)
        ]
        self.ends = sequences[0][0].last(stops[0]) if len(stops) == 1 else [stop - 1 for stop in stops]
        self.positions = _joined([part.following(count) for part, count in sequences])
        self._tell, self._turns = tell, dict[Any, Any]()
        self._whole, self._choices = flash or tell is None, {} if choices is None else choices

    def tell(self, name: str, x: Array, layer: int | None = None) -> Array:
        """Tell a node and hand it on."""
        if self._tell is not None:
            self._tell(name if layer is None else f"{name}-{layer}", x)
        return x

    # --- products and norms ---------------------------------------------------------------

    def embed(self, tokens: NDArray[np.int64]) -> Array:
        """The rows of tokens, [T, width]."""
        return self.tell("embd", self.a.rows(self.weights.matrix("token_embd"), tokens))

    def norm(self, x: Array, name: str, layer: int | None = None, plain: bool = False) -> Array:
        """The norm ``name`` of rows with its weights; ``plain``: it is told as ``norm``, without a layer."""
        weights = self.weights.vector(_of(name, layer, "weight"))
        if self._tell is None:
            return self.a.weighted_norm(x, self.config.epsilon, weights)
        return self.tell("norm", self.a.norm(x, self.config.epsilon), None if plain else layer) * weights

    def product(self, x: Array, name: str, layer: int | None, node: str | None = None) -> Array:
        """Rows times the matrix ``name``, and its bias where the file has one; both are told as ``node``."""
        stem = _of(name, layer)
        q = self.weights.matrix(stem)
        checked(stem, x, q)
        bias = self.weights.optional(f"{stem}.bias")
        if self._tell is None:
            return self.a.linear(x, q, bias)
        y = self.a.linear(x, q)
        if node:
            self.tell(node, y, layer)
        if bias is None:
            return y
        y = y + bias
        return self.tell(node, y, layer) if node else y

    # --- attention --------------------------------------------------------------------------

    def heads(self, x: Array, layer: int) -> tuple[Array, Array, Array]:
        """Queries [T, H, D], keys [T, HK, D] and values of rows, from three matrices or from one."""
        c = self.config
        sizes = {
            "attn_q": (c.heads[layer], c.key_width), "attn_k": (c.kv_heads[layer], c.key_width),
            "attn_v": (c.kv_heads[layer], c.value_width),
        }  # fmt: skip
        stem = f"blk.{layer}"
        if f"{stem}.attn_qkv" in self.weights and f"{stem}.attn_q" not in self.weights:
            y = self.product(x, "attn_qkv", layer, "wqkv")
            parts = columns(f"{stem}.attn_qkv", y, [heads * width for heads, width in sizes.values()])
        else:
            nodes = zip(sizes, ("Qcur", "Kcur", "Vcur"), strict=True)
            parts = [self.product(x, name, layer, node) for name, node in nodes]
        q, k, v = (y.reshape(len(x), *size) for y, size in zip(parts, sizes.values(), strict=True))
        return q, k, v

    def head_norm(self, x: Array, name: str, node: str, layer: int) -> Array:
        """The norm of each head, as Qwen3 and Gemma3 have it, told as ``Qcur_normed``."""
        return self.tell(node, self.norm(x, name, layer), layer)

    def turn(self, x: Array, node: str, layer: int, factors: Any = None) -> Array:
        """Heads [T, H, D] turned by their positions."""
        how = self.config.window_rope if self.config.windows[layer] else self.config.rope
        if how not in self._turns:
            turns = [self.a.turns(how, self.positions[rows], factors) for _, rows in self._parts]
            self._turns[how] = tuple(map(_joined, zip(*turns, strict=True)))
        return self.tell(node, self.a.turned(x, how, *self._turns[how]), layer)

    def attention(self, q: Array, k: Array, v: Array | None, layer: int, scale: float | None = None,
                  sinks: Array | None = None, behind: str = "") -> Array:  # fmt: skip
        """Attention of heads over all positions so far, and the product behind it, [T, width].

        Without ``v`` values are the first columns of keys. ``behind``: matrices of heads for its results.
        """
        c = self.config
        seen = Seen(c.scale if scale is None else scale, c.windows[layer], c.score_cap, sinks)
        if len(self._parts) == 1:
            y = self._attended(self._parts[0][0], q, k, v, layer, seen)
        else:
            y = _joined(
                [
                    self._attended(part, q[rows], k[rows], None if v is None else v[rows], layer, seen)
                    for part, rows in self._parts
                ]
            )
        if behind:
            node = "fattn_mla" if self._whole else "kqv_mla"
            heads = self.by_head(y.reshape(len(y), c.heads[layer], -1), behind, layer, node)
            y = heads.reshape(len(y), -1)
        self.tell("kqv_out", y, layer)
        return self.product(y, "attn_output", layer, "attn_out")

    def _attended(self, part: Rows, q: Array, k: Array, v: Array | None, layer: int, seen: Seen) -> Array:
        """The attention of a sequence's heads over its cache, [T, H · DV]."""
        q, keys = part.appended(layer, q, k, v)
        if self._whole:
            y = self.a.attend(q, keys, seen)
        else:
            y = self.a.attend_in_steps(q, keys, seen, lambda name, x: self.tell(name, x, layer))
        y = part.back(y).transpose(1, 0, 2)
        return namespace(y).ascontiguousarray(y).reshape(len(y), -1)

    def by_head(self, x: Array, name: str, layer: int, node: str = "") -> Array:
        """Heads [T, H, D] times a matrix of each head, [T, H, N]."""
        stem = f"blk.{layer}.{name}"
        q = self.weights.matrix(stem)
        checked(stem, x, q)
        xp = namespace(x)
        y = self.a.expert_linear(x, q, xp.broadcast_to(xp.arange(x.shape[1]), x.shape[:2]))
        if node:
            self.tell(node, y.transpose(1, 0, 2), layer)
        return y

    # --- feed forward -----------------------------------------------------------------------

    def feed_forward(self, x: Array, layer: int, activation: str, kind: str = "") -> Array:
        """Down · (act(gate · x) ∘ (up · x)); without a matrix of the gate it is the first half of up's.

        ``kind``: ``"shexp"`` for the matrices of shared experts.
        """
        end = f"_{kind}" if kind else ""
        up = self.product(x, f"ffn_up{end}", layer, "ffn_up")
        if f"blk.{layer}.ffn_gate{end}" in self.weights:
            gate = self.product(x, f"ffn_gate{end}", layer, "ffn_gate")
        else:
            gate, up = columns(f"blk.{layer}.ffn_up", up, [up.shape[-1] // 2] * 2)
        name = {"silu": "ffn_swiglu", "gelu": "ffn_geglu"}[activation]
        inner = self.tell(name, self.a.gated(activation, gate, up), layer)
        return self.tell(f"ffn_{kind or 'out'}", self.product(inner, f"ffn_down{end}", layer), layer)

    def experts(self, x: Array, layer: int, activation: str, after: bool = False) -> Array:
        """The weighted sum of the experts that each token chooses.

        Weights are shares of 1 among all experts, which most families make add up to 1 again; ``after``:
        among those chosen.
        """
        a, stem, used = self.a, f"blk.{layer}.ffn", self.config.used_experts
        logits = self.tell("ffn_moe_logits", a.linear(x, self.weights.matrix(f"{stem}_gate_inp")), layer)
        bias = self.weights.optional(f"{stem}_gate_inp.bias")
        if bias is not None:
            logits = self.tell("ffn_moe_probs" if after else "ffn_moe_logits_biased", logits + bias, layer)
        c = self.config
        if after:
            shares = logits
        else:
            shares = a.sigmoid(logits) if c.sigmoid else a.softmax(logits)
            self.tell("ffn_moe_probs", shares, layer)
        order = self.tell("ffn_moe_argsort", a.ranked(self._scores(shares, layer)), layer)
        ids = self.tell("ffn_moe_topk", order[:, :used], layer)
        ids = self._choices.get(f"ffn_moe_topk-{layer}", ids)
        weights = namespace(shares).take_along_axis(shares, ids, -1)[..., None]
        weights = self.tell("ffn_moe_weights", weights, layer)
        weights = self._shares(weights[..., 0], layer, after)[..., None]
        up = self._expert(x, "up", ids, layer)
        gate = self._expert(x, "gate", ids, layer)
        name = {"silu": "ffn_moe_swiglu", "swiglu_oai": "ffn_moe_swiglu_oai"}[activation]
        inner = self.tell(name, a.gated(activation, gate, up), layer)
        y = self.tell("ffn_moe_weighted", self._expert(inner, "down", ids, layer) * weights, layer)
        total = y[:, 0]
        for i in range(1, used):
            total = total + y[:, i]
        return self.tell("ffn_moe_out", total, layer)

    def _scores(self, shares: Array, layer: int) -> Array:
        """The scores by which experts are chosen: shares and a bias, of the best groups alone."""
        c, xp = self.config, namespace(shares)
        bias = self.weights.optional(f"blk.{layer}.exp_probs_b.bias")
        scores = shares if bias is None else self.tell("ffn_moe_probs_biased", shares + bias, layer)
        if c.groups <= 1:
            return scores
        grouped = scores.reshape(len(scores), c.groups, -1)
        rows = grouped.reshape(-1, grouped.shape[-1])
        two = xp.take_along_axis(rows, self.a.ranked(rows)[:, :2], -1).sum(axis=-1)
        best = self.tell("ffn_moe_group_scores", two.reshape(grouped.shape[:2]), layer)
        ids = self.tell("ffn_moe_group_topk", self.a.ranked(best)[:, : c.used_groups], layer)
        ids = self._choices.get(f"ffn_moe_group_topk-{layer}", ids)
        inside = (ids[:, :, None] == xp.arange(c.groups)).any(axis=1)[..., None]
        masked = xp.where(inside, grouped, grouped.dtype.type(-np.inf)).reshape(scores.shape)
        return self.tell("ffn_moe_probs_masked", masked, layer)

    def _shares(self, weights: Array, layer: int, after: bool) -> Array:
        if after:
            return self.tell("ffn_moe_weights_softmax", self.a.softmax(weights), layer)
        if self.config.share_of_chosen:
            weights = self._of_one(weights, layer)
        if (scale := self.config.expert_scale) and scale != 1:
            weights = self.tell("ffn_moe_weights_scaled", weights * self.a.dtype(scale), layer)
        return weights

    def _of_one(self, weights: Array, layer: int) -> Array:
        """Weights that add up to 1."""
        total = self.tell("ffn_moe_weights_sum", weights.sum(axis=-1, keepdims=True), layer)
        total = self.tell("ffn_moe_weights_sum_clamped", np.maximum(total, self.a.dtype(2.0**-14)), layer)
        return self.tell("ffn_moe_weights_norm", weights / total, layer)

    def _expert(self, x: Array, role: str, ids: Array, layer: int) -> Array:
        stem = f"blk.{layer}.ffn_{role}_exps"
        q = self.weights.matrix(stem)
        checked(stem, x, q)
        y = self.tell(f"ffn_moe_{role}", self.a.expert_linear(x, q, ids), layer)
        bias = self.weights.optional(f"{stem}.bias")
        return y if bias is None else self.tell(f"ffn_moe_{role}_biased", y + bias[ids], layer)

    # --- the end ------------------------------------------------------------------------------

    def counted(self) -> None:
        """All layers have the keys and values of the tokens: the sequences are longer by them."""
        for part, rows in self._parts:
            part.advance(rows.stop - rows.start)

    def logits(self, x: Array) -> Array:
        """The last norm, and the product with the head, which may be the embedding."""
        x = self.tell("result_norm", self.norm(x, "output_norm"))
        head = "output" if "output" in self.weights else "token_embd"
        y = self.a.linear(x, self.weights.matrix(head))
        bias = self.weights.optional("output.bias")
        y = y if bias is None else y + bias
        if cap := self.a.dtype(self.config.logit_cap):
            y = np.tanh(y * (1 / cap)) * cap
        return self.tell("result_output", y)


def _joined(parts: Sequence[Array]) -> Array:
    """The rows of parts, one after the other."""
    return parts[0] if len(parts) == 1 else namespace(parts[0]).concatenate(parts)


def _of(name: str, layer: int | None, kind: str = "") -> str:
    stem = name if layer is None else f"blk.{layer}.{name}"
    return f"{stem}.{kind}" if kind else stem


def longest(config: Config, weights: Weights) -> Any:
    """Factors of pairs from the file: of Llama 3, or those for long or short contexts."""
    if (one := weights.optional("rope_freqs.weight")) is not None:
        return one
    kind = "long" if config.context > _trained(config.rope) else "short"
    return weights.optional(f"rope_factors_{kind}.weight")


def _trained(how: Rope) -> int:
    return how.context
