"""Qwen3-Next, Qwen3.5 and later: layers with the gated delta rule, and some with gated attention.

    x = x + delta(norm(x))             or attention(norm(x)) ∘ sigmoid(gate), every fourth layer
    x = x + feed_forward(norm(x))      or the weighted sum of experts, and a gated one for all tokens

A layer of the delta rule has a state of a square matrix for each head of values, and the last rows of a short
convolution over queries, keys and values. A text's positions are the same in all sections of RoPE.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..arithmetic.kernels import Array, Net
from ..config import SECTIONS, Config, Facts
from ..recurrence import convolution, delta_rule, pasts, unit
from ..step import Step, experts
from ..weights import Frame, columns
from .family import Family

EVERY = 4  # of so many layers the last one has attention


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of Qwen3-Next or Qwen3.5."""
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    y = _attention(step, normed, i) if step.config.kv_heads[i] else _delta(step, normed, i)
    x = step.plus(y, x, "attn_residual", i)
    normed = step.tell("attn_post_norm", step.norm(x, "post_attention_norm", i), i)
    if not step.config.experts:
        return step.plus(step.feed_forward(normed, i, "silu"), x, "l_out", i)
    chosen, shared = experts(step, normed, i, "silu"), step.feed_forward(normed, i, "silu", "shexp")
    gate = step.product(normed, "ffn_gate_inp_shexp", i, "shared_expert_gate")
    if step.joins:
        return step.plus(step.a.plus_share(chosen, shared, gate), x, "l_out", i)
    share = step.tell("shared_expert_gate_sigmoid", step.a.sigmoid(gate), i)
    shared = step.tell("ffn_shexp_gated", shared * share, i)
    return step.plus(step.tell("ffn_out", step.a.sum(chosen, shared), i), x, "l_out", i)


def embed(step: Step, x: Array) -> Array:
    """The embedding by its name in this family."""
    return step.tell(f"model.{'embed_tokens' if _is_next(step.config) else 'input_embed'}", x)


def _attention(step: Step, x: Array, i: int) -> Array:
    """Attention of queries, behind each of which is a gate of its head's results."""
    c, count, width = step.config, len(x), step.config.key_width
    both = step.product(x, "attn_q", i, "Qcur_full").reshape(count, c.heads[i], 2 * width)
    k, v = step.products(x, ("attn_k", "attn_v"), i, ("Kcur", "Vcur"))
    q, gate = (step.a.some_columns(both, first, width) for first in (0, width))
    q = step.head_norm(q, "attn_q_norm", "Qcur_normed", i)
    k = step.head_norm(k.reshape(count, -1, width), "attn_k_norm", "Kcur_normed", i)
    gate = step.tell("gate_reshaped", gate.reshape(count, -1), i)
    return step.rope_attention(q, k, v.reshape(count, -1, width), i, gate=gate)


def _delta(step: Step, x: Array, i: int) -> Array:
    """The delta rule, a norm of each head with a gate, and the product behind it."""
    if step.joins and (y := _at_once(step, x, i)) is not None:
        return step.product(y, "ssm_out", i)
    a, count, (heads, width, _) = step.a, len(x), step.config.state[1]
    mixed, z = step.products(x, ("attn_qkv", "attn_gate"), i, ("linear_attn_qkv_mixed", "z"))
    share, forgets = _gates(step, x, i)
    mixed = convolution(step, mixed, "ssm_conv1d", i, "conv_output_raw")
    mixed = step.tell("conv_output_silu", a.silu(mixed), i)
    short = (mixed.shape[-1] - heads * width) // 2
    q, k, v = (part.reshape(count, -1, width) for part in columns(mixed, [short, short, heads * width]))
    q, k = (unit(step, part, f"{role}_conv_predelta", i) for role, part in (("q", q), ("k", k)))
    of = _groups(step.config, heads, q.shape[1])
    y = step.tell("attn_output", delta_rule(step, (q[:, of], k[:, of], v, forgets, share), i), i)
    y = a.gated("silu", z.reshape(y.shape), step.norm(y, "ssm_norm", i)).reshape(count, -1)
    return step.product(step.tell("final_output", y, i), "ssm_out", i, "linear_attn_out")


def _at_once(step: Step, x: Array, i: int) -> Array | None:
    """The rows that the last product of the delta rule reads, in few launches; None where there are none."""
    c, stem, vector = step.config, f"blk.{i}", step.weights.vector
    heads, groups = c.state[1][0], _key_heads(c)
    net = Net(
        vector(f"{stem}.ssm_dt.bias"), vector(f"{stem}.ssm_a"), vector(f"{stem}.ssm_norm.weight"), groups,
        heads // groups if _is_next(c) else heads, not _is_next(c), c.epsilon,
    )  # fmt: skip
    if not step.a.takes_net(c.state[1]):
        return None
    names = ("attn_qkv", "attn_gate", *(("ssm_ba",) if _is_next(c) else ("ssm_beta", "ssm_alpha")))
    mixed, z, *gates = step.products(x, names, i, names)
    states = pasts(step, i, mixed)
    mixed = step.a.convolved(mixed, vector(f"{stem}.ssm_conv1d.weight"), states, silu=True)
    share, speed = gates if len(gates) == 2 else (gates[0], gates[0][:, net.run :])
    return step.a.delta_net(mixed, z, (share, speed), net, states)


def _gates(step: Step, x: Array, i: int) -> tuple[Array, Array]:
    """The share of what is new and the logarithm of what stays, [T, H] both."""
    a, vector, count = step.a, step.weights.vector, len(x)
    if _is_next(step.config):
        both = step.product(x, "ssm_ba", i, "linear_attn_mixed_ba")
        both = both.reshape(count, _key_heads(step.config), -1)
        share, speed = (part.reshape(count, -1) for part in columns(both, [both.shape[-1] // 2] * 2))
    else:
        share, speed = step.products(x, ("ssm_beta", "ssm_alpha"), i, ("beta", "alpha"))
    share = step.tell("beta_sigmoid", a.sigmoid(share), i)
    speed = step.tell("a_softplus", a.softplus(speed + vector(f"blk.{i}.ssm_dt.bias")), i)
    return share, step.tell("gate", speed * vector(f"blk.{i}.ssm_a"), i)


def _key_heads(c: Config) -> int:
    """Heads of queries and of keys in a layer of the delta rule."""
    (_, whole), (heads, width, _) = c.state
    return (whole // width - heads) // 2


def _groups(c: Config, heads: int, groups: int) -> NDArray[np.int64]:
    """The head of keys of each head of values: Qwen3-Next's heads follow each other, others take turns."""
    numbers = np.arange(heads)
    return numbers // (heads // groups) if _is_next(c) else numbers % groups


def _is_next(c: Config) -> bool:
    return c.architecture == "qwen3next"


def tensors(frame: Frame) -> None:
    """The tensors of a layer of Qwen3-Next or Qwen3.5."""
    c = frame.config
    frame.vectors(c.width, "attn_norm", "post_attention_norm")
    if kv_heads := c.kv_heads[frame.layer]:
        heads, width = c.heads[frame.layer], c.key_width
        frame.matrix("attn_q", 2 * heads * width, c.width)
        frame.matrix("attn_k", kv_heads * width, c.width)
        frame.matrix("attn_v", kv_heads * width, c.width)
        frame.matrix("attn_output", c.width, heads * width)
        frame.vectors(width, "attn_q_norm", "attn_k_norm")
    else:
        (kernel, whole), (heads, width, _) = c.state
        frame.matrix("attn_qkv", whole, c.width, bias=False)
        frame.matrix("attn_gate", heads * width, c.width, bias=False)
        frame.tensor("ssm_conv1d.weight", whole, kernel + 1)
        if _is_next(c):
            frame.matrix("ssm_ba", 2 * heads, c.width, bias=False)
        else:
            frame.matrix("ssm_beta", heads, c.width, bias=False)
            frame.matrix("ssm_alpha", heads, c.width, bias=False)
        frame.tensor("ssm_dt.bias", heads)
        frame.tensor("ssm_a", heads)
        frame.vectors(width, "ssm_norm")
        frame.matrix("ssm_out", c.width, heads * width, bias=False)
    if not c.experts:
        frame.feed_forward()
        return
    frame.experts()
    frame.row("ffn_gate_inp_shexp", c.width)
    frame.feed_forward("_shexp", hidden=frame.facts.get("expert_shared_feed_forward_length", 0))


def config(c: Config, facts: Facts) -> Config:
    """The layers that have attention, and the sizes of the states of the others."""
    if c.value_width != c.key_width:
        raise facts.wrong("attention.value_length", f"it is key_length, {c.key_width}")
    if not _is_next(c) and not facts.sections(c.rope.dims, turns=True):
        raise facts.wrong(SECTIONS, "this family has numbers of pairs there")
    if bool(c.experts) == (c.architecture == "qwen35"):
        raise facts.wrong("expert_count", "qwen35 has no experts, qwen35moe and qwen3next have some")
    every = facts.get("full_attention_interval", EVERY)
    recurrent = facts.get("attention.recurrent_layers") or [(i + 1) % every != 0 for i in range(c.layers)]
    kv_heads = tuple(0 if one else n for one, n in zip(recurrent, c.kv_heads, strict=False))
    heads, width = facts.number("ssm.time_step_rank"), facts.number("ssm.state_size")
    groups, taps = facts.number("ssm.group_count"), facts.number("ssm.conv_kernel")
    if heads % groups:
        raise facts.wrong("ssm.group_count", f"heads are a multiple of it, here {heads}")
    if facts.number("ssm.inner_size") != heads * width:
        raise facts.wrong("ssm.inner_size", f"it is {heads} heads of {width} columns")
    shapes = (taps - 1, (2 * groups + heads) * width), (heads, width, width)
    scale = float(facts.get("attention.scale", 0.0)) or c.scale
    return replace(c, kv_heads=kv_heads, scale=scale, state=shapes if 0 in kv_heads else (), seeds=True)


NAMES = ("qwen3next", "qwen35", "qwen35moe")
FAMILIES = dict.fromkeys(NAMES, Family(layer, tensors, neox=True, embed=embed, config=config))
