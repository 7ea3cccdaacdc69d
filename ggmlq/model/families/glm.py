"""GLM 4: Llama's layer with a norm behind each part, and half of a head's columns with RoPE.

    x = x + norm(attention(norm(x)))
    x = x + norm(feed_forward(norm(x)))

Gate and up are one matrix. Files of models that also see have sections of positions: then pairs are half of
the rotated columns apart, and a text's positions are the same in all sections.
"""

from __future__ import annotations

from dataclasses import replace

from ..arithmetic.kernels import Array
from ..config import Config, Facts
from ..step import Step
from ..weights import Frame
from .family import Family


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of GLM 4."""
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    y = step.rope_attention(*step.heads(normed, i), i)
    y = step.tell("post_attn_norm", step.norm(y, "post_attention_norm", i), i)
    x = step.plus(y, x, "ffn_inp", i)
    normed = step.tell("ffn_norm", step.norm(x, "ffn_norm", i), i)
    y = step.norm(step.feed_forward(normed, i, "silu"), "post_ffw_norm", i)
    return step.plus(step.tell("post_mlp_norm", y, i), x, "l_out", i)


def tensors(frame: Frame) -> None:
    """The tensors of a layer of GLM 4."""
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    frame.vectors(frame.config.width, *norms)
    frame.attention()
    frame.feed_forward(joined=True)


def config(c: Config, facts: Facts) -> Config:
    """Pairs of neighbours, but for files with sections."""
    neox = facts.sections(c.rope.dims, turns=False)
    rope = replace(c.rope, neox=neox)
    return replace(c, rope=rope, window_rope=rope)


FAMILIES = {"glm4": Family(layer, tensors, neox=False, config=config)}
