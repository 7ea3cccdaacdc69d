"""Small but whole models that libllama runs: random weights of any types, a vocabulary of bytes.

Dense or with experts, as llama.cpp's architecture ``llama`` wants them, or with experts as ``qwen2moe`` has
them (a shared expert beside the chosen ones). A few hundred kilobytes; every text is tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..gguf import save
from ..ops import quantize

BYTES = 256
LARGE, ROWS = 1 << 22, 256  # elements of a matrix whose rows repeat, and how many differ
TYPES = {"q": "q4_K", "k": "q6_K", "v": "q8_0", "out": "q4_0", "gate": "q5_K", "up": "q4_K", "down": "q6_K"}


@dataclass(frozen=True)
class Shape:
    """Sizes of a model."""

    width: int = 256
    hidden: int = 512
    heads: int = 4
    kv_heads: int = 2
    layers: int = 2
    experts: int = 0
    used: int = 2  # experts of a token
    context: int = 1024
    shared: bool = False  # qwen2moe: an expert for all tokens beside the chosen ones
    tokens: int = 0  # of the vocabulary, if it has more than bytes


def tiny_model(
    path: str | Path, types: Mapping[str, str] | Sequence[Mapping[str, str]] = TYPES, shape: Shape = Shape(),
    seed: int = 0,
) -> Path:  # fmt: skip
    """Write a model; ``types``: by role (q k v out gate up down embd head), for all layers or one by one."""
    rng = np.random.default_rng(seed)
    by_layer = [dict(types)] * shape.layers if isinstance(types, Mapping) else [dict(one) for one in types]
    vocabulary = byte_vocabulary(shape.tokens)
    names, first = vocabulary["tokenizer.ggml.tokens"], by_layer[0]
    tensors: dict[str, Any] = {
        "token_embd.weight": _weights(rng, first.get("embd", "q8_0"), len(names), shape.width),
        "output_norm.weight": np.ones(shape.width, np.float32),
        "output.weight": _weights(rng, first.get("head", "q6_K"), len(names), shape.width),
    }
    for layer in range(shape.layers):
        for name, tensor in _layer(rng, {**TYPES, **by_layer[layer]}, shape).items():
            tensors[f"blk.{layer}.{name}"] = tensor
    save(path, tensors, _metadata(shape, len(names)) | vocabulary)
    return Path(path)


def _weights(rng: np.random.Generator, kind: str, *lengths: int) -> QuantArray:
    """Random ones; the rows of a large matrix are some hundreds in any order, for encoding takes long."""
    large = len(lengths) == 2 and lengths[0] * lengths[1] > LARGE
    drawn = (ROWS, lengths[1]) if large else lengths
    values = rng.standard_normal(drawn) / np.sqrt(lengths[-1])
    weights = quantize(values.astype(np.float32), kind)
    return weights[rng.integers(0, ROWS, lengths[0])] if large else weights


def _layer(rng: np.random.Generator, types: Mapping[str, str], shape: Shape) -> dict[str, Any]:
    head = shape.width // shape.heads
    lengths = {
        "attn_q": (shape.width, shape.width), "attn_k": (shape.kv_heads * head, shape.width),
        "attn_v": (shape.kv_heads * head, shape.width), "attn_output": (shape.width, shape.width),
    }  # fmt: skip
    tensors: dict[str, Any] = {
        "attn_norm.weight": np.ones(shape.width, np.float32),
        "ffn_norm.weight": np.ones(shape.width, np.float32),
    }
    for name, sizes in lengths.items():
        tensors[f"{name}.weight"] = _weights(
            rng, types[name.removeprefix("attn_").removesuffix("put")], *sizes
        )
    if shape.shared:  # this architecture has biases
        rows = {"q": shape.width, "k": shape.kv_heads * head, "v": shape.kv_heads * head}
        tensors |= {
            f"attn_{role}.bias": rng.standard_normal(n).astype(np.float32) for role, n in rows.items()
        }
    many, suffix = ((shape.experts,), "_exps") if shape.experts else ((), "")
    wide, narrow = (shape.hidden, shape.width), (shape.width, shape.hidden)
    for role, sizes in {"gate": wide, "up": wide, "down": narrow}.items():
        tensors[f"ffn_{role}{suffix}.weight"] = _weights(rng, types[role], *many, *sizes)
        if shape.shared:
            tensors[f"ffn_{role}_shexp.weight"] = _weights(rng, types[role], *sizes)
    if shape.experts:
        tensors["ffn_gate_inp.weight"] = _weights(rng, "f32", shape.experts, shape.width)
    if shape.shared:
        tensors["ffn_gate_inp_shexp.weight"] = _weights(rng, "f32", 1, shape.width).dequantize()[0]
    return tensors


def _metadata(shape: Shape, tokens: int) -> dict[str, Any]:
    name = "qwen2moe" if shape.shared else "llama"
    facts: dict[str, Any] = {
        "context_length": shape.context, "embedding_length": shape.width, "block_count": shape.layers,
        "feed_forward_length": shape.hidden, "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": shape.width // shape.heads, "vocab_size": tokens,
    }  # fmt: skip
    if shape.experts:
        facts |= {"expert_count": shape.experts, "expert_used_count": shape.used}
    if shape.shared:
        facts |= {
            "expert_feed_forward_length": shape.hidden,
            "expert_shared_feed_forward_length": shape.hidden,
        }
    return {"general.architecture": name, "general.name": "tiny"} | {
        f"{name}.{key}": v for key, v in facts.items()
    }


def byte_vocabulary(least: int = 0) -> dict[str, Any]:
    """SentencePiece with nothing but bytes, and as many tokens as a multiple of 32, ``least`` at least."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(BYTES))]
    kinds = [2, 3, 3] + [6] * BYTES  # unknown, control, byte
    spare = max(-len(tokens) % 32, least - len(tokens))
    tokens, kinds = tokens + [f"<spare{i}>" for i in range(spare)], kinds + [4] * spare  # user-defined
    return {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens), "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
