"""DeepSeek 2 and 3: keys and values from one short vector a token, shared experts beside the chosen ones.

    x = x + attention(norm(x))
    x = x + feed_forward(norm(x))      in the first layers; then shared experts plus chosen ones

The cache has the short vector and the turned part of the keys, one head for all. A query is brought into that
space by a matrix for each head, and what attention gives is brought back by another. Older files have one
matrix that makes keys and values of all heads: then these are in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...base.devices import namespace
from ..config import Config, Facts
from ..experts import experts
from ..step import Array, Step
from ..weights import columns
from .family import Family

SIGMOID = 2  # expert_gating_func; a softmax otherwise


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of DeepSeek."""
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    x = step.plus(_attention(step, normed, i), x, "ffn_inp", i)
    normed = step.tell("ffn_norm", step.norm(x, "ffn_norm", i), i)
    if i < step.config.dense:
        return step.plus(step.feed_forward(normed, i, "silu"), x, "l_out", i)
    chosen = experts(step, normed, i, "silu")
    y = step.tell("ffn_out", chosen + step.feed_forward(normed, i, "silu", "shexp"), i)
    return step.plus(y, x, "l_out", i)


def _attention(step: Step, x: Array, i: int) -> Array:
    c, xp, stem = step.config, namespace(x), f"blk.{i}"
    latent, turning = c.latent, c.rope.dims
    q = _queries(step, x, i)
    plain = q.shape[-1] - turning
    both = step.product(x, "attn_kv_a_mqa", i, "kv_cmpr_pe")
    short, k_pe = columns(f"{stem}.attn_kv_a_mqa", both, [latent, turning])
    q_pe = step.turn(xp.ascontiguousarray(q[..., plain:]), "q_pe", i)
    k_pe = step.turn(k_pe[:, None, :], "k_pe", i)
    short = step.tell("kv_cmpr", step.norm(short, "attn_kv_a_norm", i), i)
    if c.shared:
        inside = step.by_head(xp.ascontiguousarray(q[..., :plain]), "attn_k_b", i, "q_nope_absorbed")
        q = step.tell("Qcur", xp.concatenate([inside, q_pe], axis=-1), i)
        k = step.tell("Kcur", xp.concatenate([short[:, None, :], k_pe], axis=-1), i)
        return step.attention(q, k, None, i, behind="attn_v_b")
    kv = step.product(short, "attn_kv_b", i, "kv").reshape(len(x), c.heads[i], -1)
    v = step.tell("Vcur_cont", xp.ascontiguousarray(kv[..., plain:]), i)
    q = step.tell("Qcur", xp.concatenate([q[..., :plain], q_pe], axis=-1), i)
    k_pe = xp.repeat(k_pe, c.heads[i], axis=1)
    k = step.tell("Kcur", xp.concatenate([kv[..., :plain], k_pe], axis=-1), i)
    return step.attention(q, k, v, i)


def _queries(step: Step, x: Array, i: int) -> Array:
    """Queries [T, H, D], by one matrix or by two with a norm between them."""
    if f"blk.{i}.attn_q" in step.weights:
        q = step.product(x, "attn_q", i, "q")
    else:
        q = step.tell("q", step.norm(step.product(x, "attn_q_a", i, "q"), "attn_q_a_norm", i), i)
        q = step.product(q, "attn_q_b", i, "q")
    return q.reshape(len(x), step.config.heads[i], -1)


def config(c: Config, metadata: Mapping[str, Any]) -> Config:
    """Sizes of the short vector and of heads, and how experts are chosen."""
    facts = Facts(metadata, c.architecture)
    width = int(facts.get("attention.key_length_mla", 0))
    stretch = 1 / c.rope.scale
    # The length of turned pairs goes into the scale of scores; pairs themselves keep theirs.
    multiplier = float(facts.get("rope.scaling.yarn_log_multiplier", 0.0)) * 10
    longer = 1 + 0.1 * math.log(stretch)
    length = c.rope.length * longer if c.rope.mix else c.rope.length
    if c.rope.mix and multiplier:
        length /= longer
    rope = replace(c.rope, length=length / longer if c.rope.mix else length)
    scale = (length * (1 + 0.1 * multiplier * math.log(stretch))) ** 2 / math.sqrt(width or c.key_width)
    return replace(
        c, scale=scale, rope=rope, window_rope=rope, shared=bool(width),
        latent=int(facts.number("attention.kv_lora_rank")),
        dense=int(facts.get("leading_dense_block_count", 0)),
        groups=int(facts.get("expert_group_count", 0)),
        used_groups=int(facts.get("expert_group_used_count", 0)),
        share_of_chosen=bool(facts.get("expert_weights_norm", False)),
        expert_scale=float(facts.get("expert_weights_scale", 0.0)),
        sigmoid=facts.get("expert_gating_func", 0) == SIGMOID,
    )  # fmt: skip


FAMILIES = {"deepseek2": Family(layer, neox=False, config=config)}
