"""The metadata keys with a model's parameters (layers, heads, rope …), as llama.cpp's converter has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..base.text import short
from ..errors import ConvertError
from ..gguf import Typed
from .config import Config, real

U32, F32, TEXT = "uint32", "float32", "string"
GATING = {"softmax": 1, "sigmoid": 2, "sqrtsoftplus": 4}

Pairs = Iterator[tuple[str, Any, str]]


def parameters(config: Config, file_type: int) -> dict[str, Any]:
    """All keys with parameters of a model, in the converter's order."""
    arch = config.family.arch
    first = _gemma(config) if arch in ("gemma", "gemma2") else _common(config)
    pairs = [*first, ("general.file_type", file_type, U32), *_family_keys(config)]
    return {
        (key if key.startswith("general.") else f"{arch}.{key}"): Typed(value, kind)
        for key, value, kind in pairs
        if value is not None
    }


def _common(config: Config) -> Pairs:
    yield "block_count", config.layers, U32
    yield "context_length", config.maybe_count("max_position_embeddings", "n_ctx", "n_positions"), U32
    yield "embedding_length", config.count("hidden_size"), U32
    yield "feed_forward_length", config.maybe_count("intermediate_size"), U32
    yield "attention.head_count", config.heads, U32
    yield "attention.head_count_kv", config.maybe_count("num_key_value_heads"), U32
    if config.get("is_causal") is False:
        yield "attention.causal", False, "bool"
    yield from _rope(config)
    yield "attention.layer_norm_rms_epsilon", config.number("rms_norm_eps", "norm_eps"), F32
    yield "attention.layer_norm_epsilon", config.number("layer_norm_eps", "layer_norm_epsilon"), F32
    yield "expert_count", config.maybe_count("num_local_experts", "num_experts", "n_routed_experts"), U32
    yield "expert_used_count", config.maybe_count("num_experts_per_tok", "num_experts_per_token"), U32
    yield "expert_group_count", config.maybe_count("n_group"), U32
    yield "expert_group_used_count", config.maybe_count("topk_group"), U32
    gating = config.get("score_function", "scoring_func", "score_func")
    if gating is not None:
        if gating not in GATING:
            raise ConvertError(
                f"{config.path}: its scoring function is {short(gating)}; known are {', '.join(GATING)}"
            )
        yield "expert_gating_func", GATING[gating], U32
    length = config.maybe_count("head_dim")
    if length is None and config.architecture.lower().startswith("llama"):
        length = config.head_length  # transformers fills it in for these alone
    yield "attention.key_length", length, U32
    yield "attention.value_length", length, U32


def _rope(config: Config) -> Pairs:
    rope = config.rope
    full = rope.get("full_attention", rope)
    kind, path = full.get("rope_type"), config.path
    if kind in ("linear", "yarn") and full.get("factor") is not None:
        yield "rope.scaling.type", kind, TEXT
        yield "rope.scaling.factor", real(path, "factor", full["factor"]), F32
        if kind == "yarn":
            yield from _yarn(config, full)
    elif kind in ("su", "longrope"):
        raise ConvertError(
            f"{path}: rope_type {kind!r} has factors by position, which the converter writes for Phi models "
            "alone; convert this one with llama.cpp's convert_hf_to_gguf.py"
        )
    elif kind not in (None, "default", "linear", "yarn", "llama3", "dynamic"):
        raise ConvertError(
            f"{path}: rope_type {short(kind)} is unknown; known are linear, yarn, llama3 and default"
        )
    for key, value in (("", full), ("_swa", rope.get("sliding_attention", {}))):
        if value.get("rope_theta") is not None:
            yield f"rope.freq_base{key}", real(path, "rope_theta", value["rope_theta"]), F32


def _yarn(config: Config, rope: dict[str, Any]) -> Pairs:
    length = rope.get("original_max_position_embeddings")
    if type(length) is not int:
        raise ConvertError(
            f"{config.path}: yarn without original_max_position_embeddings (it is {short(length)}); it is "
            "needed; add it to rope_scaling"
        )
    yield "rope.scaling.original_context_length", length, U32
    for key, *names in (
        ("yarn_ext_factor", "extrapolation_factor"),
        ("yarn_attn_factor", "attention_factor", "attn_factor"),
        ("yarn_beta_fast", "beta_fast"),
        ("yarn_beta_slow", "beta_slow"),
    ):
        value = next((rope[name] for name in names if rope.get(name) is not None), None)
        yield f"rope.scaling.{key}", None if value is None else real(config.path, names[0], value), F32


def _gemma(config: Config) -> Pairs:
    yield "context_length", config.count("max_position_embeddings"), U32
    yield "embedding_length", config.count("hidden_size"), U32
    yield "block_count", config.layers, U32
    yield "feed_forward_length", config.count("intermediate_size"), U32
    yield "attention.head_count", config.heads, U32
    yield "attention.head_count_kv", config.heads_kv, U32
    yield "attention.layer_norm_rms_epsilon", config.number("rms_norm_eps"), F32
    yield "attention.key_length", config.count("head_dim"), U32
    yield "attention.value_length", config.count("head_dim"), U32


def _family_keys(config: Config) -> Pairs:
    """The parameters that one family has beyond the others."""
    arch = config.family.arch
    if arch == "llama":
        yield "vocab_size", config.count("vocab_size"), U32
        yield "rope.dimension_count", config.head_length, U32
    if arch in ("qwen2moe", "qwen3moe"):
        yield "expert_feed_forward_length", config.maybe_count("moe_intermediate_size"), U32
        yield "expert_shared_feed_forward_length", config.maybe_count("shared_expert_intermediate_size"), U32
    if arch == "gemma2":
        yield "attn_logit_softcapping", config.number("attn_logit_softcapping"), F32
    if arch in ("gemma2", "gemma3"):
        yield "final_logit_softcapping", config.number("final_logit_softcapping") or None, F32
    if arch == "gemma2" or (arch == "gemma3" and config.get("sliding_window_pattern") != 1):
        yield "attention.sliding_window", config.count("sliding_window"), U32
