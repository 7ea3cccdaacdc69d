"""Small checkpoints of this year's families, as transformers writes them, with weights by their names.

Knows nothing of ggmlq. ``tools/table.py newer`` keeps what transformers says of them in golden/newer.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

import checkpoints
import numpy as np

BASE = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "vocab_size": 320, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "tie_word_embeddings": False,
}  # fmt: skip
MIXERS = {
    "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_chunk_size": 16, "layer_types": ["mamba", "attention", "mamba"],
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "head_dim": 32, "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip
FACTORS = {
    "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.3,
    "logits_scaling": 4.0,
}  # fmt: skip
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32}
ROUTED = {
    "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
    "routed_scaling_factor": 1.5, "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "head_dim": 16,
}  # fmt: skip
DENSE, SHARED = {"intermediate_size": 96}, {"shared_intermediate_size": 48}
GLM = {"head_dim": 16, "attention_bias": True} | DENSE
LFM2 = {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3, "norm_eps": 1e-5} | DENSE
GEMMA4 = DENSE | {
    "num_hidden_layers": 4, "head_dim": 32, "global_head_dim": 64, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "vocab_size_per_layer_input": 320,
    "final_logit_softcapping": 3.0, "tie_word_embeddings": True,
}  # fmt: skip
SIDES = {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16, "use_double_wide_mlp": True}
BOTH = {
    "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 6,
    "top_k_experts": 2, "moe_intermediate_size": 32, "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
}  # fmt: skip
NEMOTRON = DENSE | {
    "head_dim": 16, "mamba_num_heads": 4, "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 16,
    "conv_kernel": 4, "expand": 2, "chunk_size": 16, "layer_norm_epsilon": 1e-5,
}  # fmt: skip
HYBRID = "GraniteMoeHybrid"
# name: the class of transformers, and what its configuration says besides
CASES = {
    "glm4": ("Glm4", GLM), "granite": ("Granite", FACTORS | DENSE),
    "glm4moe": ("Glm4Moe", GLM | ROUTED | {
        "num_hidden_layers": 3, "use_qk_norm": True, "first_k_dense_replace": 1}),
    "granitemoe": ("GraniteMoe", FACTORS | LOCAL),
    "granitemoeshared": ("GraniteMoeShared", FACTORS | LOCAL | SHARED),
    "granitehybrid": (HYBRID, FACTORS | MIXERS | LOCAL | SHARED | {"position_embedding_type": "rope"}),
    "granitehybrid-dense": (HYBRID, FACTORS | MIXERS | SHARED | LOCAL | {"num_local_experts": 0}),
    "lfm2": ("Lfm2", LFM2),
    "lfm2moe": ("Lfm2Moe", LFM2 | MOE | {"num_dense_layers": 1, "use_expert_bias": True}),
    "qwen3next": ("Qwen3Next", DELTA | MOE | DENSE | {"shared_expert_intermediate_size": 48}),
    "qwen35": ("Qwen3_5", DELTA | DENSE), "gemma4": ("Gemma4", GEMMA4 | SIDES),
    "gemma4moe": ("Gemma4", GEMMA4 | BOTH),
    "qwen35moe": ("Qwen3_5Moe", DELTA | MOE | {"shared_expert_intermediate_size": 48}),
    "nemotron_h": ("NemotronH", NEMOTRON | {"layer_types": ["mamba", "mlp", "attention", "mlp"]}),
    "nemotron_h_moe": ("NemotronH", NEMOTRON | ROUTED | {
        "layer_types": ["mamba", "moe", "attention", "moe"], "moe_shared_expert_intermediate_size": 48}),
}  # fmt: skip
TOKENS = np.random.RandomState(70).randint(0, 256, 20).tolist()
SOME = (slice(1, None, 6), slice(0, None, 16))  # tokens and logits that are kept


def drawn(name, shape):
    """A tensor's values, by its name."""
    x = np.random.RandomState(crc32(name.encode())).standard_normal(shape)
    if len(shape) == 1:
        mean = 0.0 if name.endswith("bias") else 1.0 if "norm" in name else 0.7
        return (mean + 0.2 * x).astype(np.float32)
    return (x / np.sqrt(shape[-1])).astype(np.float32)


def write(folder, config, shapes, change=None):
    """A checkpoint as a folder; ``change``: a function of its tensors."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ({"config.json": config} | checkpoints.bpe("qwen2")).items():
        (folder / name).write_text(json.dumps(content))
    tensors = {name: ("F32", drawn(name, shape)) for name, shape in shapes.items()}
    if change is not None:
        change(tensors)
    (folder / "model.safetensors").write_bytes(checkpoints.safetensors(tensors, {"format": "pt"}))
    return folder


def by_transformers(case, folder):
    """What transformers says: configuration, shapes by names, and logits [T, 320]."""
    import torch
    import transformers

    stem, says = CASES[case]
    layers = {"num_hidden_layers": len(says.get("layer_types", "ab"))} if stem != "NemotronH" else {}
    text = "Text" * (stem in ("Gemma4", "Qwen3_5", "Qwen3_5Moe"))
    config = getattr(transformers, f"{stem}{text}Config")(**BASE | layers | says)
    model = getattr(transformers, f"{stem}ForCausalLM")
    model(config).save_pretrained(folder)
    shapes = shapes_of(Path(folder) / "model.safetensors")
    said = json.loads((Path(folder) / "config.json").read_text())
    said.pop("transformers_version", None)
    write(folder, said, shapes)
    module = model.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = module(torch.tensor([TOKENS]), use_cache=False).logits[0]
    return said, shapes, logits.double().numpy()


def shapes_of(path):
    """The shapes of a file's tensors."""
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return {name: one["shape"] for name, one in header.items() if name != "__metadata__"}
