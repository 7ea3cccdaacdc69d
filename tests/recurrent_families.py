"""Tensors and metadata of made-up models whose layers remember by a state, for families.py."""

from __future__ import annotations

from typing import Any

import numpy as np

NEXT = ("qwen3next", "qwen35", "qwen35moe")  # every second layer has attention
SHORT = ("lfm2", "lfm2moe")
MAMBA = "granitehybrid"
NEMOTRON = ("nemotron_h", "nemotron_h_moe")  # layers by turns: Mamba 2, feed forward, attention, feed forward
RECURRENT = (*NEXT, *SHORT, MAMBA, *NEMOTRON)
EXPERTS = {"qwen3next": 6, "qwen35moe": 6, "lfm2moe": 6, "nemotron_h_moe": 6}
STATE, HEADS, GROUPS, TAPS = 32, 4, 2, 4  # of the delta rule and its convolution
ROTATED = 32  # columns of a head
LATENT = 64  # columns of the rows that Nemotron's experts read


def tensors(t: Any, family: str, number: int) -> None:
    """The tensors of a layer of a family, but for its feed-forward part or its experts."""
    s, stem = t.sizes, f"blk.{number}"
    t.vector(f"{stem}.attn_norm.weight", s.width, mean=1.0)
    if family in SHORT:
        _short(t, stem, number)
        return
    if family in NEMOTRON and number % 2:
        _squared(t, stem, EXPERTS.get(family, 0))
        return
    if family == MAMBA or family in NEMOTRON:
        _mamba(t, stem, number % 2 or number % 4 // 2)
        return
    t.vector(f"{stem}.post_attention_norm.weight", s.width, mean=1.0)
    if number % 2:
        _attention(t, stem, 2)
        return
    values = HEADS * STATE
    whole = values + 2 * GROUPS * STATE
    t.matrix(f"{stem}.attn_qkv", whole, s.width)
    t.matrix(f"{stem}.attn_gate", values, s.width)
    t.vector(f"{stem}.ssm_conv1d.weight", whole, TAPS, spread=0.5)
    gates = {"ssm_ba": 2 * HEADS} if family == "qwen3next" else {"ssm_beta": HEADS, "ssm_alpha": HEADS}
    for name, rows in gates.items():
        t.matrix(f"{stem}.{name}", rows, s.width)
    t.vector(f"{stem}.ssm_dt.bias", HEADS)
    t.all[f"{stem}.ssm_a"] = -t.rng.uniform(0.1, 2, HEADS).astype(np.float32)
    t.vector(f"{stem}.ssm_norm.weight", STATE, mean=1.0)
    t.matrix(f"{stem}.ssm_out", s.width, values)


def _short(t: Any, stem: str, number: int) -> None:
    """A layer of LFM2: attention, or a short convolution between two products."""
    width = t.sizes.width
    if number % 2:
        _attention(t, stem, 1)
        return
    t.vector(f"{stem}.shortconv.conv.weight", width, TAPS - 1, spread=0.5)
    t.matrix(f"{stem}.shortconv.in_proj", 3 * width, width)
    t.matrix(f"{stem}.shortconv.out_proj", width, width)


def _mamba(t: Any, stem: str, number: int) -> None:
    """A layer of Granite's hybrids: attention, or Mamba 2."""
    width = t.sizes.width
    if number % 2:
        _attention(t, stem, 1, norms=False)
        return
    whole = 2 * width + 2 * GROUPS * STATE
    t.matrix(f"{stem}.ssm_in", 2 * width + whole + HEADS, width)
    t.vector(f"{stem}.ssm_conv1d.weight", whole, TAPS, spread=0.5)
    t.vector(f"{stem}.ssm_conv1d.bias", whole)
    t.vector(f"{stem}.ssm_dt.bias", HEADS)
    t.all[f"{stem}.ssm_a"] = -t.rng.uniform(0.1, 2, (HEADS, 1)).astype(np.float32)
    t.vector(f"{stem}.ssm_d", HEADS, 1)
    t.vector(f"{stem}.ssm_norm.weight", GROUPS, 2 * width // GROUPS, mean=1.0)
    t.matrix(f"{stem}.ssm_out", width, 2 * width)


def _squared(t: Any, stem: str, experts: int) -> None:
    """A feed-forward part without a gate, or experts of short rows beside a shared one."""
    hidden, width = t.sizes.hidden, t.sizes.width
    end = "_shexp" * bool(experts)
    t.matrix(f"{stem}.ffn_up{end}", hidden, width)
    t.matrix(f"{stem}.ffn_down{end}", width, hidden)
    if not experts:
        return
    t.matrix(f"{stem}.ffn_gate_inp", experts, width, kind="f32")
    t.vector(f"{stem}.exp_probs_b.bias", experts)
    t.matrix(f"{stem}.ffn_latent_down", LATENT, width)
    t.matrix(f"{stem}.ffn_latent_up", width, LATENT)
    t.matrix(f"{stem}.ffn_up_exps", experts, hidden, LATENT)
    t.matrix(f"{stem}.ffn_down_exps", experts, LATENT, hidden)


def _attention(t: Any, stem: str, parts: int, norms: bool = True) -> None:
    """Attention, with norms of heads or without; a query has so many parts, of which one may be a gate."""
    s = t.sizes
    for role, heads in {"q": parts * s.heads, "k": s.kv_heads, "v": s.kv_heads}.items():
        t.matrix(f"{stem}.attn_{role}", heads * s.head, s.width)
    t.matrix(f"{stem}.attn_output", s.width, s.heads * s.head)
    for role in "qk" * norms:
        t.vector(f"{stem}.attn_{role}_norm.weight", s.head, mean=1.0)


def settings(family: str, kv_heads: int, width: int, hidden: int = 0) -> dict[str, Any]:
    """The metadata that only these families have, of so many heads of keys and columns of rows."""
    mamba = {
        "attention.head_count_kv": [0, kv_heads], "ssm.conv_kernel": TAPS, "ssm.inner_size": 2 * width,
        "ssm.state_size": STATE, "ssm.time_step_rank": HEADS, "ssm.group_count": GROUPS,
    }  # fmt: skip
    if family == MAMBA:
        return mamba
    if family in NEMOTRON:
        parts: dict[str, Any] = {
            "attention.head_count_kv": [0, 0, kv_heads, 0], "feed_forward_length": [0, hidden] * 2,
            "attention.layer_norm_epsilon": 1e-3,  # which libllama wants, and has no use for
        }  # fmt: skip
        moe = {"expert_weights_norm": True, "expert_weights_scale": 2.5, "moe_latent_size": LATENT}
        moe["expert_shared_feed_forward_length"] = hidden
        return mamba | parts | (moe if family in EXPERTS else {})
    if family in SHORT:
        moe = {"leading_dense_block_count": 1, "expert_gating_func": 2} if family == "lfm2moe" else {}
        return {"shortconv.l_cache": TAPS - 1, "attention.head_count_kv": [0, kv_heads]} | moe
    facts: dict[str, Any] = {
        "full_attention_interval": 2, "ssm.conv_kernel": TAPS, "ssm.inner_size": HEADS * STATE,
        "ssm.state_size": STATE, "ssm.time_step_rank": HEADS, "ssm.group_count": GROUPS,
        "rope.dimension_count": ROTATED, "rope.freq_base": 1e6,
    }  # fmt: skip
    if family != "qwen3next":
        facts["rope.dimension_sections"] = [6, 5, 5, 0]
    return facts
