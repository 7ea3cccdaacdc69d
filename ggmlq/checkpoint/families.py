"""The table of model families: for each tensor its names in a checkpoint and in GGUF, and how it is changed.

One table serves both directions. A name is a stem and ``weight`` or ``bias``; ``{n}`` is a layer. Experts
lie one by one in most checkpoints (``{e}``), and stacked as [experts, rows, columns] in GGUF.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

LAYER, BLOCK = "model.layers.{n}.", "blk.{n}."

OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
ATTENTION = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
NORMS_OF_HEADS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
NORM = {"post_attention_layernorm": "ffn_norm"}
MORE_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
FEED_FORWARD = {"mlp.gate_proj": "ffn_gate", "mlp.down_proj": "ffn_down", "mlp.up_proj": "ffn_up"}
MIXTRAL = {"block_sparse_moe.gate": "ffn_gate_inp"}
MIXTRAL_EXPERTS = {
    "block_sparse_moe.experts.{e}.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.{e}.w2": "ffn_down_exps",
    "block_sparse_moe.experts.{e}.w3": "ffn_up_exps",
}
ROUTER = {"mlp.gate": "ffn_gate_inp"}
SHARED = {
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
}
QWEN_EXPERTS = {
    "mlp.experts.{e}.down_proj": "ffn_down_exps",
    "mlp.experts.{e}.gate_proj": "ffn_gate_exps",
    "mlp.experts.{e}.up_proj": "ffn_up_exps",
}
SCORE_BIAS, SINKS = "mlp.gate.e_score_correction_bias", "self_attn.sinks"
EXPERT_BIAS = "feed_forward.expert_bias"
BARE = (SCORE_BIAS, SINKS, EXPERT_BIAS)  # names without weight or bias behind them
GATE_AND_UP = "mlp.experts.gate_up_proj"  # newer checkpoints have experts stacked, these two in one tensor
STACKED_DOWN = "mlp.experts.down_proj"

ALWAYS_F32 = (
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "ssm_conv1d.weight",
    "shortconv.conv.weight",
)
UNUSED = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq")
# Parts of names of tensors for images and sound, which go into a file of their own.
OTHER_SENSES = (
    "visual.",
    "vision.",
    "audio.",
    "vision_",
    "audio_",
    "projector.",
    "patch_embed",
    "patch_merger.",
)


@dataclass(frozen=True)
class Family:
    """The common facts about models of one architecture."""

    arch: str  # as GGUF calls it
    layer: Mapping[str, str]
    experts: Mapping[str, str] = field(default_factory=dict)
    permuted: bool = False  # rows of q and k in another order: pairs for rope side by side
    norm_shift: bool = False  # the checkpoint has weight - 1 of its norms
    drops_output: bool = False  # lm_head is never used
    vocabulary: str = "gpt2"  # what is tried: "llama" everything, "spm" tokenizer.model alone, "gpt2" …
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of config.json, as transformers fills them in
    # Names of tensors outside of layers; of families of newer.py also functions that make tensors of
    # others, by their names, and a function that gives keys of the metadata.
    made: Mapping[str, Any] = field(default_factory=dict)
    outer: Mapping[str, str] = field(default_factory=dict)
    keys: Any = None
    # Of modules of transformers that a file fills: names there of tensors that a function changes, or that
    # have none of the usual ends; and matrices that are made of several (opened.py).
    kind: str = ""  # its model_type
    back: Mapping[str, Any] = field(default_factory=dict)
    joined: tuple[Any, ...] = ()


LLAMA = dict[str, Any](max_position_embeddings=2048, rms_norm_eps=1e-6, rope_theta=10000.0, vocab_size=32000)
MISTRAL = LLAMA | {"max_position_embeddings": 131072, "num_key_value_heads": 8}
MIXTRAL_SAYS = MISTRAL | {
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN = LLAMA | {"max_position_embeddings": 32768, "vocab_size": 151936, "num_key_value_heads": 32}
QWEN2_MOE = QWEN | {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
QWEN2_MOE |= {"shared_expert_intermediate_size": 5632, "num_key_value_heads": 16}
QWEN3_MOE = QWEN | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
QWEN3_MOE |= {"num_key_value_heads": 4}
GEMMA = LLAMA | {
    "max_position_embeddings": 8192,
    "head_dim": 256,
    "vocab_size": 256000,
    "num_key_value_heads": 16,
}
GEMMA2 = GEMMA | {"num_key_value_heads": 4, "sliding_window": 4096}
GEMMA2 |= {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
GEMMA3 = GEMMA | {"max_position_embeddings": 131072, "num_key_value_heads": 4, "sliding_window": 4096}
GEMMA3 |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "vocab_size": 262208, "num_attention_heads": 8}

DENSE = ATTENTION | NORM | FEED_FORWARD


def _llama(defaults: dict[str, Any]) -> Family:
    return Family(
        "llama", DENSE | MIXTRAL, MIXTRAL_EXPERTS, permuted=True, vocabulary="llama", defaults=defaults
    )


# Families by the value of "architectures" in config.json.
FAMILIES = {
    "LlamaForCausalLM": _llama(LLAMA),
    "LLaMAForCausalLM": _llama(LLAMA),
    "MistralForCausalLM": _llama(MISTRAL),
    "MixtralForCausalLM": _llama(MIXTRAL_SAYS),
    "Qwen2ForCausalLM": Family("qwen2", DENSE, vocabulary="spm or gpt2", defaults=QWEN),
    "Qwen2MoeForCausalLM": Family("qwen2moe", DENSE | ROUTER | SHARED, QWEN_EXPERTS, defaults=QWEN2_MOE),
    "Qwen3ForCausalLM": Family(
        "qwen3", DENSE | NORMS_OF_HEADS, vocabulary="spm or gpt2", defaults=QWEN | {"head_dim": 128}
    ),
    "Qwen3MoeForCausalLM": Family(
        "qwen3moe", DENSE | NORMS_OF_HEADS | ROUTER, QWEN_EXPERTS, defaults=QWEN3_MOE
    ),
    "GemmaForCausalLM": Family(
        "gemma", DENSE, norm_shift=True, drops_output=True, vocabulary="spm", defaults=GEMMA
    ),
    "Gemma2ForCausalLM": Family(
        "gemma2", ATTENTION | MORE_NORMS | FEED_FORWARD, norm_shift=True, drops_output=True, vocabulary="spm",
        defaults=GEMMA2,
    ),
    "Gemma3ForCausalLM": Family(
        "gemma3", ATTENTION | MORE_NORMS | NORMS_OF_HEADS | FEED_FORWARD, norm_shift=True,
        vocabulary="spm or gpt2", defaults=GEMMA3,
    ),
}  # fmt: skip
FAMILIES["Gemma3ForConditionalGeneration"] = FAMILIES["Gemma3ForCausalLM"]

# Families whose files are opened as modules of transformers, and that are not converted either way.
PHI3 = {
    "input_layernorm": "attn_norm", "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
GLM4 = ATTENTION | {
    "post_self_attn_layernorm": "post_attention_norm", "post_attention_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
SHARED_EXPERTS = {
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}  # fmt: skip
GLM4_MOE = ATTENTION | NORMS_OF_HEADS | FEED_FORWARD | ROUTER | SHARED_EXPERTS
GLM4_MOE |= {"post_attention_layernorm": "post_attention_norm", SCORE_BIAS: "exp_probs_b"}
LFM2 = {
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm", "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up", "feed_forward.gate": "ffn_gate_inp",
}  # fmt: skip
LFM2_NORM = {"model.embedding_norm": "token_embd_norm"}
LFM2_EXPERTS = {
    "feed_forward.experts.{e}.w1": "ffn_gate_exps", "feed_forward.experts.{e}.w2": "ffn_down_exps",
    "feed_forward.experts.{e}.w3": "ffn_up_exps",
}  # fmt: skip
LFM2_WHOLE = LFM2 | {"conv.conv": "shortconv.conv", EXPERT_BIAS: "exp_probs_b"}
GRANITE_MOE = ATTENTION | NORM | {"block_sparse_moe.router": "ffn_gate_inp"}
GRANITE_EXPERTS = {f"block_sparse_moe{old[3:]}": new for old, new in QWEN_EXPERTS.items()}
GPT_OSS = ATTENTION | {
    "post_attention_layernorm": "post_attention_norm", SINKS: "attn_sinks", "mlp.router": "ffn_gate_inp",
}  # fmt: skip
BACK = {
    "GptOssForCausalLM": Family("gpt-oss", GPT_OSS, QWEN_EXPERTS),
    "Ministral3ForCausalLM": Family("mistral3", DENSE, permuted=True),
    "Phi3ForCausalLM": Family("phi3", PHI3 | NORM),
    "Glm4ForCausalLM": Family("glm4", GLM4),
    "Glm4MoeForCausalLM": Family("glm4moe", GLM4_MOE, QWEN_EXPERTS),
    "GraniteForCausalLM": Family("granite", DENSE, permuted=True),
    "Lfm2ForCausalLM": Family("lfm2", LFM2_WHOLE, outer=LFM2_NORM),
    "Lfm2MoeForCausalLM": Family("lfm2moe", LFM2_WHOLE, LFM2_EXPERTS, outer=LFM2_NORM),
}

# For configurations without "architectures", and for the way back.
MODEL_TYPES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM", "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration", "gemma3_text": "Gemma3ForCausalLM", "phi3": "Phi3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM", "ministral3": "Ministral3ForCausalLM",
    "glm4": "Glm4ForCausalLM", "glm4_moe": "Glm4MoeForCausalLM", "granite": "GraniteForCausalLM",
    "lfm2": "Lfm2ForCausalLM", "lfm2_moe": "Lfm2MoeForCausalLM",
}  # fmt: skip
OF_ARCH = {family.arch: family for family in FAMILIES.values()}


# --- names of one tensor on both sides, for the error about a name that a file lacks ---------

STACKED = {GATE_AND_UP: ("ffn_gate_exps", "ffn_up_exps"), STACKED_DOWN: ("ffn_down_exps",)}


def equivalent_names(name: object) -> Iterator[str]:
    """The names in GGUF of a tensor in a checkpoint, and the reverse, in all families."""
    parts = re.fullmatch(r"(.+)\.(weight|bias)", name) if isinstance(name, str) else None
    if parts is None:
        return
    stem, end = parts[1], parts[2]
    for there, here in OUTER.items():
        if stem in (there, here):
            yield f"{here if stem == there else there}.{end}"
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem):
        bare = re.sub(r"\.experts\.\d+\.", ".experts.{e}.", match[2])
        yield from (f"{BLOCK.format(n=match[1])}{here}.{end}" for there, here in _table() if there == bare)
    elif match := re.fullmatch(r"blk\.(\d+)\.(.+)", stem):
        layer = LAYER.format(n=match[1])
        yield from (
            f"{layer}{there}.{end}".replace("{e}", "0") for there, here in _table() if here == match[2]
        )


def _table() -> list[tuple[str, str]]:
    """All pairs of stems within a layer, of every family."""
    pairs = [*((there, here) for there, several in STACKED.items() for here in several)]
    for family in (*FAMILIES.values(), *BACK.values()):
        pairs += [*family.layer.items(), *family.experts.items()]
    return list(dict.fromkeys(pairs))
