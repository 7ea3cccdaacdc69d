"""Train the tiny model that tests generate with: a Llama of two layers with byte pairs, on a page of ours.

    python tools/speak_train.py [--seconds 300]     # needs torch; writes tests/golden/speaks.gguf

It learns the first part of docs/house.md by heart, 224 tokens at a time: so its tokens have margins, and two
programs that compute alike say the same.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import ggmlq as gq
from ggmlq.model.tokenizer.pairs import LETTERS, rule, splitter

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "tests" / "golden" / "speaks.gguf"
WIDTH, HIDDEN, HEADS, KV_HEADS, LAYERS, LENGTH = 128, 256, 4, 2, 2, 224
EPSILON, MERGES = 1e-5, 254


def vocabulary(pages: str) -> dict[str, Any]:
    """The metadata of a tokenizer: bytes, and the pairs that are frequent in a text."""
    words = Counter(splitter(rule("gpt-2").steps)(pages))
    parts = {word: [LETTERS[byte] for byte in word.encode()] for word in words}
    merges: list[tuple[str, str]] = []
    while len(merges) < MERGES:
        counts: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(parts[word]):
                counts[pair] += count
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(best)
        for pieces in parts.values():
            at = 0
            while at < len(pieces) - 1:
                if (pieces[at], pieces[at + 1]) == best:
                    pieces[at : at + 2] = ["".join(best)]
                at += 1
    tokens = [*LETTERS, *("".join(pair) for pair in merges), "<|begin|>", "<|end_of_text|>"]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 2) + [3, 3],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": len(tokens) - 2, "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        "tokenizer.ggml.add_bos_token": True,
    }  # fmt: skip


def parameters(torch: Any, tokens: int) -> dict[str, Any]:
    """Random weights by the names of a GGUF file."""
    head = WIDTH // HEADS
    shapes = {"token_embd": (tokens, WIDTH)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_q": (WIDTH, WIDTH), f"blk.{i}.attn_k": (KV_HEADS * head, WIDTH),
            f"blk.{i}.attn_v": (KV_HEADS * head, WIDTH), f"blk.{i}.attn_output": (WIDTH, WIDTH),
            f"blk.{i}.ffn_gate": (HIDDEN, WIDTH), f"blk.{i}.ffn_up": (HIDDEN, WIDTH),
            f"blk.{i}.ffn_down": (WIDTH, HIDDEN),
        }  # fmt: skip
    weights = {name: torch.randn(shape) / math.sqrt(shape[-1]) for name, shape in shapes.items()}
    norms = ["output_norm", *(f"blk.{i}.{part}_norm" for i in range(LAYERS) for part in ("attn", "ffn"))]
    weights |= {name: torch.ones(WIDTH) for name in norms}
    return {name: w.requires_grad_() for name, w in weights.items()}


def forward(torch: Any, w: dict[str, Any], tokens: Any) -> Any:
    """Logits of a batch [B, T]."""
    head, count = WIDTH // HEADS, tokens.shape[1]

    def norm(x: Any, name: str) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPSILON) * w[name]

    angle = torch.arange(count)[:, None] * 10000.0 ** (-2.0 * torch.arange(head // 2) / head)
    cos, sin = torch.cos(angle), torch.sin(angle)

    def turned(x: Any) -> Any:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

    x = w["token_embd"][tokens]
    for i in range(LAYERS):
        h = norm(x, f"blk.{i}.attn_norm")
        q, k, v = (
            (h @ w[f"blk.{i}.attn_{r}"].T).unflatten(-1, (n, head)).transpose(1, 2)
            for r, n in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        k, v = (part.repeat_interleave(HEADS // KV_HEADS, 1) for part in (turned(k), v))
        y = torch.nn.functional.scaled_dot_product_attention(turned(q), k, v, is_causal=True)
        x = x + y.transpose(1, 2).flatten(-2) @ w[f"blk.{i}.attn_output"].T
        h = norm(x, f"blk.{i}.ffn_norm")
        gate = torch.nn.functional.silu(h @ w[f"blk.{i}.ffn_gate"].T)
        x = x + (gate * (h @ w[f"blk.{i}.ffn_up"].T)) @ w[f"blk.{i}.ffn_down"].T
    return norm(x, "output_norm") @ w["token_embd"].T


def train(seconds: float, text: Any, begin_token: int) -> dict[str, Any]:
    """The weights after so many seconds with the tokens of a text."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    w = parameters(torch, begin_token + 2)
    optimizer = torch.optim.AdamW(w.values(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.01)
    begin, steps = time.monotonic(), 0
    while (part := (time.monotonic() - begin) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1.0, steps / 50) * (1 - part)
        starts = rng.integers(0, len(text) - LENGTH - 1, 4)
        batch = torch.from_numpy(text[starts[:, None] + np.arange(LENGTH + 1)])
        batch[:, 0] = begin_token  # every text begins with it
        logits = forward(torch, w, batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps % 100 == 0:
            print(f"{steps} steps, {loss.item():.3f}", flush=True)
    return {name: tensor.detach().numpy() for name, tensor in w.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    seconds = parser.parse_args().seconds
    pages = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")[:5000]
    metadata = vocabulary(pages)
    tokenizer = gq.model.Tokenizer(metadata)
    text = np.array(tokenizer.encode(pages, whole=False, special=False))
    assert tokenizer.bos is not None
    weights = train(seconds, text, tokenizer.bos)
    tensors = {
        f"{name}.weight": gq.quantize(w, "q8_0") if w.ndim == 2 else w.astype(np.float32)
        for name, w in weights.items()
    }
    facts = {
        "context_length": 512, "embedding_length": WIDTH, "block_count": LAYERS,
        "feed_forward_length": HIDDEN, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "attention.layer_norm_rms_epsilon": EPSILON,
        "rope.dimension_count": WIDTH // HEADS, "vocab_size": len(tokenizer),
    }  # fmt: skip
    metadata |= {"general.architecture": "llama", "general.name": "speaks"}
    gq.save(TARGET, tensors, metadata | {f"llama.{key}": value for key, value in facts.items()})
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
