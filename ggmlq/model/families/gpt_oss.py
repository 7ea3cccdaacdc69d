"""gpt-oss: experts with biases and a clamped gate, sinks in the softmax, every other layer with a window.

x = x + attention(norm(x))
x = x + experts(norm(x))
"""

from __future__ import annotations

from ..arithmetic.kernels import Array
from ..step import Step, experts
from ..weights import Frame
from .family import Family


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of gpt-oss."""
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    q, k, v = step.heads(normed, i)
    sinks = step.weights.vector(f"blk.{i}.attn_sinks.weight")
    x = step.plus(step.rope_attention(q, k, v, i, sinks=sinks), x, "ffn_inp", i)
    normed = step.tell("attn_post_norm", step.norm(x, "post_attention_norm", i), i)
    return step.plus(experts(step, normed, i, "swiglu_oai", after=True), x, "l_out", i)


def tensors(frame: Frame) -> None:
    """The tensors of a layer of gpt-oss."""
    frame.vectors(frame.config.width, "attn_norm", "post_attention_norm")
    frame.attention()
    frame.vectors(frame.config.heads[frame.layer], "attn_sinks")
    frame.experts()


FAMILIES = {"gpt-oss": Family(layer, tensors, neox=True, period=2)}
