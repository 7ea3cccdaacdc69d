"""Granite: Llama's layer with factors of the embedding, of what a part adds, of scores and of logits.

x = x + r · attention(norm(x))         or Mamba 2, in layers without keys
x = x + r · feed_forward(norm(x))      or experts, with a shared one where files have it
"""

from __future__ import annotations

from dataclasses import replace

from .. import mamba
from ..arithmetic.kernels import Array
from ..config import Config, Facts
from ..step import Step, experts, longest
from ..weights import Frame
from .family import Family


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of Granite."""
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    if step.config.kv_heads[i]:
        factors = longest(step.config, step.weights)
        y = step.rope_attention(*step.heads(normed, i), i, factors)
    else:
        y = mamba.mamba2(step, normed, i)
    x = step.plus(_scaled(step, y), x, "ffn_inp", i)
    normed = step.tell("ffn_norm", step.norm(x, "ffn_norm", i), i)
    if not step.config.experts:
        y = step.feed_forward(normed, i, "silu")
    else:
        y = experts(step, normed, i, "silu")
        if f"blk.{i}.ffn_up_shexp" in step.weights:
            y = step.tell("ffn_out", step.a.sum(y, step.feed_forward(normed, i, "silu", "shexp")), i)
    return step.plus(_scaled(step, y), x, "l_out", i)


def _scaled(step: Step, y: Array) -> Array:
    factor = step.config.residual_scale
    return step.a.times(y, factor) if factor else y


def tensors(frame: Frame) -> None:
    """The tensors of a layer of Granite."""
    frame.factors()
    frame.vectors(frame.config.width, "attn_norm", "ffn_norm")
    if frame.config.kv_heads[frame.layer]:
        frame.attention()
    else:
        mamba.tensors(frame)
    if not frame.config.experts:
        frame.feed_forward()
        return
    frame.experts("feed_forward_length")
    if hidden := frame.facts.get("expert_shared_feed_forward_length", 0):
        frame.feed_forward("_shexp", hidden=hidden)


def config(c: Config, facts: Facts) -> Config:
    """The factors; files may say that there is no RoPE."""
    if c.rope.dims != c.key_width:
        raise facts.wrong("rope.dimension_count", f"it is a key's {c.key_width} columns")
    hybrid = c.architecture == "granitehybrid"
    logits = facts.get("logit_scale", 0.0) if hybrid else facts.number("logit_scale")
    rope = c.rope if facts.get("rope.scaling.finetuned", True) else replace(c.rope, dims=0)
    return replace(
        c, rope=rope, window_rope=rope, scale=float(facts.get("attention.scale", 0.0)) or c.scale,
        embed_scale=float(facts.get("embedding_scale", 0.0)), logit_scale=float(logits),
        residual_scale=float(facts.get("residual_scale", 0.0)),
        state=mamba.state_of(c, facts) if hybrid else (),
    )  # fmt: skip


NAMES = ("granite", "granitemoe", "granitehybrid")
FAMILIES = dict.fromkeys(NAMES, Family(layer, tensors, neox=False, config=config))
