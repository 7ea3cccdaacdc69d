"""Llama, Mistral and Mixtral: a norm before each part, queries and keys with RoPE of neighbours.

x = x + attention(norm(x))
x = x + feed_forward(norm(x))      or the sum of two experts
"""

from __future__ import annotations

from ..arithmetic.kernels import Array
from ..step import Step, experts, longest
from ..weights import Frame
from .family import Family


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of Llama."""
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    q, k, v = step.heads(normed, i)
    factors = longest(step.config, step.weights)
    if not (grows := step.config.temperature):
        y = step.rope_attention(q, k, v, i, factors)
    else:
        q, k = step.rope(q, "Qcur", i, factors), step.rope(k, "Kcur", i, factors)
        steps = step.positions // step.config.rope.context
        growth = step.a.xp(steps).log(steps + 1) * grows + 1
        q = q * step.a.real(growth)[:, None, None]
        y = step.attention(step.tell("Qcur_attn_temp_scaled", q, i), k, v, i)
    x = step.plus(y, x, "ffn_inp", i)
    normed = step.tell("ffn_norm", step.norm(x, "ffn_norm", i), i)
    y = experts(step, normed, i, "silu") if step.config.experts else step.feed_forward(normed, i, "silu")
    return step.plus(y, x, "l_out", i)


def tensors(frame: Frame) -> None:
    """The tensors of a layer of Llama."""
    frame.factors()
    frame.vectors(frame.config.width, "attn_norm", "ffn_norm")
    frame.attention()
    if frame.config.experts:
        frame.experts("feed_forward_length")
    else:
        frame.feed_forward()


FAMILIES = dict.fromkeys(("llama", "mistral3"), Family(layer, tensors, neox=False))
