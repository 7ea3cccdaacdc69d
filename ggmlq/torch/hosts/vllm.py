"""vLLM's GGUF plugin: the functions of ``vllm_gguf_plugin.ops``, which its layers call for every type.

Enable it before the engine starts, for layers look these functions up when they are built or traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import torch

from ..products import product
from .switch import Change, Switch


def ggml_dequantize(
    W: torch.Tensor, quant_type: int, m: int, n: int, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Values of blocks [m, n], float16 unless a dtype is named."""
    values: torch.Tensor = torch.ops.ggmlq.dequantize(W, int(quant_type), [m, n], dtype or torch.float16)
    return values


def ggml_mul_mat(W: torch.Tensor, X: torch.Tensor, quant_type: int, row: int) -> torch.Tensor:
    """Rows X [M, K] times W [row, bytes] transposed, for any M."""
    return product(X, W, int(quant_type), row)


def ggml_moe_a8_vec(
    X: torch.Tensor,
    W: torch.Tensor,
    topk_ids: torch.Tensor,
    top_k: int,
    quant_type: int,
    row: int,
    tokens: int,
) -> torch.Tensor:
    """Each token times its experts, [tokens · top_k, row]."""
    ids = topk_ids.reshape(tokens, top_k)
    y: torch.Tensor = torch.ops.ggmlq.expert_linear(X, W, ids, int(quant_type), row)
    return y.reshape(tokens * top_k, row)


def ggml_moe_a8(
    X: torch.Tensor, W: torch.Tensor, sorted_token_ids: torch.Tensor, expert_ids: torch.Tensor,
    num_tokens_post_padded: torch.Tensor, quant_type: int, row: int, top_k: int, tokens: int,
) -> torch.Tensor:  # fmt: skip
    """Tokens times experts, with uses sorted by expert and padded to tiles, each of which has one expert."""
    uses, tile = tokens * top_k, len(sorted_token_ids) // max(len(expert_ids), 1)
    experts = expert_ids.repeat_interleave(tile)[: len(sorted_token_ids)].to(torch.int64)
    inside = torch.arange(len(experts), device=X.device) < num_tokens_post_padded.reshape(())
    places = torch.where(inside, sorted_token_ids[: len(experts)].to(torch.int64), uses).clamp(max=uses)
    ids = torch.zeros(uses + 1, dtype=torch.int64, device=X.device).scatter_(0, places, experts)
    return ggml_moe_a8_vec(X, W, ids[:uses], top_k, quant_type, row, tokens)


def _changes() -> Iterator[Change]:
    ops = import_module("vllm_gguf_plugin.ops")
    yield ops, "ggml_dequantize", ggml_dequantize
    yield ops, "ggml_mul_mat_vec_a8", ggml_mul_mat
    yield ops, "ggml_mul_mat_a8", ggml_mul_mat
    yield ops, "ggml_moe_a8", ggml_moe_a8
    yield ops, "ggml_moe_a8_vec", ggml_moe_a8_vec


SWITCH = Switch("vllm", "vllm-gguf-plugin", "version 0.0.5's interface", _changes)
enable, disable = SWITCH.enable, SWITCH.disable
