"""Qwen2 and Qwen3: Llama's layer with pairs half a head apart; Qwen2 has biases, Qwen3 a norm of each head.

x = x + attention(norm(x))
x = x + feed_forward(norm(x))      or the weighted sum of experts
"""

from __future__ import annotations

from ..arithmetic.kernels import Array
from ..step import Step, experts
from ..weights import Frame
from .family import Family


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of Qwen."""
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    q, k, v = step.heads(normed, i)
    if step.config.architecture != "qwen2":
        q = step.head_norm(q, "attn_q_norm", "Qcur_normed", i)
        k = step.head_norm(k, "attn_k_norm", "Kcur_normed", i)
    x = step.plus(step.rope_attention(q, k, v, i), x, "ffn_inp", i)
    normed = step.tell("ffn_norm", step.norm(x, "ffn_norm", i), i)
    if step.config.architecture == "qwen3moe":
        y = experts(step, normed, i, "silu")
    else:
        y = step.feed_forward(normed, i, "silu")
    return step.plus(y, x, "l_out", i)


def tensors(frame: Frame) -> None:
    """The tensors of a layer of Qwen."""
    frame.vectors(frame.config.width, "attn_norm", "ffn_norm")
    frame.attention()
    if frame.config.architecture != "qwen2":
        frame.vectors(frame.config.key_width, "attn_q_norm", "attn_k_norm")
    if frame.config.architecture == "qwen3moe":
        frame.experts()
    else:
        frame.feed_forward()


FAMILIES = dict.fromkeys(("qwen2", "qwen3", "qwen3moe"), Family(layer, tensors, neox=True))
