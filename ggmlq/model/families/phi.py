"""Phi 3: Llama's layer with pairs half a head apart, and fewer matrices.

    x = x + attention(norm(x))
    x = x + feed_forward(norm(x))

Queries, keys and values are one product, gate and up are one. Pairs have factors for short and for long
contexts. Files say a window, which llama.cpp does not use, and
neither do we: the layers that it holds for are not said.
"""

from __future__ import annotations

from ..arithmetic.kernels import Array
from ..step import Step, longest
from ..weights import Frame
from .family import Family


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of Phi 3."""
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    q, k, v = step.heads(normed, i)
    factors = longest(step.config, step.weights)
    x = step.plus(step.rope_attention(q, k, v, i, factors, scaled="Qcur"), x, "", i)
    normed = step.tell("ffn_norm", step.norm(x, "ffn_norm", i), i)
    return step.plus(step.feed_forward(normed, i, "silu"), x, "l_out", i)


def tensors(frame: Frame) -> None:
    """The tensors of a layer of Phi 3."""
    frame.factors()
    frame.vectors(frame.config.width, "attn_norm", "ffn_norm")
    frame.attention()
    frame.feed_forward(joined=True)


FAMILIES = {"phi3": Family(layer, tensors, neox=True)}
