"""``experts``: a mixture of experts, of which each token chooses some by its scores."""

from __future__ import annotations

import numpy as np

from ..base.devices import namespace
from .step import Array, Step


def experts(step: Step, x: Array, layer: int, activation: str, after: bool = False) -> Array:
    """The weighted sum of the experts that each token chooses.

    Weights are shares of 1 among all experts, which most families make add up to 1 again; ``after``:
    among those chosen.
    """
    a, stem = step.a, f"blk.{layer}.ffn"
    logits = step.tell("ffn_moe_logits", a.linear(x, step.weights.matrix(f"{stem}_gate_inp")), layer)
    bias = step.weights.optional(f"{stem}_gate_inp.bias")
    if bias is not None:
        logits = step.tell("ffn_moe_probs" if after else "ffn_moe_logits_biased", logits + bias, layer)
    ids, weights = (step.joins and _routed(step, logits, layer, after)) or _chosen(step, logits, layer, after)
    inner = _gated(step, x, ids, layer, activation)
    y = _product(step, inner, "down", ids, layer)
    if not step.joins:
        step.tell("ffn_moe_weighted", y * weights[..., None], layer)
    return step.tell("ffn_moe_out", a.weighted_sum(y, weights), layer)


def _routed(step: Step, logits: Array, layer: int, after: bool) -> tuple[Array, Array] | None:
    """The experts of each token and their weights at once, where neither groups nor a bias choose."""
    c = step.config
    if c.groups > 1 or c.sigmoid or step.weights.optional(f"blk.{layer}.exp_probs_b.bias") is not None:
        return None
    scale = 1.0 if after else c.expert_scale or 1.0
    return step.a.routed(logits, c.used_experts, after, c.share_of_chosen, scale)


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
    weights = namespace(shares).take_along_axis(shares, ids, -1)
    step.tell("ffn_moe_weights", weights[..., None], layer)
    return ids, _shares(step, weights, layer, after)


def _gated(step: Step, x: Array, ids: Array, layer: int, activation: str) -> Array:
    """act(gate · x) ∘ (up · x) of the experts of each token, [T, U, N]."""
    if step.joins:
        stack, *others = step.weights.stacks(*(f"blk.{layer}.ffn_{role}_exps" for role in ("gate", "up")))
        if not others:
            return step.a.gated_experts(activation, x, stack.q, stack.bias, ids)
    up = _product(step, x, "up", ids, layer)
    gate = _product(step, x, "gate", ids, layer)
    name = {"silu": "ffn_moe_swiglu", "swiglu_oai": "ffn_moe_swiglu_oai"}[activation]
    return step.tell(name, step.a.gated(activation, gate, up), layer)


def _scores(step: Step, shares: Array, layer: int) -> Array:
    """The scores by which experts are chosen: shares and a bias, of the best groups alone."""
    c, xp = step.config, namespace(shares)
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
    total = step.tell("ffn_moe_weights_sum", weights.sum(axis=-1, keepdims=True), layer)
    total = step.tell("ffn_moe_weights_sum_clamped", np.maximum(total, step.a.dtype(2.0**-14)), layer)
    return step.tell("ffn_moe_weights_norm", weights / total, layer)


def _product(step: Step, x: Array, role: str, ids: Array, layer: int) -> Array:
    stem = f"blk.{layer}.ffn_{role}_exps"
    q = step.weights.matrix(stem)
    y = step.tell(f"ffn_moe_{role}", step.a.expert_linear(x, q, ids), layer)
    bias = step.weights.optional(f"{stem}.bias")
    return y if bias is None else step.tell(f"ffn_moe_{role}_biased", y + bias[ids], layer)
