"""GLM 4: Llama's layer with a norm behind each part, and half of a head's columns with RoPE.

    x = x + norm(attention(norm(x)))
    x = x + norm(feed_forward(norm(x)))

Gate and up are one matrix. GLM 4.5 and later have experts behind the first layers, a shared one beside the
chosen ones, and no norm behind a part. Files of models that also see have sections of positions: then pairs
are half of the rotated columns apart, and a text's positions are the same in all sections.
"""

from __future__ import annotations

from dataclasses import replace

from ..arithmetic.kernels import Array
from ..config import Config, Facts
from ..step import Step, experts
from ..weights import Frame
from .family import Family

NORMS = ("attn_q_norm", "attn_k_norm")  # of heads, which only some models have


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of GLM 4."""
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    y = step.rope_attention(*step.heads(normed, i), i)
    y = step.tell("post_attn_norm", step.norm(y, "post_attention_norm", i), i)
    x = step.plus(y, x, "ffn_inp", i)
    normed = step.tell("ffn_norm", step.norm(x, "ffn_norm", i), i)
    y = step.norm(step.feed_forward(normed, i, "silu"), "post_ffw_norm", i)
    return step.plus(step.tell("post_mlp_norm", y, i), x, "l_out", i)


def mixture(step: Step, x: Array, i: int) -> Array:
    """A layer of GLM 4.5."""
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    q, k, v = step.heads(normed, i)
    if f"blk.{i}.attn_q_norm" in step.weights:
        q = step.head_norm(q, "attn_q_norm", "Qcur_normed", i)
        k = step.head_norm(k, "attn_k_norm", "Kcur_normed", i)
    x = step.plus(step.rope_attention(q, k, v, i), x, "ffn_inp", i)
    normed = step.tell("post_attn_norm", step.norm(x, "post_attention_norm", i), i)
    if i < step.config.dense:
        return step.plus(step.feed_forward(normed, i, "silu"), x, "l_out", i)
    chosen = experts(step, normed, i, "silu")
    shared = step.tell("ffn_shexp_out", step.feed_forward(normed, i, "silu", "shexp"), i)
    return step.plus(step.tell("ffn_out", step.a.sum(chosen, shared), i), x, "l_out", i)


def tensors(frame: Frame) -> None:
    """The tensors of a layer of GLM 4."""
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    frame.vectors(frame.config.width, *norms)
    frame.attention()
    frame.feed_forward(joined=True)


def tensors_of_mixture(frame: Frame) -> None:
    """The tensors of a layer of GLM 4.5."""
    c = frame.config
    frame.vectors(c.width, "attn_norm", "post_attention_norm")
    frame.attention()
    if any(frame.has(f"{name}.weight") for name in NORMS):
        frame.vectors(c.key_width, *NORMS)
    if frame.layer < c.dense:
        frame.feed_forward()
        return
    frame.experts()
    frame.tensor("exp_probs_b.bias", c.experts)
    hidden = frame.facts.get("expert_feed_forward_length", 0) * frame.facts.get("expert_shared_count", 0)
    frame.feed_forward("_shexp", hidden=hidden)


def config(c: Config, facts: Facts) -> Config:
    """Pairs of neighbours, but for files with sections."""
    neox = facts.sections(c.rope.dims, turns=False)
    rope = replace(c.rope, neox=neox)
    return replace(c, rope=rope, window_rope=rope)


def config_of_mixture(c: Config, facts: Facts) -> Config:
    """Pairs half of the rotated columns apart, and how experts are chosen: by a sigmoid of each."""
    facts.sections(c.rope.dims, turns=False)
    return replace(
        c, dense=facts.get("leading_dense_block_count", 0), sigmoid=facts.get("expert_gating_func", 0) != 1,
        share_of_chosen=facts.get("expert_weights_norm", False),
        expert_scale=float(facts.get("expert_weights_scale", 0.0)),
    )  # fmt: skip


FAMILIES = {
    "glm4": Family(layer, tensors, neox=False, config=config),
    "glm4moe": Family(mixture, tensors_of_mixture, neox=True, config=config_of_mixture),
}
