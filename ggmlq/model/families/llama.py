"""Llama, Mistral and Mixtral: a norm before each part, queries and keys turned as neighbours.

x = x + attention(norm(x))
x = x + feed_forward(norm(x))      or the sum of two experts
"""

from __future__ import annotations

import numpy as np

from ..step import Array, Step, longest
from .family import Family


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of Llama."""
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    q, k, v = step.heads(normed, i)
    factors = longest(step.config, step.weights)
    q, k = step.turn(q, "Qcur", i, factors), step.turn(k, "Kcur", i, factors)
    if grows := step.config.temperature:
        steps = np.floor(step.positions / step.config.rope.context)
        q = q * step.a.real((np.log(steps + 1) * grows + 1)[:, None, None])
        q = step.tell("Qcur_attn_temp_scaled", q, i)
    x = step.tell("ffn_inp", step.attention(q, k, v, i) + x, i)
    normed = step.tell("ffn_norm", step.norm(x, "ffn_norm", i), i)
    if f"blk.{i}.ffn_gate_inp" in step.weights:
        y = step.experts(normed, i, "silu")
    else:
        y = step.feed_forward(normed, i, "silu")
    return step.tell("l_out", y + x, i)


FAMILIES = dict.fromkeys(("llama", "mistral3"), Family(layer, neox=False))
