"""Tensors and metadata of made-up models of Gemma 4, whose layers have two widths, for families.py."""

from __future__ import annotations

from typing import Any

import numpy as np

WIDE = ("gemma4", "gemma4-moe")
SIDE, INFINITE = 32, 1e30  # columns of a layer beside rows; the factor of pairs that stay
SHARED = 2  # last layers of the dense model, which read the keys of the two before them


def tensors(t: Any, family: str, number: int, last: int) -> None:
    """The tensors of a layer but for its feed-forward part; of ``last`` layers every second has no window."""
    s, stem, moe = t.sizes, f"blk.{number}", family == WIDE[1]
    head = s.head * (1 + number % 2)
    for name in ("attn_norm", "post_attention_norm"):
        t.vector(f"{stem}.{name}.weight", s.width, mean=1.0)
    t.matrix(f"{stem}.attn_q", s.heads * head, s.width)
    t.vector(f"{stem}.attn_q_norm.weight", head, mean=head**-0.5, spread=0.02)  # scores have no scale
    if moe or number < last - SHARED:
        t.matrix(f"{stem}.attn_k", s.kv_heads * head, s.width)
        t.vector(f"{stem}.attn_k_norm.weight", head, mean=1.0)
        if not (moe and number % 2):
            t.matrix(f"{stem}.attn_v", s.kv_heads * head, s.width)
    t.matrix(f"{stem}.attn_output", s.width, s.heads * head)
    t.vector(f"{stem}.layer_output_scale.weight", 1, mean=0.8)
    if not number:
        t.all["rope_freqs.weight"] = np.repeat([1.0, INFINITE], [s.head // 4, s.head * 3 // 4]).astype("f4")
    if moe:
        for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
            t.vector(f"{stem}.{name}.weight", s.width, mean=1.0)
        t.vector(f"{stem}.ffn_gate_inp.scale", s.width, mean=1.0)
        return
    t.matrix(f"{stem}.inp_gate", SIDE, s.width)
    t.matrix(f"{stem}.proj", s.width, SIDE)
    t.vector(f"{stem}.post_norm.weight", s.width, mean=1.0)
    if not number:
        tokens = t.all["token_embd.weight"].shape[0]
        t.matrix("per_layer_token_embd", tokens, last * SIDE, kind="q8_0")
        t.matrix("per_layer_model_proj", last * SIDE, s.width)
        t.vector("per_layer_proj_norm.weight", SIDE, mean=1.0)


def experts(t: Any, stem: str, count: int) -> None:
    """Experts whose gate and up are one matrix, with a scale of each."""
    hidden, width = t.sizes.hidden, t.sizes.width
    t.matrix(f"{stem}.ffn_gate_up_exps", count, 2 * hidden, width)
    t.matrix(f"{stem}.ffn_down_exps", count, width, hidden)
    t.vector(f"{stem}.ffn_down_exps.scale", count, mean=1.0)


def settings(family: str, layers: int, head: int, window: int) -> dict[str, Any]:
    """The metadata that only these models have."""
    dense = family == WIDE[0]
    return {
        "attention.key_length": 2 * head, "attention.value_length": 2 * head,
        "attention.key_length_swa": head, "attention.value_length_swa": head,
        "rope.dimension_count": 2 * head, "rope.dimension_count_swa": head, "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4, "attention.sliding_window": window,
        "attention.sliding_window_pattern": [not i % 2 for i in range(layers)],
        "attention.shared_kv_layers": SHARED * dense, "embedding_length_per_layer_input": SIDE * dense,
        "final_logit_softcapping": 3.0,
    }  # fmt: skip
