"""Nemotron-H: layers of one part each, which is Mamba 2, attention without RoPE, or a feed-forward part.

    x = x + part(norm(x))

The feed-forward part has no gate: down · relu(up · x)². In its place there may be experts of the same kind,
which may read shorter rows, beside a shared one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import mamba
from ..arithmetic.kernels import Array
from ..config import Config, Facts
from ..step import Step, experts
from ..weights import Frame
from .family import Family


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of Nemotron-H."""
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    if step.config.kv_heads[i]:
        y = step.attention(*step.heads(normed, i), i)
    elif i not in step.config.bare:
        y = mamba.mamba2(step, normed, i)
    elif not step.config.experts:
        y = step.tell("l_out", _squared(step, normed, i), i)
    else:
        shared = step.tell("ffn_shexp", _squared(step, normed, i, "_shexp"), i)
        y = step.tell("l_out", step.a.sum(_mixture(step, normed, i), shared), i)
    return step.plus(y, x, "nemotron_h_block_out", i)


def _squared(step: Step, x: Array, i: int, end: str = "") -> Array:
    up = step.product(x, f"ffn_up{end}", i, "ffn_up")
    above = step.tell("ffn_relu", step.a.relu(up), i)
    return step.product(step.tell("ffn_sqr(relu)", np.square(above), i), f"ffn_down{end}", i)


def _mixture(step: Step, x: Array, i: int) -> Array:
    """The sum of experts, of shorter rows where the file has a matrix for them."""
    if f"blk.{i}.ffn_latent_down" not in step.weights:
        return experts(step, x, i, "relu_sqr")
    short = experts(step, step.product(x, "ffn_latent_down", i), i, "relu_sqr", scored=x)
    return step.product(short, "ffn_latent_up", i)


def tensors(frame: Frame) -> None:
    """The tensors of a layer of Nemotron-H."""
    c, facts, i = frame.config, frame.facts, frame.layer
    frame.vectors(c.width, "attn_norm")
    if c.kv_heads[i]:
        frame.attention()
        return
    if i not in c.bare:
        mamba.tensors(frame)
        return
    hidden, end = facts.each("feed_forward_length", 0)[i], ""
    if c.experts:
        short, wide = facts.get("moe_latent_size", 0) or c.width, facts.get("expert_feed_forward_length", 0)
        frame.matrix("ffn_gate_inp", c.experts, c.width, bias=False)
        frame.tensor("exp_probs_b.bias", c.experts)
        if frame.has("ffn_latent_down.weight"):
            frame.matrix("ffn_latent_down", short, c.width, bias=False)
            frame.matrix("ffn_latent_up", c.width, short, bias=False)
        frame.matrix("ffn_up_exps", c.experts, wide, short, bias=False)
        frame.matrix("ffn_down_exps", c.experts, short, wide, bias=False)
        hidden, end = facts.get("expert_shared_feed_forward_length", 0), "_shexp"
    frame.matrix(f"ffn_up{end}", hidden, c.width)
    frame.matrix(f"ffn_down{end}", c.width, hidden)


def config(c: Config, facts: Facts) -> Config:
    """The kinds of layers, and experts that are chosen by a sigmoid of each."""
    if bool(c.experts) == (c.architecture == "nemotron_h"):
        raise facts.wrong("expert_count", "nemotron_h has no experts, nemotron_h_moe has some")
    if facts.get("expert_group_count", 0) > 1:
        raise facts.wrong("expert_group_count", "experts of this family have no groups here")
    lengths = facts.each("feed_forward_length", 0)
    bare = tuple(i for i in range(c.layers) if lengths[i])
    if any(c.kv_heads[i] for i in bare):
        raise facts.wrong("attention.head_count_kv", "a layer with a feed_forward_length has no keys")
    return replace(
        c, rope=replace(c.rope, dims=0), bare=bare, state=mamba.state_of(c, facts), sigmoid=True,
        scale=float(facts.get("attention.scale", 0.0)) or c.scale,
        share_of_chosen=facts.get("expert_weights_norm", False),
        expert_scale=float(facts.get("expert_weights_scale", 0.0)),
        seeds=True,
    )  # fmt: skip


NAMES = ("nemotron_h", "nemotron_h_moe")
FAMILIES = dict.fromkeys(NAMES, Family(layer, tensors, neox=True, config=config))
