"""``Step``: some tokens on their way through the layers, with the parts that families build layers from.

A part computes in the model's arithmetic and tells each intermediate by llama.cpp's name for its node:
``Qcur-0``, ``ffn_moe_topk-3``. Families (families/) say which parts follow each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .arithmetic import Kernels
from .arithmetic.kernels import Angles, Array, Keys, Routing, Seen, Tell, joined
from .caches import Heads
from .config import Config, Rope
from .weights import Weights, columns


class Sum:
    """Rows that a norm adds, and their sum once it has."""

    def __init__(self, y: Array, x: Array) -> None:
        self.terms = y, x
        self.value: Array | None = None

    def at(self, rows: Any) -> Any:
        """Some of the rows."""
        return Sum(*(term[rows] for term in self.terms)) if self.value is None else self.value[rows]


class Rows(Protocol):
    """The rows that a step has of a sequence, or of several, on their way into a cache."""

    @property
    def repeats(self) -> bool: ...
    def following(self, count: int) -> Any: ...
    def last(self, count: int) -> Any: ...
    def appended(self, layer: int, q: Array, k: Array | None, v: Array | None) -> tuple[Array, Keys]: ...
    def rope_append(self, layer: int, heads: Heads, angles: Angles) -> tuple[Array, Keys] | None: ...
    def latent_append(self, layer: int, parts: Sequence[Array], angles: Angles) -> tuple[Array, Keys]: ...
    def back(self, layer: int, y: Array) -> Array: ...
    def advance(self, count: int) -> None: ...


class Step:
    """Tokens at the next positions of sequences, so many of each.

    ``ends``: the last row of each, None where they have no others.
    ``tell``: called with each intermediate; without it, or with ``flash``, attention is one kernel.
    ``choices``: experts to take instead of the best ones, by the name of their node.
    """

    def __init__(
        self, config: Config, weights: Weights, arithmetic: Kernels, sequences: Sequence[tuple[Rows, int]],
        tell: Tell | None = None, flash: bool = False, choices: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        self.config, self.weights, self.a = config, weights, arithmetic
        stops = list(accumulate(count for _, count in sequences))
        self.parts = [
            (part, slice(stop - count, stop)) for (part, count), stop in zip(sequences, stops, strict=True)
        ]
        self.ends: Any = None
        if len(stops) == 1:
            self.ends = sequences[0][0].last(stops[0])
        elif stops[-1] > len(stops):
            self.ends = [stop - 1 for stop in stops]
        self.positions = joined([part.following(count) for part, count in sequences])
        self._tell = tell
        self._angles: dict[Any, Angles] = {}
        self._turns: dict[Any, list[Angles]] = {}
        self.joins = tell is None and arithmetic.joins
        self._whole, self.choices = flash or tell is None, {} if choices is None else choices
        # Where layers need them: all tokens, the rows of the first layer, and what layers have beside rows.
        self.tokens: Any = None
        self.first: Any = None
        self.side: Any = None  # [T, layers · columns]

    @staticmethod
    def is_sum(x: Any) -> bool:
        """True for rows that the next norm adds up."""
        return isinstance(x, Sum) and x.value is None

    @staticmethod
    def sum_of(y: Array, x: Array) -> Any:
        """Rows that the next norm adds up."""
        return Sum(y, x)

    def tell(self, name: str, x: Array, layer: int | None = None) -> Array:
        """Tell a node and hand it on."""
        if self._tell is not None:
            self._tell(name if layer is None else f"{name}-{layer}", x)
        return x

    # --- products and norms ---------------------------------------------------------------

    def embed(self, tokens: NDArray[np.int64]) -> Array:
        """The rows of tokens, [T, width]."""
        self.tokens, x = tokens, self.a.rows(self.weights.matrix("token_embd"), tokens)
        if self.config.embed_scale:
            x = self.a.times(x, self.config.embed_scale)
        return self.tell("embd", x)

    def norm(self, x: Array, name: str, layer: int | None = None, plain: bool = False) -> Array:
        """The norm ``name`` of rows with its weights; ``plain``: it is told as ``norm``, without a layer."""
        weights = self.weights.vector(_of(name, layer, "weight"))
        if isinstance(x, Sum):
            if x.value is None:
                x.value, y = self.a.normed_sum(*x.terms, self.config.epsilon, weights)
                return y
            x = x.value
        if self._tell is None:
            return self.a.weighted_norm(x, self.config.epsilon, weights)
        return self.tell("norm", self.a.norm(x, self.config.epsilon), None if plain else layer) * weights

    def plain_norm(self, x: Array) -> Array:
        """The norm of rows without weights."""
        if self._tell is not None:
            return self.a.norm(x, self.config.epsilon)
        return self.a.weighted_norm(x, self.config.epsilon, self.weights.ones(x.shape[-1]))

    def plus(self, y: Array, x: Array, node: str, layer: int) -> Any:
        """The sum of rows; where nobody looks at it, a norm behind it adds them on the way."""
        if self.joins:
            return Sum(y, value(x))
        return self.tell(node, y + x, layer) if node else y + x

    def products(self, x: Array, names: Sequence[str], layer: int, nodes: Sequence[str]) -> list[Array]:
        """Rows times several matrices; those of one type are one product, whose columns these are."""
        if not self.joins:
            return [self.product(x, name, layer, node) for name, node in zip(names, nodes, strict=True)]
        stems = [_of(name, layer) for name in names]
        results: dict[str, Array] = {}
        for stack in self.weights.stacks(*stems):
            y, end = self.a.linear(x, stack.q, stack.bias), 0
            for name, width in zip(stack.names, stack.widths, strict=True):
                results[name], end = y[:, end : end + width], end + width
        return [results[stem] for stem in stems]

    def product(self, x: Array, name: str, layer: int | None, node: str | None = None) -> Array:
        """Rows times the matrix ``name``, and its bias where the file has one; both are told as ``node``."""
        stem = _of(name, layer)
        q = self.weights.matrix(stem)
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
        c, (width, width_v) = self.config, self.config.widths(layer)
        sizes = {
            "attn_q": (c.heads[layer], width), "attn_k": (c.kv_heads[layer], width),
            "attn_v": (c.kv_heads[layer], width_v),
        }  # fmt: skip
        stem = f"blk.{layer}"
        if f"{stem}.attn_qkv" in self.weights and f"{stem}.attn_q" not in self.weights:
            y = self.product(x, "attn_qkv", layer, "wqkv")
            widths = [heads * width for heads, width in sizes.values()]
            parts = columns(y, widths, self.joins)
        else:
            parts = self.products(x, list(sizes), layer, ("Qcur", "Kcur", "Vcur"))
        q, k, v = (y.reshape(len(x), *size) for y, size in zip(parts, sizes.values(), strict=True))
        return q, k, v

    def head_norm(self, x: Array, name: str, node: str, layer: int) -> Array:
        """The norm of each head, as Qwen3 and Gemma3 have it, told as ``Qcur_normed``."""
        return self.tell(node, self.norm(x, name, layer), layer)

    def rope(self, x: Array, node: str, layer: int, factors: Any = None) -> Array:
        """Heads [T, H, D] rotated by their positions."""
        how, each = self._how(layer), self._angles_of(layer, factors)
        if how not in self._angles:
            pairs = zip(*(one[1:] for one in each), strict=True)
            self._angles[how] = Angles(how.neox, *map(joined, pairs))
        return self.tell(node, self.a.apply_rope(x, how, *self._angles[how][1:]), layer)

    def _how(self, layer: int) -> Rope:
        return self.config.window_rope if self.config.windows[layer] else self.config.rope

    def _angles_of(self, layer: int, factors: Any) -> list[Angles]:
        """RoPE's angles at each sequence's positions, computed once for all layers that have the same."""
        how = self._how(layer)
        if how not in self._turns:
            self._turns[how] = [
                Angles(how.neox, *self.a.angles(how, self.positions[rows], factors)) for _, rows in self.parts
            ]
        return self._turns[how]

    def rope_attention(self, q: Array, k: Array | None, v: Array | None, layer: int, factors: Any = None,
                         sinks: Array | None = None, scaled: str | None = None,
                         gate: Array | None = None, nodes: tuple[str, str] = ("Qcur", "Kcur"),
                         node: str = "attn_out") -> Array:  # fmt: skip
        """The attention of heads that are rotated by their positions, and the product behind it.

        Without keys and values those of an earlier layer are read. ``scaled``: queries are multiplied by the
        scale of scores before, and told as this node, "" for none. ``nodes``: of queries and keys with RoPE.
        ``gate`` and ``node``: see :meth:`attention`.
        """
        if not self._how(layer).dims:
            return self.attention(q, k, v, layer, sinks=sinks, gate=gate)
        if appended := self._rope_appended((q, k, v), layer, factors):
            seen = Seen(self.config.scale, self.config.windows[layer], self.config.score_cap, sinks)
            y = self._rows_of(self.parts[0][0], layer, self.a.attend_all(appended, seen))
            if gate is not None:
                y = self.a.gated("sigmoid", gate, y)
            return self.product(y, "attn_output", layer)
        q = self.rope(q, nodes[0], layer, factors)
        k = None if k is None else self.rope(k, nodes[1], layer, factors)
        if scaled is None:
            return self.attention(q, k, v, layer, sinks=sinks, gate=gate, node=node)
        q = q * q.dtype.type(self.config.scale)
        q = self.tell(scaled, q, layer) if scaled else q
        return self.attention(q, k, v, layer, 1.0, sinks, gate=gate)

    def _rope_appended(self, heads: Heads, layer: int, factors: Any) -> list[tuple[Array, Keys]]:
        """Queries with RoPE, keys and values of each sequence; none where it takes several launches."""
        if not self.joins or (len(self.parts) > 1 and self.a.device != "cpu" and not self.a.invariant):
            return []
        appended = []
        for (part, rows), angles in zip(self.parts, self._angles_of(layer, factors), strict=True):
            q, k, v = (_some(one, rows) for one in heads)
            if (one := part.rope_append(self.config.keyed(layer), (q, k, v), angles)) is None:
                return []  # said by the first sequence, for all: their caches are of one kind
            appended.append(one)
        return appended

    def attention(self, q: Array, k: Array | None, v: Array | None, layer: int, scale: float | None = None,
                  sinks: Array | None = None, behind: str = "", gate: Array | None = None,
                  node: str = "attn_out") -> Array:  # fmt: skip
        """Attention of heads over all positions so far, and the product behind it, [T, width].

        Without ``v`` values are the first columns of keys; without both they are an earlier layer's.
        ``behind``: matrices of heads for its results. ``gate``: rows by whose sigmoid results are multiplied.
        ``node``: of the product.
        """
        c = self.config
        seen = Seen(c.scale if scale is None else scale, c.windows[layer], c.score_cap, sinks)
        if len(self.parts) == 1:
            y = self._attended(self.parts[0][0], q, k, v, layer, seen)
        else:
            y = joined(
                [
                    self._attended(part, q[rows], _some(k, rows), _some(v, rows), layer, seen)
                    for part, rows in self.parts
                ]
            )
        if behind:
            behind_of = "fattn_mla" if self._whole else "kqv_mla"
            heads = self.by_head(y.reshape(len(y), c.heads[layer], -1), behind, layer, behind_of)
            y = heads.reshape(len(y), -1)
        if gate is None:
            self.tell("kqv_out", y, layer)
            return self.product(y, "attn_output", layer, node)
        self.tell("attn_pregate", y, layer)
        y = self.tell("attn_gated", y * self.tell("gate_sigmoid", self.a.sigmoid(gate), layer), layer)
        return self.product(y, "attn_output", layer, "attn_output")

    def _attended(
        self, part: Rows, q: Array, k: Array | None, v: Array | None, layer: int, seen: Seen
    ) -> Array:
        """The attention of a sequence's heads over its cache, [T, H · DV]."""
        q, keys = part.appended(self.config.keyed(layer), q, k, v)
        if self._whole:
            y = self.a.attend(q, keys, seen)
        else:
            y = self.a.attend_in_steps(q, keys, seen, lambda name, x: self.tell(name, x, layer))
        return self._rows_of(part, layer, y)

    def _rows_of(self, part: Rows, layer: int, y: Array) -> Array:
        """Results of attention as rows [T, H · DV]."""
        y = part.back(self.config.keyed(layer), y).swapaxes(0, 1)
        return y.reshape(len(y), -1)

    def latent_attention(self, q: Array, keys: Array, layer: int) -> Array | None:
        """Attention over short vectors, and the products behind it; None where it takes several launches.

        ``q``: [T, H, D]; ``keys``: [T, latent + columns with RoPE], short vectors without their norm.
        """
        c = self.config
        if not (self.joins and self.a.latent and all(part.repeats for part, _ in self.parts)):
            return None
        short = self.norm(keys[:, : c.latent], "attn_kv_a_norm", layer)
        inside = self.by_head(self.a.some_columns(q, 0, q.shape[-1] - c.rope.dims), "attn_k_b", layer)
        appended = [
            part.latent_append(self.config.keyed(layer), [x[rows] for x in (q, inside, keys, short)], angles)
            for (part, rows), angles in zip(self.parts, self._angles_of(layer, None), strict=True)
        ]
        seen = Seen(c.scale, c.windows[layer], c.score_cap, None)
        y = self.a.attend_all(appended, seen).transpose(1, 0, 2)
        y = self.by_head(y, "attn_v_b", layer)
        return self.product(y.reshape(len(y), -1), "attn_output", layer)

    def by_head(self, x: Array, name: str, layer: int, node: str = "") -> Array:
        """Heads [T, H, D] times a matrix of each head, [T, H, N]."""
        stem = f"blk.{layer}.{name}"
        y = self.a.by_head(x, self.weights.matrix(stem))
        if node:
            self.tell(node, y.swapaxes(0, 1), layer)
        return y

    # --- feed forward -----------------------------------------------------------------------

    def feed_forward(self, x: Array, layer: int, activation: str, kind: str = "") -> Array:
        """Down · (act(gate · x) ∘ (up · x)); without a matrix of the gate it is the first half of up's.

        ``kind``: ``"shexp"`` for the matrices of shared experts.
        """
        end = f"_{kind}" if kind else ""
        if self.joins and (inner := self._gated(activation, x, end, layer)) is not None:
            return self.product(inner, f"ffn_down{end}", layer)
        up = self.product(x, f"ffn_up{end}", layer, "ffn_up")
        if f"blk.{layer}.ffn_gate{end}" in self.weights:
            gate = self.product(x, f"ffn_gate{end}", layer, "ffn_gate")
        else:
            gate, up = columns(up, [up.shape[-1] // 2] * 2)
        name = {"silu": "ffn_swiglu", "gelu": "ffn_geglu"}[activation]
        inner = self.tell(name, self.a.gated(activation, gate, up), layer)
        return self.tell(f"ffn_{kind or 'out'}", self.product(inner, f"ffn_down{end}", layer), layer)

    def _gated(self, activation: str, x: Array, end: str, layer: int) -> Array | None:
        """act(gate · x) ∘ (up · x); None where the two are of two types."""
        name, gate = f"blk.{layer}.ffn_up{end}", f"blk.{layer}.ffn_gate{end}"
        if gate not in self.weights:
            q, bias = self.weights.matrix(name), self.weights.optional(f"{name}.bias")
        else:
            stack, *others = self.weights.stacks(gate, name)
            if others:
                return None
            q, bias = stack.q, stack.bias
        return self.a.gated_product(activation, x, q, bias)

    # --- the end ------------------------------------------------------------------------------

    def counted(self) -> None:
        """All layers have the keys and values of the tokens: the sequences are longer by them."""
        for part, rows in self.parts:
            part.advance(rows.stop - rows.start)

    def logits(self, x: Array, last: bool = False) -> Array:
        """The last norm, and the product with the head, which may be the embedding.

        ``last``: of the last row of each sequence.
        """
        if last and self.ends is not None:
            x = x.at(self.ends) if isinstance(x, Sum) else x[self.ends]
        x = self.norm(x, self.config.last_norm)
        if self.config.seeds:
            self.tell("h_nextn", x)
        self.tell("result_norm", x)
        y = self.a.linear(x, self.weights.head, self.weights.optional("output.bias"))
        if self.config.logit_scale:
            y = self.a.times(y, float(np.float32(1) / np.float32(self.config.logit_scale)))
        if self.config.logit_cap:
            y = self.a.capped(y, self.config.logit_cap)
        return self.tell("result_output", y)


def value(x: Any) -> Array:
    """An array, or the array that a sum is."""
    if not isinstance(x, Sum):
        return x
    if x.value is None:
        x.value = x.terms[0] + x.terms[1]
    return x.value


def _some(x: Array | None, rows: slice) -> Array | None:
    return None if x is None else x[rows]


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


# --- a mixture of experts, of which each token chooses some by its scores --------------------


def experts(
    step: Step, x: Array, layer: int, activation: str, after: bool = False, scored: Array | None = None
) -> Array:
    """The weighted sum of the experts that each token chooses.

    Weights are shares of 1 among all experts, which most families make add up to 1 again; ``after``:
    among those chosen. ``scored``: the rows by which experts are chosen, where they are not ``x``.
    """
    a, stem = step.a, f"blk.{layer}.ffn"
    router = step.weights.matrix(f"{stem}_gate_inp")
    logits = step.tell("ffn_moe_logits", a.linear(x if scored is None else scored, router), layer)
    bias = step.weights.optional(f"{stem}_gate_inp.bias")
    if bias is not None:
        node = "ffn_moe_probs" if after else "ffn_moe_logits_biased"
        logits = step.tell(node, a.sum(logits, bias), layer)
    ids, weights = (step.joins and _routed(step, logits, layer, after)) or _chosen(step, logits, layer, after)
    inner = _gated(step, x, ids, layer, activation)
    y = _product(step, inner, "down", ids, layer)
    if not step.joins:
        step.tell("ffn_moe_weighted", y * weights[..., None], layer)
    return step.tell("ffn_moe_out", a.weighted_sum(y, weights), layer)


def _routed(step: Step, logits: Array, layer: int, after: bool) -> tuple[Array, Array] | None:
    """The experts of each token and their weights at once, where the arithmetic can do it."""
    c, bias = step.config, step.weights.optional(f"blk.{layer}.exp_probs_b.bias")
    scale = 1.0 if after else c.expert_scale or 1.0
    of_one, groups = c.share_of_chosen, (c.groups, c.used_groups)
    return step.a.routed(logits, bias, Routing(c.used_experts, after, c.sigmoid, of_one, scale, *groups))


def _chosen(step: Step, logits: Array, layer: int, after: bool) -> tuple[Array, Array]:
    """The experts of each token and their weights, [T, U]."""
    a, c = step.a, step.config
    if after:
        shares = logits
    else:
        shares = a.sigmoid(logits) if c.sigmoid else a.softmax(logits)
        step.tell("ffn_moe_probs", shares, layer)
    order = step.tell("ffn_moe_argsort", a.ranked(_scores(step, shares, layer)), layer)
    ids = step.tell("ffn_moe_topk", order[:, : c.used_experts], layer)
    ids = step.choices.get(f"ffn_moe_topk-{layer}", ids)
    weights = a.xp(shares).take_along_axis(shares, ids, -1)
    step.tell("ffn_moe_weights", weights[..., None], layer)
    return ids, _shares(step, weights, layer, after)


def _gated(step: Step, x: Array, ids: Array, layer: int, activation: str) -> Array:
    """act(gate · x) ∘ (up · x) of the experts of each token, [T, U, N]; or relu(up · x)²."""
    if activation == "relu_sqr":
        return step.tell(
            "ffn_moe_relu_sqr", np.square(step.a.relu(_product(step, x, "up", ids, layer))), layer
        )
    if (both := f"blk.{layer}.ffn_gate_up_exps") in step.weights:
        if step.joins:
            return step.a.gated_experts(activation, x, step.weights.matrix(both), None, ids)
        y = _product(step, x, "gate_up", ids, layer)
        gate, up = columns(y, [y.shape[-1] // 2] * 2)
    else:
        if step.joins:
            stack, *others = step.weights.stacks(*(f"blk.{layer}.ffn_{role}_exps" for role in ("gate", "up")))
            if not others:
                return step.a.gated_experts(activation, x, stack.q, stack.bias, ids)
        up = _product(step, x, "up", ids, layer)
        gate = _product(step, x, "gate", ids, layer)
    name = {"silu": "swiglu", "gelu": "geglu", "swiglu_oai": "swiglu_oai"}[activation]
    return step.tell(f"ffn_moe_{name}", step.a.gated(activation, gate, up), layer)


def _scores(step: Step, shares: Array, layer: int) -> Array:
    """The scores by which experts are chosen: shares and a bias, of the best groups alone."""
    c, xp = step.config, step.a.xp(shares)
    bias = step.weights.optional(f"blk.{layer}.exp_probs_b.bias")
    scores = shares if bias is None else step.tell("ffn_moe_probs_biased", shares + bias, layer)
    if c.groups <= 1:
        return scores
    grouped = scores.reshape(len(scores), c.groups, -1)
    rows = grouped.reshape(-1, grouped.shape[-1])
    two = xp.take_along_axis(rows, step.a.ranked(rows)[:, :2], -1).sum(axis=-1)
    best = step.tell("ffn_moe_group_scores", two.reshape(grouped.shape[:2]), layer)
    ids = step.tell("ffn_moe_group_topk", step.a.ranked(best)[:, : c.used_groups], layer)
    ids = step.choices.get(f"ffn_moe_group_topk-{layer}", ids)
    inside = (ids[:, :, None] == xp.arange(c.groups)).any(axis=1)[..., None]
    masked = xp.where(inside, grouped, grouped.dtype.type(-np.inf)).reshape(scores.shape)
    return step.tell("ffn_moe_probs_masked", masked, layer)


def _shares(step: Step, weights: Array, layer: int, after: bool) -> Array:
    if after:
        return step.tell("ffn_moe_weights_softmax", step.a.softmax(weights), layer)
    if step.config.share_of_chosen:
        weights = _of_one(step, weights, layer)
    if (scale := step.config.expert_scale) and scale != 1:
        weights = step.tell("ffn_moe_weights_scaled", weights * step.a.dtype(scale), layer)
    return weights


def _of_one(step: Step, weights: Array, layer: int) -> Array:
    """Weights that add up to 1."""
    total = step.tell("ffn_moe_weights_sum", step.a.total(weights), layer)
    total = step.tell("ffn_moe_weights_sum_clamped", np.maximum(total, step.a.dtype(2.0**-14)), layer)
    return step.tell("ffn_moe_weights_norm", weights / total, layer)


def _product(step: Step, x: Array, role: str, ids: Array, layer: int) -> Array:
    stem = f"blk.{layer}.ffn_{role}_exps"
    q = step.weights.matrix(stem)
    node = f"ffn_moe_{role}" if q.scale is None else f"ffn_moe_{role}_scaled"
    y = step.tell(node, step.a.expert_linear(x, q, ids), layer)
    bias = step.weights.optional(f"{stem}.bias")
    return y if bias is None else step.tell(f"ffn_moe_{role}_biased", step.a.biased(y, bias, ids), layer)
