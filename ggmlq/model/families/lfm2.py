"""LFM2: layers with a gated short convolution, and some with attention.

    x = x + out(c ∘ convolution(b ∘ z)), (b, c, z) = in(norm(x))      or attention(norm(x))
    x = x + feed_forward(norm(x))      or experts, behind the first layers

Layers without keys have a convolution; its state are the rows of b ∘ z before a token.
"""

from __future__ import annotations

from dataclasses import replace

from ..arithmetic.kernels import Array
from ..config import Config, Facts
from ..recurrence import convolution, pasts
from ..step import Step, experts
from ..weights import Frame, columns
from .family import Family

OWN = "model.layers.{}."  # which llama.cpp has in names of nodes, as it stands here


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of LFM2."""
    normed = step.tell(f"{OWN}operator_norm", step.norm(x, "attn_norm", i), i)
    y = _attention(step, normed, i) if step.config.kv_heads[i] else _convolution(step, normed, i)
    x = step.plus(y, x, "", i)
    normed = step.tell(f"{OWN}ffn_out", step.norm(x, "ffn_norm", i), i)
    mixture = step.config.experts and i >= step.config.dense
    y = experts(step, normed, i, "silu") if mixture else step.feed_forward(normed, i, "silu")
    return step.plus(y, x, "l_out", i)


def embed(step: Step, x: Array) -> Array:
    """The embedding by its name in this family."""
    return step.tell("model.embed_tokens", x)


def _attention(step: Step, x: Array, i: int) -> Array:
    q, k, v = step.heads(x, i)
    q = step.head_norm(q, "attn_q_norm", f"{OWN}self_attn.q_layernorm", i)
    k = step.head_norm(k, "attn_k_norm", f"{OWN}self_attn.k_layernorm", i)
    y = step.rope_attention(q, k, v, i, nodes=("q_pe", "k_pe"))  # which have no names there
    return step.tell(f"{OWN}self_attn.out_proj", y, i)


def _convolution(step: Step, x: Array, i: int) -> Array:
    parts = step.product(x, "shortconv.in_proj", i, f"{OWN}conv.in_proj")
    if step.joins:
        weights = step.weights.vector(f"blk.{i}.shortconv.conv.weight")
        y = step.a.short_convolution(parts, weights, pasts(step, i, parts))
        return step.product(y, "shortconv.out_proj", i)
    b, c, z = columns(parts, [step.config.width] * 3)
    y = c * convolution(step, b * z, "shortconv.conv", i, f"{OWN}conv.conv")
    return step.product(y, "shortconv.out_proj", i, f"{OWN}conv.out_proj")


def tensors(frame: Frame) -> None:
    """The tensors of a layer of LFM2."""
    c = frame.config
    frame.vectors(c.width, "attn_norm", "ffn_norm")
    if c.kv_heads[frame.layer]:
        frame.attention()
        frame.vectors(c.key_width, "attn_q_norm", "attn_k_norm")
    else:
        frame.tensor("shortconv.conv.weight", c.width, c.state[0][0] + 1)
        frame.matrix("shortconv.in_proj", 3 * c.width, c.width, bias=False)
        frame.matrix("shortconv.out_proj", c.width, c.width, bias=False)
    if not c.experts or frame.layer < c.dense:
        frame.feed_forward()
        return
    frame.experts()
    frame.tensor("exp_probs_b.bias", c.experts)


def config(c: Config, facts: Facts) -> Config:
    """The size of the state, a window of all layers with attention, and how experts are chosen."""
    if bool(c.experts) == (c.architecture == "lfm2"):
        raise facts.wrong("expert_count", "lfm2 has no experts, lfm2moe has some")
    taps, window = facts.number("shortconv.l_cache"), facts.get("attention.sliding_window", 0)
    state = ((taps - 1, c.width),) if 0 in c.kv_heads else ()
    return replace(
        c, state=state, last_norm="token_embd_norm", windows=(window,) * c.layers,
        dense=facts.get("leading_dense_block_count", 0), sigmoid=facts.get("expert_gating_func", 0) == 2,
    )  # fmt: skip


FAMILIES = dict.fromkeys(("lfm2", "lfm2moe"), Family(layer, tensors, neox=True, embed=embed, config=config))
