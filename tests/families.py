"""Small models of every family that ``gq.model`` runs: random weights of any types, a vocabulary of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import recurrent_families as recurrent
import wide_families as wide

from ggmlq.gguf import save
from ggmlq.ops import quantize
from ggmlq.testing.models import byte_vocabulary

EXPERTS = {
    "mixtral": 6, "qwen3moe": 6, "gpt-oss": 6, "deepseek2": 8, "deepseek-lite": 8, "granitemoe": 6,
    "glm4moe": 6, "gemma4-moe": 6,
} | recurrent.EXPERTS  # fmt: skip
NAMES = (
    "llama", "llama3", "mistral", "mistral3", "mixtral", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3",
    "gpt-oss", "phi3", "phi3-long", "deepseek2", "deepseek-lite", "glm4", "glm4-sections", "glm4moe",
    "granite", "granite-nope", "granitemoe", *wide.WIDE, *recurrent.RECURRENT,
)  # fmt: skip
ARCHITECTURES = {
    "llama3": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "phi3-long": "phi3",
    "deepseek-lite": "deepseek2",
    "glm4-sections": "glm4",
    "granite-nope": "granite",
    "gemma4-moe": "gemma4",
}


FACTORS = ("factors_long", "factors_short")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a made-up model."""

    layers: int = 2
    width: int = 128
    head: int = 64
    hidden: int = 192
    heads: int = 4
    kv_heads: int = 2
    window: int = 40
    context: int = 1024
    queries: int = 96  # DeepSeek's short vectors
    latent: int = 64
    rope: int = 64  # columns of its heads


def family_model(
    path: str | Path, family: str, seed: int = 0, types: Sequence[str] = ("q4_0", "q8_0", "q5_1", "f16"),
    sizes: Sizes = Sizes(), vocabulary: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Write a model of a family; matrices take the types in turn. ``vocabulary``: metadata of a tokenizer."""
    if family in ("qwen2", "phi3", "phi3-long", *recurrent.SHORT):  # there heads make up the width
        sizes = replace(sizes, head=sizes.width // sizes.heads)
    if family == "deepseek-lite":  # which llama.cpp knows by their number
        sizes = replace(sizes, layers=27, width=64, hidden=64, heads=2)
    if family in ("gemma4", *recurrent.NEMOTRON):  # two with keys, and two that read them; one of each kind
        sizes = replace(sizes, layers=max(4, sizes.layers))
    t = _Tensors(family, np.random.default_rng(seed), types, sizes)
    vocabulary = dict(vocabulary or byte_vocabulary())
    tokens = len(vocabulary["tokenizer.ggml.tokens"])
    t.matrix("token_embd", tokens, sizes.width, kind="q8_0")
    last = "token_embd_norm" if family in recurrent.SHORT else "output_norm"
    t.vector(f"{last}.weight", sizes.width, mean=1.0)
    if not (t.gemma or family == "qwen2"):
        t.matrix("output", tokens, sizes.width)
    for i in range(sizes.layers):
        if family in recurrent.RECURRENT:
            recurrent.tensors(t, family, i)
        elif family in wide.WIDE:
            wide.tensors(t, family, i, sizes.layers)
        else:
            (t.latent_attention if t.deepseek else t.attention)(f"blk.{i}")
        if family in recurrent.NEMOTRON:
            continue
        t.feed_forward(f"blk.{i}", dense=not i and (t.deepseek or family in ("lfm2moe", "glm4moe")))
    for name in {"llama3": ("freqs",), "phi3": FACTORS, "phi3-long": FACTORS}.get(family, ()):
        t.all[f"rope_{name}.weight"] = t.rng.uniform(1, 8, sizes.head // 2).astype(np.float32)
    facts: dict[str, Any] = {
        "context_length": sizes.context, "embedding_length": sizes.width, "block_count": sizes.layers,
        "feed_forward_length": sizes.hidden, "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.kv_heads, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.key_length": sizes.head, "attention.value_length": sizes.head,
        "rope.dimension_count": sizes.head, "vocab_size": tokens,
    }  # fmt: skip
    if family in EXPERTS:
        facts |= {
            "expert_count": EXPERTS[family],
            "expert_used_count": 2,
            "expert_feed_forward_length": sizes.hidden,
        }
    if t.shares:
        facts["expert_shared_feed_forward_length"] = sizes.hidden
    if family in recurrent.RECURRENT:
        facts |= recurrent.settings(family, sizes.kv_heads, sizes.width, sizes.hidden)
    if family in wide.WIDE:
        facts |= wide.settings(family, sizes.layers, sizes.head, sizes.window)
    facts |= _settings(family, sizes.window, sizes.context)
    if t.deepseek:
        facts |= _latent(family, sizes)
    architecture = ARCHITECTURES.get(family, family)
    name = family.replace("phi3", "Phi")  # llama.cpp wants tokens of its own where a name has phi3 in it
    metadata = {"general.architecture": architecture, "general.name": f"made-up {name}"}
    metadata |= {f"{architecture}.{key}": value for key, value in facts.items()}
    save(path, t.all, metadata | vocabulary)
    return Path(path)


class _Tensors:
    """The tensors of a model, drawn one after the other."""

    def __init__(self, family: str, rng: np.random.Generator, types: Sequence[str], sizes: Sizes) -> None:
        self.family, self.rng, self.sizes = family, rng, sizes
        self.gemma, self.phi = family.startswith("gemma"), family.startswith("phi")
        self.glm, self.next = family in ("glm4", "glm4-sections"), family in recurrent.NEXT
        self.shares = family in ("granitemoe", "glm4moe") or (
            self.next and family in EXPERTS
        )  # an expert of all tokens
        self.deepseek = family.startswith("deepseek")
        self.all: dict[str, Any] = {}
        self._types = cycle(types)

    def matrix(self, name: str, *lengths: int, kind: str | None = None) -> None:
        """A matrix of the next type."""
        values = self.rng.standard_normal(lengths) / np.sqrt(lengths[-1])
        self.all[f"{name}.weight"] = quantize(values.astype(np.float32), kind or next(self._types))

    def vector(self, name: str, *lengths: int, mean: float = 0.0, spread: float = 0.2) -> None:
        """Floats around a mean."""
        self.all[name] = (mean + spread * self.rng.standard_normal(lengths)).astype(np.float32)

    def attention(self, stem: str) -> None:
        """Norms, products and biases of attention."""
        s, oss = self.sizes, self.family == "gpt-oss"
        self.vector(f"{stem}.attn_norm.weight", s.width, mean=1.0)
        if self.phi:
            self.matrix(f"{stem}.attn_qkv", (s.heads + 2 * s.kv_heads) * s.head, s.width)
        for role, heads in () if self.phi else (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads)):
            self.matrix(f"{stem}.attn_{role}", heads * s.head, s.width)
            if oss or self.family in ("qwen2", "glm4moe"):
                self.vector(f"{stem}.attn_{role}.bias", heads * s.head)
            if role != "v" and self.family in ("qwen3", "qwen3moe", "gemma3", "glm4moe"):
                self.vector(f"{stem}.attn_{role}_norm.weight", s.head, mean=1.0)
        self.matrix(f"{stem}.attn_output", s.width, s.heads * s.head)
        if oss or self.gemma or self.glm or self.family == "glm4moe":
            self.vector(f"{stem}.post_attention_norm.weight", s.width, mean=1.0)
        if oss:
            self.vector(f"{stem}.attn_output.bias", s.width)
            self.vector(f"{stem}.attn_sinks.weight", s.heads, spread=1.0)

    def latent_attention(self, stem: str) -> None:
        """Attention of DeepSeek, whose keys and values come from one short vector."""
        s, lite = self.sizes, self.family == "deepseek-lite"
        plain = s.head - s.head // 2
        self.vector(f"{stem}.attn_norm.weight", s.width, mean=1.0)
        if lite:
            self.matrix(f"{stem}.attn_q", s.heads * (plain + s.rope), s.width)
            self.matrix(f"{stem}.attn_kv_b", s.heads * (plain + s.head), s.latent)
        else:
            self.matrix(f"{stem}.attn_q_a", s.queries, s.width)
            self.vector(f"{stem}.attn_q_a_norm.weight", s.queries, mean=1.0)
            self.matrix(f"{stem}.attn_q_b", s.heads * (plain + s.rope), s.queries)
            self.matrix(f"{stem}.attn_k_b", s.heads, s.latent, plain)
            self.matrix(f"{stem}.attn_v_b", s.heads, s.head, s.latent)
        self.matrix(f"{stem}.attn_kv_a_mqa", s.latent + s.rope, s.width)
        self.vector(f"{stem}.attn_kv_a_norm.weight", s.latent, mean=1.0)
        self.matrix(f"{stem}.attn_output", s.width, s.heads * s.head)

    def feed_forward(self, stem: str, dense: bool = False) -> None:
        """Norms, and a feed-forward part or experts."""
        s, oss = self.sizes, self.family == "gpt-oss"
        experts = 0 if dense else EXPERTS.get(self.family, 0)
        if not (oss or self.next or self.family == "glm4moe"):
            self.vector(f"{stem}.ffn_norm.weight", s.width, mean=1.0)
        if self.gemma or self.glm:
            self.vector(f"{stem}.post_ffw_norm.weight", s.width, mean=1.0)
        if experts:
            self.matrix(f"{stem}.ffn_gate_inp", experts, s.width, kind="f32")
        if experts and self.next:
            self.vector(f"{stem}.ffn_gate_inp_shexp.weight", s.width)
        if experts and self.family in ("deepseek2", "lfm2moe", "glm4moe"):
            self.vector(f"{stem}.exp_probs_b.bias", experts)
        if oss:
            self.vector(f"{stem}.ffn_gate_inp.bias", 6)
        if self.family == wide.WIDE[1]:
            wide.experts(self, stem, experts)
            experts = 0  # beside a feed-forward part
        if joined := self.phi or self.glm:
            self.matrix(f"{stem}.ffn_up", 2 * s.hidden, s.width)
            self.matrix(f"{stem}.ffn_down", s.width, s.hidden)
        for role in () if joined else ("gate", "up", "down"):
            lengths = (s.width, s.hidden) if role == "down" else (s.hidden, s.width)
            if not experts:
                self.matrix(f"{stem}.ffn_{role}", *lengths)
                continue
            self.matrix(f"{stem}.ffn_{role}_exps", experts, *lengths, kind="mxfp4" if oss else None)
            if self.deepseek or self.shares:
                self.matrix(f"{stem}.ffn_{role}_shexp", *lengths)
            if oss:
                self.vector(f"{stem}.ffn_{role}_exps.bias", 6, lengths[0])


def _settings(family: str, window: int, context: int) -> dict[str, Any]:
    """The settings that only some families have."""
    if family == "llama3":
        return {"rope.freq_base": 500000.0}
    if family == "mistral":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    if family == "mistral3":
        return _yarn(context) | {
            "rope.scaling.yarn_log_multiplier": 1.0, "rope.scaling.yarn_beta_fast": 24.0,
            "attention.temperature_scale": 0.1,
        }  # fmt: skip
    if family.startswith("phi3"):
        return {
            "rope.scaling.original_context_length": 100 if family == "phi3-long" else context,
            "rope.scaling.attn_factor": 1.2, "attention.sliding_window": window,
        }  # fmt: skip
    if family.startswith("qwen"):
        return {"rope.freq_base": 1e6}
    if family == "gemma2":
        return {
            "attention.sliding_window": window,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        }
    if family == "gemma3":
        return {
            "attention.sliding_window": window, "rope.freq_base": 1e6, "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0, "attention.sliding_window_pattern": 2,
        }  # fmt: skip
    if family == "glm4moe":
        return {
            "rope.dimension_count": 32, "expert_shared_count": 1, "leading_dense_block_count": 1,
            "expert_weights_norm": True, "expert_weights_scale": 1.5,
        }  # fmt: skip
    if family.startswith("glm4"):
        sections = {"rope.dimension_sections": [4, 6, 6, 0]} if family == "glm4-sections" else {}
        return {"rope.dimension_count": 32} | sections
    if family.startswith("granite"):
        return {
            "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0, "attention.scale": 1 / 64,
            "rope.scaling.finetuned": family != "granite-nope",
        }  # fmt: skip
    if family == "gpt-oss":
        return _yarn(context) | {"attention.sliding_window": window, "rope.freq_base": 150000.0}
    return {}


def _latent(family: str, s: Sizes) -> dict[str, Any]:
    """The sizes of DeepSeek's attention, and how it chooses experts."""
    width = s.head - s.head // 2 + s.rope
    facts: dict[str, Any] = {
        "attention.kv_lora_rank": s.latent, "rope.dimension_count": s.rope, "expert_shared_count": 1,
        "leading_dense_block_count": 1, "attention.key_length": width, "attention.value_length": s.head,
        "attention.head_count_kv": s.heads, "expert_weights_scale": 1.0,
    }  # fmt: skip
    if family == "deepseek-lite":
        return facts
    return facts | _yarn(s.context) | {
        "attention.q_lora_rank": s.queries, "attention.head_count_kv": 1,
        "attention.key_length": s.latent + s.rope, "attention.value_length": s.latent,
        "attention.key_length_mla": width, "attention.value_length_mla": s.head,
        "rope.scaling.yarn_log_multiplier": 0.08, "expert_weights_scale": 2.5, "expert_weights_norm": True,
        "expert_gating_func": 2, "expert_group_count": 4, "expert_group_used_count": 2,
    }  # fmt: skip


def _yarn(context: int) -> dict[str, Any]:
    return {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": context // 4,
    }  # fmt: skip
