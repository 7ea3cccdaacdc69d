"""Tiny models for hosts: their GGUF files, with weights of a normal distribution."""

from __future__ import annotations

import numpy as np

import ggmlq as gq

WIDTH, FEED, HEADS, KV, LAYERS, WORDS = 256, 512, 4, 2, 2, 64


def makers(rng, kind):
    """Functions that make a matrix in blocks, and the weights of a norm."""

    def matrix(*shape):
        return gq.quantize(rng.standard_normal(shape, np.float32) / shape[-1] ** 0.5, kind)

    def norm(n):
        return 1 + 0.1 * rng.standard_normal(n).astype(np.float32)

    return matrix, norm


def lfm2(path, rng, kind="q4_K"):
    """An LFM2 of two layers, one with a short convolution and one with attention."""
    matrix, norm = makers(rng, kind)
    head = WIDTH // HEADS
    tensors = {"token_embd.weight": matrix(WORDS, WIDTH), "token_embd_norm.weight": norm(WIDTH)}
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        tensors |= {f"{block}{name}.weight": norm(WIDTH) for name in ("attn_norm", "ffn_norm")}
        tensors |= {f"{block}{name}.weight": matrix(FEED, WIDTH) for name in ("ffn_gate", "ffn_up")}
        tensors[f"{block}ffn_down.weight"] = matrix(WIDTH, FEED)
        if layer:
            tensors[f"{block}attn_q.weight"] = matrix(WIDTH, WIDTH)
            tensors |= {f"{block}attn_{name}.weight": matrix(KV * head, WIDTH) for name in "kv"}
            tensors[f"{block}attn_output.weight"] = matrix(WIDTH, WIDTH)
            tensors |= {f"{block}attn_{name}_norm.weight": norm(head) for name in "qk"}
        else:
            tensors[f"{block}shortconv.in_proj.weight"] = matrix(3 * WIDTH, WIDTH)
            tensors[f"{block}shortconv.out_proj.weight"] = matrix(WIDTH, WIDTH)
            tensors[f"{block}shortconv.conv.weight"] = rng.standard_normal((WIDTH, 3), np.float32)
    facts = {
        "context_length": 128, "embedding_length": WIDTH, "feed_forward_length": FEED, "block_count": LAYERS,
        "attention.head_count": HEADS, "attention.layer_norm_rms_epsilon": 1e-5, "shortconv.l_cache": 3,
        "rope.freq_base": 10000.0, "attention.head_count_kv": gq.gguf.Typed([0, KV], "int32"),
    }  # fmt: skip
    metadata = {"general.architecture": "lfm2", "tokenizer.ggml.tokens": [f"t{i}" for i in range(WORDS)]}
    gq.save(path, tensors, metadata | {f"lfm2.{name}": value for name, value in facts.items()})
    return tensors


def llama(path, rng, kind="q4_K", tied=False):
    """A Llama of two layers; rows of q and k in GGUF's order."""
    matrix, norm = makers(rng, kind)
    head = WIDTH // HEADS
    tensors = {"token_embd.weight": matrix(WORDS, WIDTH), "output_norm.weight": norm(WIDTH)}
    if not tied:
        tensors["output.weight"] = matrix(WORDS, WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        tensors |= {f"{block}{name}.weight": norm(WIDTH) for name in ("attn_norm", "ffn_norm")}
        tensors |= {f"{block}{name}.weight": matrix(FEED, WIDTH) for name in ("ffn_gate", "ffn_up")}
        tensors |= {f"{block}{name}.weight": matrix(WIDTH, WIDTH) for name in ("attn_q", "attn_output")}
        tensors |= {f"{block}attn_{name}.weight": matrix(KV * head, WIDTH) for name in "kv"}
        tensors[f"{block}ffn_down.weight"] = matrix(WIDTH, FEED)
    facts = {
        "context_length": 128, "embedding_length": WIDTH, "feed_forward_length": FEED, "block_count": LAYERS,
        "attention.head_count": HEADS, "attention.head_count_kv": KV, "rope.freq_base": 10000.0,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": head, "vocab_size": WORDS,
    }  # fmt: skip
    metadata = {"general.architecture": "llama", "general.name": "tiny"}
    metadata |= {"tokenizer.ggml.tokens": [f"t{i}" for i in range(WORDS)]}
    gq.save(path, tensors, metadata | {f"llama.{name}": value for name, value in facts.items()})
    return tensors
