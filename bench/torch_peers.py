"""Layers of other programs for bench_torch.py and bench_torch_llama.py: ``--peers all``, or some of them.

diffusers and transformers unpack weights of GGUF files in each call, by functions of theirs in torch that
gguf-py's were written after; bitsandbytes has nf4, and Humming int4 in groups of 32, which stand beside any
type. All take and give bfloat16. A peer that is not installed is named and left out.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import ggmlq as gq

BF16, GPU = torch.bfloat16, "cuda"
WORST = 0.02  # of a product with rounded values beside that of float32
Peer = Callable[[str, int, int], torch.nn.Module]


def blocks(name: str, n: int, k: int) -> gq.QuantArray:
    """Weights whose rows are 64 of random numbers, again and again."""
    rows = gq.quantize(np.random.default_rng(n + k).standard_normal((64, k), np.float32) / k**0.5, name)
    raw = np.resize(rows.raw, (n, rows.raw.shape[1]))
    return gq.QuantArray.from_bytes(raw.tobytes(), name, (n, k))


def floats(n: int, k: int) -> torch.Tensor:
    """Weights of random numbers on the GPU."""
    return torch.randn(n, k, device=GPU, dtype=BF16) / k**0.5


class Transformers(torch.nn.Module):
    """A layer as transformers' GgufLinear without a kernel: its ``dequantize``, and torch's product."""

    def __init__(self, name: str, n: int, k: int) -> None:
        super().__init__()
        self.decode = import_module("transformers.integrations.gguf.dequant").dequantize
        q = blocks(name, n, k)
        self.type, self.shape = q.format.id, q.shape
        self.register_buffer("weight", torch.from_numpy(q.raw.copy()).to(GPU))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product with unpacked weights."""
        w = self.decode(self.weight, self.type, BF16).reshape(self.shape)
        return functional.linear(x, w)


def diffusers(name: str, n: int, k: int) -> torch.nn.Module:
    """A layer of diffusers."""
    utils, q = import_module("diffusers.quantizers.gguf.utils"), blocks(name, n, k)
    layer: torch.nn.Module = utils.GGUFLinear(k, n, compute_dtype=BF16, device=GPU)
    kind = import_module("gguf").GGMLQuantizationType(q.format.id)
    layer.weight = utils.GGUFParameter(torch.from_numpy(q.raw.copy()).to(GPU), quant_type=kind)
    return layer


def nf4(name: str, n: int, k: int) -> torch.nn.Module:
    """A layer of bitsandbytes, of four bits."""
    layer: Any = import_module("bitsandbytes").nn.Linear4bit(
        k, n, bias=False, compute_dtype=BF16, quant_type="nf4", compress_statistics=False
    )
    layer.weight.data = floats(n, k).cpu()
    return layer.to(GPU)  # type: ignore[no-any-return]


def humming(name: str, n: int, k: int) -> torch.nn.Module:
    """Humming's layer of four bits in groups of 32."""
    config = {"dtype": "int4", "weight_scale_group_size": 32}
    layer: Any = import_module("humming.layer").HummingLayer(
        shape_n=n, shape_k=k, weight_config=config, torch_dtype=BF16
    )
    layer = layer.cuda()
    layer.load_from_unquantized(floats(n, k))
    layer.transform()
    return layer  # type: ignore[no-any-return]


PEERS: dict[str, Peer] = {
    "transformers": Transformers, "diffusers": diffusers, "bitsandbytes nf4": nf4, "Humming int4": humming,
}  # fmt: skip


def peers(names: str) -> dict[str, Peer]:
    """The peers of a list of names, "all" for every one, that can be made and multiply right here."""
    chosen = [name for name in PEERS if names == "all" or name.split()[0] in names.split(",")]
    present = {}
    for name in chosen:
        try:
            _check(name)
            present[name] = PEERS[name]
        except Exception as failed:
            print(f"{name} is left out: {type(failed).__name__}: {str(failed)[:300]}", flush=True)
    return present


def _check(name: str) -> None:
    """A small product of a peer that unpacks blocks, beside that of the same blocks in float32."""
    layer, x = PEERS[name]("q4_0", 256, 512), torch.randn(16, 512, device=GPU, dtype=BF16)
    y = layer(x)
    assert (y.dtype, y.shape) == (BF16, (16, 256)), f"it gives {y.dtype} {tuple(y.shape)}"
    if PEERS[name] in (Transformers, diffusers):
        want = x.float() @ torch.from_numpy(np.asarray(blocks("q4_0", 256, 512))).to(GPU).T
        wrong = float((y.float() - want).norm() / want.norm())
        assert wrong < WORST, f"its product is {wrong:.3f} off"
