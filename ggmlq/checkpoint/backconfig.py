"""The config.json of a GGUF file: the way back of config.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.scores import LARGEST, score_columns
from ..errors import ConvertError
from ..gguf import GGUFFile
from . import backtokens
from .families import BACK, FAMILIES, MODEL_TYPES, Family
from .opened import OPENED

# The names in config.json for the keys of an architecture.
SAYS = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window", "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping", "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size", "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq", "vocab_size": "vocab_size",
    "embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling", "attention.scale": "attention_multiplier",
    "expert_weights_scale": "routed_scaling_factor", "leading_dense_block_count": "first_k_dense_replace",
    "expert_shared_count": "n_shared_experts", "expert_weights_norm": "norm_topk_prob",
    "shortconv.l_cache": "conv_L_cache",
}  # fmt: skip

EXPERTS = dict.fromkeys(("llama", "gpt-oss", "granitemoe"), "num_local_experts") | {
    "glm4moe": "n_routed_experts",
    "granitehybrid": "num_local_experts",
}  # what is not num_experts

AHEAD = "nextn_predict_layers"  # last layers, which guess further tokens: transformers has none of them

PARTLY = ("phi3", "glm4", "glm4moe")  # configs with a share of columns that RoPE rotates

SCALING = {
    "rope.scaling.type": "rope_type", "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_ext_factor": "extrapolation_factor",
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
}  # fmt: skip


def family_of(file: GGUFFile, way: str) -> Family:
    """The family of a file's architecture; ``way``: what else to do where it is unknown."""
    arch = file.metadata.get("general.architecture")
    family = OPENED.get(arch) if isinstance(arch, str) else None
    if family is None:
        raise ConvertError(
            f"{file.path}: architecture {arch!r} has no names here; known are {', '.join(OPENED)}; {way}"
        )
    return family


def class_of(file: GGUFFile, family: Family) -> str:
    """The class of transformers for a file, as config.json names it."""
    if family.arch == "llama" and f"{family.arch}.expert_count" in file.metadata:
        return "MixtralForCausalLM"
    return name_of(family)


def name_of(family: Family) -> str:
    """The class of transformers for a family without experts; empty for those that have a kind alone."""
    return next((name for name, known in (FAMILIES | BACK).items() if known.arch == family.arch), "")


def kind_of(family: Family, name: str) -> str:
    """The model_type of a class of transformers, or that of the family."""
    return family.kind or next(kind for kind, known in MODEL_TYPES.items() if known == name)


def config_of(file: GGUFFile) -> dict[str, Any]:
    """The config.json of a file, as a dictionary."""
    family = family_of(file, "take the config.json of the model that this one came from")
    arch, name = family.arch, class_of(file, family)
    config: dict[str, Any] = {"architectures": [name], "model_type": kind_of(family, name)}
    for key, value in file.metadata.items():
        key_of_config = SAYS.get(key.removeprefix(f"{arch}."))
        if key_of_config and isinstance(value, int | float):
            config[key_of_config] = value
    if f"{arch}.expert_count" in file.metadata:
        config[EXPERTS.get(arch, "num_experts")] = file.metadata[f"{arch}.expert_count"]
    rope = {name: value for key, name in SCALING.items() if (value := file.metadata.get(f"{arch}.{key}"))}
    if rope.get("rope_type") in ("linear", "yarn"):
        config["rope_scaling"] = rope
    if arch == "mistral3":
        beta = file.metadata.get(f"{arch}.attention.temperature_scale", 0.0)
        config["rope_parameters"] = {
            "rope_type": "default", **config.pop("rope_scaling", {}), "llama_4_scaling_beta": beta,
            "rope_theta": config.get("rope_theta", 10000.0), "mscale": 1.0,
        }  # fmt: skip
    config.setdefault("num_hidden_layers", layers_of(file))
    config["num_hidden_layers"] -= file.metadata.get(f"{arch}.{AHEAD}", 0)
    config.setdefault("vocab_size", file.info("token_embd.weight").shape[0])
    config |= backtokens.numbers(file.metadata) | _implied(file, arch, config)
    if family.keys:
        config |= family.keys(file, config)
    return config | {"tie_word_embeddings": "output.weight" not in file}


def _implied(file: GGUFFile, arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that no key says: llama.cpp has them by the architecture, or the tensors show them."""
    implied: dict[str, Any] = {"rope_theta": config.get("rope_theta", 10000.0)}
    if arch == "qwen3moe":
        implied["norm_topk_prob"] = True
    if arch in ("llama", "glm4", "glm4moe", "granite", "granitemoe", "granitehybrid"):
        implied["attention_bias"] = "blk.0.attn_q.bias" in file
    implied |= _rotated(file, arch, config)
    if "conv_L_cache" in config:
        implied |= _convolved(file, arch, config)
    if arch in LARGEST and config.get("head_dim"):  # transformers' own default is that of one size
        sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim")
        implied["query_pre_attn_scalar"] = score_columns(arch, *(config.get(name, 0) for name in sizes))
    pattern = file.metadata.get(f"{arch}.attention.sliding_window_pattern")
    if isinstance(pattern, int):  # of so many layers the last one sees all
        pattern = [not pattern or i % pattern < pattern - 1 for i in range(layers_of(file))]
    if isinstance(pattern, Sequence) and arch in LARGEST:
        kinds = ("full_attention", "sliding_attention")
        implied["layer_types"] = [kinds[bool(windowed)] for windowed in pattern]
    return implied


def _convolved(file: GGUFFile, arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """LFM2's kinds of layers, and what its config has under names of its own."""
    kinds, layers = ("conv", "full_attention"), range(layers_of(file))
    heads = file.metadata.get(f"{arch}.attention.head_count_kv", config.get("num_attention_heads", 1))
    return {
        "layer_types": [kinds[f"blk.{i}.attn_q.weight" in file] for i in layers],
        "num_key_value_heads": int(np.max(heads, initial=0)), "block_auto_adjust_ff_dim": False,
        "norm_eps": config.get("rms_norm_eps", 1e-5),
        "num_dense_layers": config.get("first_k_dense_replace", 0),
    }  # fmt: skip


def _rotated(file: GGUFFile, arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The share of a head's columns that is rotated, and Phi 3's factors of pairs."""
    said: dict[str, Any] = {}
    dims, heads = file.metadata.get(f"{arch}.rope.dimension_count"), config.get("num_attention_heads")
    width = config.get("head_dim") or (config.get("hidden_size", 0) // heads if heads else 0)
    if arch in PARTLY and isinstance(dims, int) and width:
        said["partial_rotary_factor"] = dims / width
    if arch == "glm4moe":
        said["use_qk_norm"] = "blk.0.attn_q_norm.weight" in file
    if arch == "phi3" and "rope_factors_long.weight" in file:
        context = file.metadata.get(f"{arch}.rope.scaling.original_context_length")
        said["original_max_position_embeddings"] = context or config.get("max_position_embeddings")
        said["rope_scaling"] = {"rope_type": "longrope"} | {
            f"{kind}_factor": np.asarray(file[f"rope_factors_{kind}.weight"]).tolist()
            for kind in ("short", "long")
        }
        if length := file.metadata.get(f"{arch}.rope.scaling.attn_factor"):
            said["rope_scaling"]["attention_factor"] = length
    return said


def layers_of(file: GGUFFile) -> int:
    """The number of layers that a file has tensors of."""
    return len({name.split(".")[1] for name in file if name.startswith("blk.")})
