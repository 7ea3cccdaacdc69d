"""DeepSeek 2 and 3: keys and values from one short vector a token, shared experts beside the chosen ones.

    x = x + attention(norm(x))
    x = x + feed_forward(norm(x))      in the first layers; then shared experts plus chosen ones

The cache has the short vector and the part of the keys that has RoPE, one head for all. A query is brought
into that space by a matrix for each head, and what attention gives is brought back by another. Older files
have one matrix that makes keys and values of all heads: then these are in the cache.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..arithmetic.kernels import Array
from ..config import Config, Facts
from ..step import Step, experts
from ..weights import Frame
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
    y = step.tell("ffn_out", step.a.sum(chosen, step.feed_forward(normed, i, "silu", "shexp")), i)
    return step.plus(y, x, "l_out", i)


def _attention(step: Step, x: Array, i: int) -> Array:
    c, xp, some_columns = step.config, step.a.xp(x), step.a.some_columns
    latent, rope_columns = c.latent, c.rope.dims
    q = _queries(step, x, i)
    plain = q.shape[-1] - rope_columns
    both = step.product(x, "attn_kv_a_mqa", i, "kv_cmpr_pe")
    if c.shared and (y := step.latent_attention(q, both, i)) is not None:
        return y
    q_pe = step.rope(some_columns(q, plain, rope_columns), "q_pe", i)
    k_pe = step.rope(some_columns(both, latent, rope_columns)[:, None, :], "k_pe", i)
    short = step.norm(some_columns(both, 0, latent), "attn_kv_a_norm", i)
    short = step.tell("kv_cmpr", short, i)
    if c.shared:
        inside = step.by_head(some_columns(q, 0, plain), "attn_k_b", i, "q_nope_absorbed")
        q = step.tell("Qcur", xp.concatenate([inside, q_pe], axis=-1), i)
        k = step.tell("Kcur", xp.concatenate([short[:, None, :], k_pe], axis=-1), i)
        return step.attention(q, k, None, i, behind="attn_v_b")
    kv = step.product(short, "attn_kv_b", i, "kv").reshape(len(x), c.heads[i], -1)
    v = step.tell("Vcur_cont", some_columns(kv, plain, kv.shape[-1] - plain), i)
    q = step.tell("Qcur", xp.concatenate([q[..., :plain], q_pe], axis=-1), i)
    k_pe = xp.broadcast_to(k_pe, q_pe.shape)
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


def tensors(frame: Frame) -> None:
    """The tensors of a layer of DeepSeek."""
    c, facts, heads = frame.config, frame.facts, frame.config.heads[frame.layer]
    latent, width = c.latent, facts.get("attention.key_length_mla", 0) or c.key_width
    plain, values = width - c.rope.dims, c.value_width
    frame.vectors(c.width, "attn_norm", "ffn_norm")
    if frame.has("attn_q.weight"):
        frame.matrix("attn_q", heads * width, c.width)
    else:
        short = facts.get("attention.q_lora_rank", 0) or frame.columns("attn_q_b")
        frame.matrix("attn_q_a", short, c.width)
        frame.vectors(short, "attn_q_a_norm")
        frame.matrix("attn_q_b", heads * width, short)
    frame.matrix("attn_kv_a_mqa", latent + c.rope.dims, c.width)
    frame.vectors(latent, "attn_kv_a_norm")
    if c.shared:
        values = facts.get("attention.value_length_mla", 0) or frame.columns("attn_output") // heads
        frame.matrix("attn_k_b", heads, latent, plain, bias=False)
        frame.matrix("attn_v_b", heads, values, latent, bias=False)
    else:
        frame.matrix("attn_kv_b", heads * (plain + values), latent)
    frame.matrix("attn_output", c.width, heads * values)
    if frame.layer < c.dense:
        frame.feed_forward()
    else:
        frame.experts()
        if frame.has("exp_probs_b.bias"):
            frame.tensor("exp_probs_b.bias", c.experts)
        hidden = facts.get("expert_feed_forward_length", 0) * facts.get("expert_shared_count", 0)
        frame.feed_forward("_shexp", hidden=hidden)


def _held(c: Config, facts: Facts, width: int) -> None:
    """Refuse sizes of heads, and groups of experts, that do not go together."""
    latent, rope_columns = facts.number("attention.kv_lora_rank"), c.rope.dims
    if rope_columns >= (width or c.key_width):
        raise facts.wrong("rope.dimension_count", f"a query's {width or c.key_width} columns are more")
    if not width and c.kv_heads != c.heads:
        raise facts.wrong("attention.head_count_kv", "without key_length_mla it is head_count")
    if width and max(c.kv_heads) > 1:
        raise facts.wrong("attention.head_count_kv", "with key_length_mla all heads share one of keys")
    if width and c.key_width != latent + rope_columns:
        raise facts.wrong("attention.key_length", f"with key_length_mla it is {latent} + {rope_columns}")
    if width and c.value_width != latent:
        raise facts.wrong("attention.value_length", f"with key_length_mla it is {latent}")
    if facts.get("expert_gating_func", 0) > SIGMOID:
        raise facts.wrong("expert_gating_func", "0 and 1 are a softmax, 2 is a sigmoid of each")
    groups, used = facts.get("expert_group_count", 0), facts.get("expert_group_used_count", 0)
    if c.experts and groups > 1:
        if c.experts % groups:
            raise facts.wrong("expert_group_count", f"the {c.experts} experts are a multiple of it")
        if not 1 <= used <= groups or used * (c.experts // groups) < c.used_experts:
            raise facts.wrong("expert_group_used_count", f"from 1 to {groups}, with {c.used_experts} experts")


def config(c: Config, facts: Facts) -> Config:
    """Sizes of the short vector and of heads, and how experts are chosen."""
    width = facts.get("attention.key_length_mla", 0)
    _held(c, facts, width)
    stretch = 1 / c.rope.scale
    # The length of rotated pairs goes into the scale of scores; pairs themselves keep theirs.
    multiplier = float(facts.get("rope.scaling.yarn_log_multiplier", 0.0)) * 10
    longer = 1 + 0.1 * math.log(stretch)
    length = c.rope.length * longer if c.rope.mix else c.rope.length
    if c.rope.mix and multiplier:
        length /= longer
    rope = replace(c.rope, length=length / longer if c.rope.mix else length)
    scale = (length * (1 + 0.1 * multiplier * math.log(stretch))) ** 2 / math.sqrt(width or c.key_width)
    return replace(
        c, scale=scale, rope=rope, window_rope=rope, shared=bool(width),
        latent=facts.number("attention.kv_lora_rank"),
        dense=facts.get("leading_dense_block_count", 0), groups=facts.get("expert_group_count", 0),
        used_groups=facts.get("expert_group_used_count", 0),
        share_of_chosen=facts.get("expert_weights_norm", False),
        expert_scale=float(facts.get("expert_weights_scale", 0.0)),
        sigmoid=facts.get("expert_gating_func", 0) == SIGMOID,
    )  # fmt: skip


FAMILIES = {"deepseek2": Family(layer, tensors, neox=False, config=config)}
