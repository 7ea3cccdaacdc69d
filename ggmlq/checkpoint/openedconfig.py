"""Keys of config.json that families of opened.py have beside the common ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ConvertError
from ..gguf import GGUFFile

Config = Mapping[str, Any]


def of(file: GGUFFile, key: str, default: Any = 0) -> Any:
    """A value of the architecture's metadata."""
    return file.metadata.get(f"{file.metadata['general.architecture']}.{key}", default)


def delta_sizes(file: GGUFFile) -> tuple[int, int, int]:
    """Heads of keys, heads of values for one of them, and columns of both."""
    groups = of(file, "ssm.group_count", 1)
    return groups, of(file, "ssm.time_step_rank", groups) // groups, of(file, "ssm.state_size")


def _kinds(file: GGUFFile, config: Config, state: str, attention: str) -> list[str]:
    """Kinds of layers by their names."""
    there = [f"blk.{i}.ssm_out.weight" in file for i in range(config["num_hidden_layers"])]
    return [state if has else attention for has in there]


def _largest(file: GGUFFile, key: str) -> int:
    """The largest number of a key with one for each layer."""
    return int(np.max(of(file, key), initial=0))


def _ssm(file: GGUFFile) -> tuple[int, int, int, int, int]:
    """Heads, groups, columns of a state, taps, and columns of all heads, of Mamba 2."""
    keys = ("time_step_rank", "group_count", "state_size", "conv_kernel", "inner_size")
    heads, groups, state, taps, inner = (of(file, f"ssm.{key}") for key in keys)
    return heads, groups, state, taps, inner


def granite(file: GGUFFile, config: Config) -> Config:
    """Keys of config.json of Granite's experts and hybrids beside the common ones."""
    shared = of(file, "expert_shared_feed_forward_length") or config.get("intermediate_size", 0)
    if config["model_type"] == "granitemoeshared":
        plain = {} if "blk.0.ffn_gate_shexp.weight" in file else {"model_type": "granitemoe"}
        return {"shared_intermediate_size": shared} | plain
    heads, groups, state, taps, inner = _ssm(file)
    return {
        "shared_intermediate_size": shared,
        "num_key_value_heads": _largest(file, "attention.head_count_kv"),
        "layer_types": _kinds(file, config, "mamba", "attention"),  # early names, which later versions know
        "num_local_experts": config.get("num_local_experts", 0),
        "position_embedding_type": "rope" if of(file, "rope.scaling.finetuned", True) else None,
        "mamba_n_heads": heads, "mamba_n_groups": groups, "mamba_d_state": state, "mamba_d_conv": taps,
        "mamba_d_head": inner // heads, "mamba_expand": _expand(file, config, inner),
    }  # fmt: skip


def _expand(file: GGUFFile, config: Config, inner: int) -> int:
    if inner % config["hidden_size"]:
        raise ConvertError(
            f"{file.path}: states have {inner} columns, rows {config['hidden_size']}; transformers wants a "
            "multiple; run it with gq.model.load(path)"
        )
    return inner // int(config["hidden_size"])


def nemotron(file: GGUFFile, config: Config) -> Config:
    """Keys of config.json of Nemotron-H beside the common ones."""
    heads, groups, state, taps, inner = _ssm(file)
    marks = {"ssm_out": "M", "attn_q": "*", "ffn_gate_inp": "E", "ffn_up": "-"}
    pattern = ""
    for i in range(config["num_hidden_layers"]):
        pattern += next(mark for name, mark in marks.items() if f"blk.{i}.{name}.weight" in file)
    return {
        "hybrid_override_pattern": pattern,
        "num_key_value_heads": _largest(file, "attention.head_count_kv"),
        "intermediate_size": _largest(file, "feed_forward_length"), "conv_kernel": taps,
        "mamba_num_heads": heads, "mamba_head_dim": inner // heads, "n_groups": groups,
        "ssm_state_size": state, "expand": _expand(file, config, inner),
        "layer_norm_epsilon": config["rms_norm_eps"],
        "moe_shared_expert_intermediate_size": of(file, "expert_shared_feed_forward_length"),
        "moe_latent_size": of(file, "moe_latent_size") or None,
        "n_routed_experts": of(file, "expert_count") or 1, "n_group": of(file, "expert_group_count") or 1,
        "topk_group": of(file, "expert_group_used_count") or 1,
    }  # fmt: skip


def delta(file: GGUFFile, config: Config) -> Config:
    """Keys of config.json of Qwen3-Next and Qwen3.5 beside the common ones."""
    groups, run, width = delta_sizes(file)
    head = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return {
        "num_key_value_heads": _largest(file, "attention.head_count_kv"),
        "layer_types": _kinds(file, config, "linear_attention", "full_attention"),
        "linear_num_key_heads": groups, "linear_num_value_heads": groups * run, "linear_key_head_dim": width,
        "linear_value_head_dim": width, "linear_conv_kernel_dim": of(file, "ssm.conv_kernel"),
        "head_dim": head, "partial_rotary_factor": of(file, "rope.dimension_count", head) / head,
        "norm_topk_prob": True,
    }  # fmt: skip


def deepseek(file: GGUFFile, config: Config) -> Config:
    """Keys of config.json of DeepSeek 2 and 3 beside the common ones."""
    rotated, values = of(file, "rope.dimension_count"), of(file, "attention.value_length")
    whole, sigmoid = of(file, "attention.key_length"), of(file, "expert_gating_func") == 2
    groups = of(file, "expert_group_count") or (1 if sigmoid else None)
    if config.get("norm_topk_prob") and not sigmoid:
        raise ConvertError(
            f"{file.path}: deepseek2.expert_weights_norm is true with a softmax of experts; a deepseek_v2 of "
            "transformers takes shares as they are; run it with ggmlq.torch.model(path)"
        )
    rope = dict(config.get("rope_scaling", {}))
    if rope:  # the lengths of both cancel each other in what is rotated
        rope["mscale_all_dim"] = rope["mscale"] = 10 * rope.get("mscale_all_dim", 0.0)
    return {
        "model_type": "deepseek_v3" if sigmoid else "deepseek_v2",
        "num_key_value_heads": config["num_attention_heads"],
        "kv_lora_rank": of(file, "attention.kv_lora_rank"),
        "q_lora_rank": of(file, "attention.q_lora_rank") or None, "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": of(file, "attention.key_length_mla", whole) - rotated,
        "v_head_dim": of(file, "attention.value_length_mla", values), "head_dim": rotated,
        "n_group": groups, "topk_group": of(file, "expert_group_used_count") or groups,
        "topk_method": "group_limited_greedy" if groups else "greedy",
        "n_routed_experts": of(file, "expert_count"),
    } | ({"rope_scaling": rope} if rope else {})  # fmt: skip


def gemma4(file: GGUFFile, config: Config) -> Config:
    """Keys of config.json of Gemma 4 beside the common ones."""
    windows = of(file, "attention.sliding_window_pattern", 0)
    if not isinstance(windows, Sequence) or len({*map(bool, windows)}) < 2:
        raise ConvertError(
            f"{file.path}: gemma4.attention.sliding_window_pattern is {windows!r:.80}; here it is a list "
            "with layers of both kinds; run it with gq.model.load(path)"
        )
    kinds = ["sliding_attention" if windowed else "full_attention" for windowed in windows]
    whole = [i for i, windowed in enumerate(windows) if not windowed]
    factors = np.asarray(file["rope_freqs.weight"], np.float32)
    heads = np.broadcast_to(of(file, "attention.head_count_kv"), len(windows))
    keyed = [i for i in whole if f"blk.{i}.attn_k.weight" in file]
    bare = all(f"blk.{i}.attn_v.weight" not in file for i in keyed)  # where values are the keys
    lengths = np.broadcast_to(of(file, "feed_forward_length"), len(windows))
    side, experts = of(file, "embedding_length_per_layer_input"), of(file, "expert_count")
    return {
        "layer_types": kinds, "head_dim": of(file, "attention.key_length_swa"),
        "global_head_dim": of(file, "attention.key_length"),
        "num_key_value_heads": int(heads[windows.index(True)]),
        "num_global_key_value_heads": int(heads[whole[0]]) if bare else None, "attention_k_eq_v": bare,
        "num_kv_shared_layers": of(file, "attention.shared_kv_layers"),
        "hidden_size_per_layer_input": side, "vocab_size_per_layer_input": config["vocab_size"],
        "intermediate_size": int(lengths[0]), "use_double_wide_mlp": bool(lengths[-1] > lengths[0]),
        "enable_moe_block": bool(experts), "num_experts": experts or None,
        "top_k_experts": config.get("num_experts_per_tok"),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional", "rope_theta": of(file, "rope.freq_base"),
                "partial_rotary_factor": float(np.mean(factors == 1)),
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": of(file, "rope.freq_base_swa", 1e4)},
        },
    }  # fmt: skip
