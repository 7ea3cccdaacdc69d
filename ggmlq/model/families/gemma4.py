"""Gemma 4: Gemma's layer, whose heads are wider where there is no window; and columns of a layer beside rows.

    x = x + norm(attention(norm(x)))
    x = x + norm(feed_forward(norm(x)))       or norm(norm(feed_forward(norm(x))) + norm(experts(norm(x))))
    x = x + norm(proj · (gelu(gate · x) ∘ side))      where tokens have columns for each layer
    x = scale · x

Values have a norm of each head without weights, and are keys before their norm where a layer has no matrix
for them. The last layers may read the keys of an earlier one of their kind. Layers without a window rotate a
part of a head's pairs: the others' factors are as good as infinite. Scores are not scaled.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..arithmetic.kernels import Array
from ..config import PATTERN, Config, Facts
from ..step import Step, experts, value
from ..weights import Frame
from .family import Family
from .gemma import embed as scaled

FACTORS = "rope_freqs.weight"


def layer(step: Step, x: Array, i: int) -> Array:
    """A layer of Gemma 4."""
    normed = step.tell("attn_norm", step.norm(x, "attn_norm", i), i)
    y = _attention(step, normed, i)
    y = step.tell("attn_post_norm", step.norm(y, "post_attention_norm", i), i)
    x = step.plus(y, x, "attn_out", i)
    if step.config.experts:
        y = _mixture(step, x, i)
    else:
        y = step.feed_forward(step.tell("ffn_norm", step.norm(x, "ffn_norm", i), i), i, "gelu")
    y = step.tell("ffn_post_norm", step.norm(y, "post_ffw_norm", i, plain=True), i)
    x = step.a.sum(y, value(x))
    if step.config.side:
        x = step.a.sum(step.tell("pe_in", x, i), _beside(step, x, i))
    if (scale := step.weights.number(f"blk.{i}.layer_output_scale.weight")) is not None:
        x = step.a.times(x, scale)
    return step.tell("l_out", x, i)


def _attention(step: Step, x: Array, i: int) -> Array:
    """Attention over the layer's own keys and values, or over those of an earlier one."""
    c, count, nodes = step.config, len(x), ("Qcur_pos", "Kcur_pos")
    (width, _), own = c.widths(i), i in c.keys
    factors = None if c.windows[i] else step.weights.vector(FACTORS)
    names, called = ["attn_q"], ["Qcur"]
    if own and f"blk.{i}.attn_v" in step.weights:
        names, called = [*names, "attn_k", "attn_v"], [*called, "Kcur", "Vcur"]
    elif own:
        names, called = [*names, "attn_k"], [*called, "Vcur"]  # llama.cpp's name of what is both
    q, *others = (y.reshape(count, -1, width) for y in step.products(x, names, i, called))
    q = step.head_norm(q, "attn_q_norm", "Qcur_normed", i)
    if not own:
        return step.rope_attention(q, None, None, i, factors, nodes=nodes, node="")
    k, v = others[0], others[-1]
    k = step.head_norm(k, "attn_k_norm", "Kcur_normed", i)
    v = step.tell("Vcur_normed", step.plain_norm(v), i)
    return step.rope_attention(q, k, v, i, factors, nodes=nodes, node="")


def _mixture(step: Step, x: Array, i: int) -> Array:
    """A feed-forward part of all tokens, and experts, which are chosen by rows with a norm of their own."""
    normed = step.tell("ffn_norm_2", step.norm(x, "pre_ffw_norm_2", i), i)
    scored = step.a.weighted_norm(
        value(x), step.config.epsilon, step.weights.vector(f"blk.{i}.ffn_gate_inp.scale")
    )
    scored = step.a.times(scored, 1 / math.sqrt(step.config.width))
    chosen = experts(step, normed, i, "gelu", scored=scored)
    dense = step.feed_forward(step.tell("ffn_norm_1", step.norm(x, "ffn_norm", i), i), i, "gelu")
    dense = step.tell("ffn_mlp", step.norm(dense, "post_ffw_norm_1", i), i)
    chosen = step.tell("ffn_moe", step.norm(chosen, "post_ffw_norm_2", i), i)
    return step.tell("ffn_moe_combined", step.a.sum(dense, chosen), i)


def _beside(step: Step, x: Array, i: int) -> Array:
    """The share of the columns that the layer has beside rows."""
    count = step.config.side
    if step.side is None:
        step.side = _sides(step)
    side = step.a.some_columns(step.side, i * count, count)
    y = step.a.gated("gelu", step.product(x, "inp_gate", i), side)
    return step.tell("per_layer_embd_out", step.norm(step.product(y, "proj", i), "post_norm", i), i)


def _sides(step: Step) -> Array:
    """The columns that all layers have beside rows: some of the tokens, others made of the embedding."""
    x, a, c = step.first, step.a, step.config
    shape = len(x), c.layers, c.side
    chosen = a.rows(step.weights.matrix("per_layer_token_embd"), step.tokens)
    chosen = step.tell("inp_per_layer_selected", a.times(chosen, math.sqrt(c.side)).reshape(shape))
    made = a.times(step.product(x, "per_layer_model_proj", None), 1 / math.sqrt(c.width))
    made = step.tell("per_layer_proj", step.norm(made.reshape(shape), "per_layer_proj_norm"))
    both = a.sum(made.reshape(len(x), -1), chosen.reshape(len(x), -1))
    both = a.times(both, 1 / math.sqrt(2))
    step.tell("inp_per_layer", both.reshape(shape))
    return both


def embed(step: Step, x: Array) -> Array:
    """The embedding times the root of the width."""
    step.first = scaled(step, x)
    return step.first


def tensors(frame: Frame) -> None:
    """The tensors of a layer of Gemma 4."""
    c, i, tokens = frame.config, frame.layer, frame.tokens
    (width, _), heads = c.widths(i), c.heads[i]
    frame.vectors(c.width, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    frame.vectors(width, "attn_q_norm")
    frame.matrix("attn_q", heads * width, c.width)
    if i in c.keys:
        frame.vectors(width, "attn_k_norm")
        frame.matrix("attn_k", c.kv_heads[i] * width, c.width)
        if frame.has("attn_v.weight"):
            frame.matrix("attn_v", c.kv_heads[i] * width, c.width)
    else:  # a file may have what is not read
        names = [name for name in ("attn_k", "attn_v") if frame.has(f"{name}.weight")]
        for name in names:
            frame.matrix(name, c.kv_heads[i] * width, c.width)
        if frame.has("attn_k_norm.weight"):
            frame.vectors(width, "attn_k_norm")
    frame.matrix("attn_output", c.width, heads * width)
    frame.feed_forward()
    if c.experts:
        frame.experts()
        frame.tensor("ffn_gate_inp.scale", c.width)
        frame.vectors(c.width, "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")
    if frame.has("layer_output_scale.weight"):
        frame.tensor("layer_output_scale.weight", 1)
    if c.side:
        frame.matrix("inp_gate", c.side, c.width)
        frame.matrix("proj", c.width, c.side)
        frame.vectors(c.width, "post_norm")
    with frame.outside():
        if c.rope.factors and not c.windows[i]:
            frame.tensor(FACTORS, c.rope.dims // 2)
        if c.side:
            frame.matrix("per_layer_token_embd", tokens, c.layers * c.side, bias=False)
            frame.matrix("per_layer_model_proj", c.layers * c.side, c.width, bias=False)
            frame.vectors(c.side, "per_layer_proj_norm")


def config(c: Config, facts: Facts) -> Config:
    """Widths and RoPE of the two kinds of layers, and which ones have keys of their own."""
    if isinstance(facts.get(PATTERN, 0), int) or not facts.get("attention.sliding_window"):
        raise facts.wrong(PATTERN, "it is a list of true and false, beside attention.sliding_window")
    wide = facts.number("attention.key_length_swa")
    for kind, columns in (("", c.key_width), ("_swa", wide)):
        if facts.get(f"attention.value_length{kind}") != columns:
            raise facts.wrong(f"attention.value_length{kind}", f"it is the {columns} columns of keys")
    dims = facts.get("rope.dimension_count_swa", min(c.rope.dims, wide))
    if dims % 2 or dims > wide:
        raise facts.wrong("rope.dimension_count_swa", f"it is even, and at most a key's {wide} columns")
    own, kinds = c.layers - facts.get("attention.shared_kv_layers", 0), [bool(one) for one in c.windows]
    if own < 1 or any(own - 1 - kind < 0 or kinds[own - 1 - kind] != kind for kind in kinds[own:]):
        rule = "a layer with a window and one without lie before these layers, in this order"
        raise facts.wrong("attention.shared_kv_layers", rule)
    return replace(
        c, scale=1.0, rope=replace(c.rope, factors=True), window_rope=replace(c.window_rope, dims=dims),
        logit_cap=float(facts.get("final_logit_softcapping", 0.0)), window_width=wide,
        own=own % c.layers, side=facts.number("embedding_length_per_layer_input"), seeds=True,
    )  # fmt: skip


FAMILIES = {"gemma4": Family(layer, tensors, neox=True, period=5, embed=embed, config=config)}
