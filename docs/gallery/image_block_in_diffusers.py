"""An image model's block in diffusers.

The linear layers of a transformer block for images, as diffusers makes them of a GGUF file (GGUFLinear).
They decode their whole weight for every call; with ggmlq.torch.hosts.diffusers they multiply the blocks. The
script compares results and times. It needs diffusers, accelerate and gguf.
"""

import time

import gguf
import numpy as np
import torch
from diffusers.quantizers.gguf.utils import GGUFLinear, GGUFParameter

import ggmlq as gq
import ggmlq.torch

WIDTH, TOKENS = 512, 64
rng = np.random.default_rng(0)


def layer(n, k):
    """A layer of diffusers with blocks of q4_K."""
    q = gq.quantize(rng.standard_normal((n, k), np.float32) / k**0.5, "q4_K")
    linear = GGUFLinear(k, n, bias=True, compute_dtype=torch.float32)
    kind = gguf.GGMLQuantizationType(q.format.id)
    linear.weight = GGUFParameter(torch.from_numpy(q.raw.copy()), quant_type=kind)
    return linear.requires_grad_(False)


class Block(torch.nn.Module):
    """Attention and a feed-forward part over tokens of an image."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = layer(3 * WIDTH, WIDTH), layer(WIDTH, WIDTH)
        self.up, self.down = layer(4 * WIDTH, WIDTH), layer(WIDTH, 4 * WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def timed(model, x):
    """The result, and milliseconds of the fastest of some calls."""
    times = []
    for _ in range(8):
        start = time.perf_counter()
        y = model(x)
        times.append(time.perf_counter() - start)
    return y, min(times) * 1e3


block, x = Block(), torch.from_numpy(rng.standard_normal((1, TOKENS, WIDTH), np.float32))
theirs, slow = timed(block, x)
print(ggmlq.torch.hosts.diffusers.enable())
ours, fast = timed(block, x)
print(ggmlq.torch.hosts.diffusers.disable())
nmse = float(((ours - theirs) ** 2).sum() / (theirs**2).sum())
print(f"nmse against decoded weights: {nmse:.1e}")
print(f"{TOKENS} tokens: diffusers' layers {slow:.1f} ms, packed {fast:.1f} ms")
