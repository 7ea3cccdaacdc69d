"""torch on a GPU: a token of a Llama of 8B's shapes, packed, dense, and unpacked in each call.

    python bench/bench_torch_llama.py [--layers 8] [--seconds 60] [--peers all] [--json FILE]

Weights are q4_K and q6_K as in a file of q4_K_M, activations bfloat16, the cache has 512 positions. The rest
of a layer is plain torch. Eager calls; a CUDA graph that was recorded by hand; torch.compile(fullgraph=True,
mode="reduce-overhead"). Microseconds a layer, without the head. "joined": q and k, and gate and up, are one
layer each. "unpacked in each call" is a lower bound of hosts that do so: our kernel decodes. Other programs'
layers (torch_peers.py) are called in eager code alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch_peers
from bench_torch import BF16, GPU, Unpacked, dense, eager, graph, packed, turns
from torch.nn import functional

from ggmlq.base.writing import write_whole
from ggmlq.testing.machine import commit, machine

WIDTH, FEED, HEADS, GROUPS, SIZE, POSITIONS = 4096, 14336, 32, 8, 128, 512
KINDS = {"v": "q6_K", "down": "q6_K"}  # all others are q4_K
Make = Callable[[str, int, int], torch.nn.Module]


def of_blocks(name: str, n: int, k: int) -> torch.nn.Module:
    """A packed layer of the type that its name has."""
    return packed(KINDS.get(name, "q4_K"), n, k)


MODELS: dict[str, tuple[Make, bool]] = {
    "packed": (of_blocks, False), "packed, joined": (of_blocks, True),
    "dense": (lambda name, n, k: dense(n, k), False),
    "unpacked in each call": (lambda name, n, k: Unpacked(of_blocks(name, n, k)), False),
}  # fmt: skip


class Layer(torch.nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self, make: Make, joined: bool) -> None:
        super().__init__()
        keys = GROUPS * SIZE
        widths = {"qk": WIDTH + keys, "v": keys} if joined else {"q": WIDTH, "k": keys, "v": keys}
        widths |= {"gate_up": 2 * FEED} if joined else {"gate": FEED, "up": FEED}
        self.products = torch.nn.ModuleDict({name: make(name, n, WIDTH) for name, n in widths.items()})
        self.products["out"], self.products["down"] = make("out", WIDTH, WIDTH), make("down", WIDTH, FEED)
        self.norms = torch.nn.ModuleList(
            torch.nn.RMSNorm(WIDTH, 1e-5, device=GPU, dtype=BF16) for _ in range(2)
        )
        for name in ("keys", "values"):
            cache = torch.randn(1, GROUPS, POSITIONS, SIZE, device=GPU, dtype=BF16)
            self.register_buffer(name, cache)
        self.joined = joined

    def forward(
        self, x: torch.Tensor, at: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """The next state of one token at a position."""
        products, y = self.products, self.norms[0](x)
        if self.joined:
            q, k = products["qk"](y).split([WIDTH, GROUPS * SIZE], -1)
        else:
            q, k = products["q"](y), products["k"](y)
        q, k, v = (part.view(1, -1, 1, SIZE) for part in (q, k, products["v"](y)))
        self.keys.index_copy_(2, at, turned(k, cos, sin))
        self.values.index_copy_(2, at, v)
        y = functional.scaled_dot_product_attention(
            turned(q, cos, sin), self.keys, self.values, enable_gqa=True
        )
        x = x + products["out"](y.reshape(1, WIDTH))
        y = self.norms[1](x)
        both = (
            products["gate_up"](y).chunk(2, -1) if self.joined else (products["gate"](y), products["up"](y))
        )
        return x + products["down"](functional.silu(both[0]) * both[1])


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads turned by their position."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Model(torch.nn.Module):
    """Some layers, one after the other, without a head."""

    def __init__(self, make: Make, joined: bool, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(make, joined) for _ in range(layers))

    def forward(self, x: torch.Tensor, *position: torch.Tensor) -> torch.Tensor:
        """The state of a token after the last layer."""
        for layer in self.layers:
            x = layer(x, *position)
        return x


def compiled(model: torch.nn.Module) -> Callable[..., Any]:
    """The model by torch.compile with CUDA graphs, called as one step."""
    whole = torch.compile(model, fullgraph=True, mode="reduce-overhead", dynamic=False)

    def call(*operands: torch.Tensor) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return whole(*operands)

    return call


def main() -> None:
    """Measure all models, and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=8, help="so many that the host is ahead of the GPU")
    parser.add_argument("--peers", default="", help="all, or names of other programs, with commas")
    parser.add_argument("--seconds", type=float, default=60, help="after which no further model is begun")
    parser.add_argument("--json", type=Path, help="write the figures and what they were measured on")
    args = parser.parse_args()
    end, results = time.monotonic() + args.seconds, []
    angles = (POSITIONS - 1) * 10000.0 ** (-torch.arange(SIZE // 2, device=GPU) / (SIZE // 2))
    operands = torch.randn(1, WIDTH, device=GPU, dtype=BF16), torch.tensor([POSITIONS - 1], device=GPU)
    operands += angles.cos().to(BF16), angles.sin().to(BF16)
    with torch.no_grad():
        for name, (make, joined) in {**MODELS, **others(args.peers)}.items():
            results.append(figures(name, Model(make, joined, args.layers), operands, args.layers))
            print(*(f"{key} {value}" for key, value in results[-1].items()), sep=", ", flush=True)
            torch.compiler.reset()
            torch.cuda.empty_cache()
            if time.monotonic() > end:
                break
    if args.json:
        where = {"machine": machine(), "commit": commit(), "torch": torch.__version__}
        write_whole(args.json, json.dumps({**where, "results": results}, indent=1) + "\n")


def others(names: str) -> dict[str, tuple[Make, bool]]:
    """Models of other programs' layers."""

    def make(peer: torch_peers.Peer, name: str, n: int, k: int) -> torch.nn.Module:
        return peer(KINDS.get(name, "q4_K"), n, k)

    return {name: (partial(make, peer), False) for name, peer in torch_peers.peers(names).items()}


def figures(name: str, model: Model, operands: Any, layers: int) -> dict[str, Any]:
    """Microseconds a layer of one model."""
    work = partial(model, *operands)
    result: dict[str, Any] = {"model": name, "eager": eager(work)}
    if name in MODELS:
        result["graph by hand"] = turns({name: graph([work]).replay})[name]
    if name in MODELS and "unpacked" not in name:
        step = compiled(model)
        for _ in range(3):
            step(*operands)
        result["reduce-overhead"] = eager(partial(step, *operands))
    return {key: value if key == "model" else round(value / layers, 1) for key, value in result.items()}


if __name__ == "__main__":
    main()
