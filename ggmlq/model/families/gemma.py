"""Gemma 2 and 3: norms before and behind each part, GELU, some layers with a window.

    x = x + norm(attention(norm(x)))
    x = x + norm(feed_forward(norm(x)))

The embedding is multiplied by the root of the width. Gemma 2 bends scores and logits by a hyperbolic tangent;
Gemma 3 has a norm of each head, and RoPE's base of layers with a window is their own.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...base.scores import score_columns
from ..arithmetic.kernels import Array
from ..config import Config, Facts
from ..step import Step
from ..weights import Frame
from .family import Family


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of Gemma."""
    third = step.config.architecture == "gemma3"
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    q, k, v = step.heads(normed, i)
    if third:
        q = step.head_norm(q, "attn_q_norm", "Qcur_normed", i)
        k = step.head_norm(k, "attn_k_norm", "Kcur_normed", i)
    y = step.rope_attention(q, k, v, i, scaled="")
    y = step.tell("attn_post_norm", step.norm(y, "post_attention_norm", i), i)
    x = step.plus(y, x, "sa_out", i)
    normed = step.tell("ffn_norm", step.norm(x, "ffn_norm", i), i)
    y = step.norm(step.feed_forward(normed, i, "gelu"), "post_ffw_norm", i, plain=True)
    y = step.tell("ffn_post_norm", y, i if third else None)
    return step.plus(y, x, "l_out", i)


def embed(step: Step, x: Array) -> Array:
    """The embedding times the root of the width."""
    return step.tell("inp_scaled", step.a.times(x, math.sqrt(step.config.width)))


def tensors(frame: Frame) -> None:
    """The tensors of a layer of Gemma."""
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    frame.vectors(frame.config.width, *norms)
    frame.attention()
    if frame.config.architecture == "gemma3":
        frame.vectors(frame.config.key_width, "attn_q_norm", "attn_k_norm")
    frame.feed_forward()


def config(c: Config, facts: Facts) -> Config:
    """Caps of scores and logits, and the scale of the largest models."""
    cap = {"gemma2": 50.0, "gemma3": 0.0}[c.architecture]
    if c.architecture == "gemma2":
        cap = float(facts.get("attn_logit_softcapping", cap))
    last = {"gemma2": 30.0, "gemma3": 0.0}[c.architecture]
    last = float(facts.get("final_logit_softcapping", last))
    columns = score_columns(c.architecture, c.layers, c.width, c.heads[0], c.key_width)
    return replace(c, scale=1 / math.sqrt(columns), score_cap=cap, logit_cap=last)


FAMILIES = {
    "gemma2": Family(layer, tensors, neox=True, period=2, window=4096, embed=embed, config=config),
    "gemma3": Family(layer, tensors, neox=True, period=6, steady=False, embed=embed, config=config),
}
