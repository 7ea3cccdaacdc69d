"""The config.json of a GGUF file: the way back of config.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..base.scores import LARGEST, score_columns
from ..errors import ConvertError
from ..gguf import GGUFFile
from . import backtokens
from .families import FAMILIES, MODEL_TYPES, OF_ARCH, Family

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
}  # fmt: skip

SCALING = {
    "rope.scaling.type": "rope_type", "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_ext_factor": "extrapolation_factor",
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow",
}  # fmt: skip


def family_of(file: GGUFFile, way: str) -> Family:
    """The family of a file's architecture; ``way``: what else to do where it is unknown."""
    arch = file.metadata.get("general.architecture")
    family = OF_ARCH.get(arch) if isinstance(arch, str) else None
    if family is None:
        raise ConvertError(
            f"{file.path}: architecture {arch!r} has no names here; known are {', '.join(OF_ARCH)}; {way}"
        )
    return family


def class_of(file: GGUFFile, family: Family) -> str:
    """The class of transformers for a file, as config.json names it."""
    experts = f"{family.arch}.expert_count" in file.metadata
    if family.arch == "llama":
        return "MixtralForCausalLM" if experts else "LlamaForCausalLM"
    return next(name for name, known in FAMILIES.items() if known.arch == family.arch)


def config_of(file: GGUFFile) -> dict[str, Any]:
    """The config.json of a file, as a dictionary."""
    family = family_of(file, "take the config.json of the model that this one came from")
    arch, name = family.arch, class_of(file, family)
    kind = next(kind for kind, known in MODEL_TYPES.items() if known == name)
    config: dict[str, Any] = {"architectures": [name], "model_type": kind}
    for key, value in file.metadata.items():
        key_of_config = SAYS.get(key.removeprefix(f"{arch}."))
        if key_of_config and isinstance(value, int | float):
            config[key_of_config] = value
    if f"{arch}.expert_count" in file.metadata:
        experts = "num_local_experts" if arch == "llama" else "num_experts"
        config[experts] = file.metadata[f"{arch}.expert_count"]
    rope = {name: value for key, name in SCALING.items() if (value := file.metadata.get(f"{arch}.{key}"))}
    if rope.get("rope_type") in ("linear", "yarn"):
        config["rope_scaling"] = rope
    config.setdefault("num_hidden_layers", layers_of(file))
    config.setdefault("vocab_size", file.info("token_embd.weight").shape[0])
    config |= backtokens.numbers(file.metadata) | _implied(file, arch, config)
    return config | {"tie_word_embeddings": "output.weight" not in file}


def _implied(file: GGUFFile, arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that no key says: llama.cpp has them by the architecture, or the tensors show them."""
    implied: dict[str, Any] = {"rope_theta": config.get("rope_theta", 10000.0)}
    if arch == "qwen3moe":
        implied["norm_topk_prob"] = True
    if arch == "llama" and "blk.0.attn_q.bias" in file:
        implied["attention_bias"] = True
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


def layers_of(file: GGUFFile) -> int:
    """The number of layers that a file has tensors of."""
    return len({name.split(".")[1] for name in file if name.startswith("blk.")})
