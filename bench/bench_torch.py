"""torch on a GPU: a block of Flux's size, a step of LoRA, products of many rows, what a call costs the host.

    python bench/bench_torch.py [--parts block,lora,rows,calls] [--formats q4_0,q8_0,q4_K] [--seconds 100]
                                [--peers all|transformers,diffusers,bitsandbytes,Humming] [--json FILE]

All is bfloat16, beside torch's own layers. Blocks and products are replayed as CUDA graphs, in turns, with
medians; those of products have weights that were not read just before. A step of LoRA is eager, and so are
blocks of other programs' layers (torch_peers.py).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_peers
from torch.nn import functional

import ggmlq.torch as gt
from ggmlq.base.writing import write_whole
from ggmlq.testing.machine import commit, machine

BF16, GPU = torch_peers.BF16, torch_peers.GPU
SHAPES = (
    (3072, 3072), (9216, 3072), (12288, 3072), (3072, 12288), (3072, 15360), (4096, 4096), (4096, 14336),
    (14336, 4096),
)  # fmt: skip
ROWS = 4608, 2048, 1024
COLD = 1 << 28  # bytes of decoded weights between two uses of the same
Make = Callable[[int, int], torch.nn.Module]


def main() -> None:
    """Measure the parts, and print a line for each figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--parts",
        default="block,lora,rows",
        help="of block, lora, rows, calls; in this order, while there is time",
    )
    parser.add_argument("--formats", default="q4_0,q8_0,q4_K", help="of the weights")
    parser.add_argument("--seconds", type=float, default=100, help="after which no further figure is begun")
    parser.add_argument("--peers", default="", help="other programs' layers in a block, of the first format")
    parser.add_argument("--json", type=Path, help="write the figures and what they were measured on")
    args = parser.parse_args()
    end, results = time.monotonic() + args.seconds, []
    parts: dict[str, Callable[[list[str]], Any]] = {
        "rows": rows, "block": partial(block, peers=torch_peers.peers(args.peers)), "lora": lora,
        "calls": calls,
    }  # fmt: skip
    for part in args.parts.split(","):
        figures = iter(parts[part](args.formats.split(",")))
        while time.monotonic() < end and (result := next(figures, None)) is not None:
            results.append({"part": part, **result})
            print(part, *(f"{name} {value}" for name, value in result.items()), sep=", ", flush=True)
    if args.json:
        where = {"machine": machine(), "commit": commit(), "torch": torch.__version__}
        write_whole(args.json, json.dumps({**where, "results": results}, indent=1) + "\n")


def packed(name: str, n: int, k: int) -> gt.Linear:
    """A packed layer whose rows are 64 of random numbers, again and again."""
    return gt.Linear(torch_peers.blocks(name, n, k)).to(GPU)


def dense(n: int, k: int) -> torch.nn.Linear:
    """A layer of torch's own."""
    return torch.nn.Linear(k, n, bias=False, device=GPU, dtype=BF16).requires_grad_(False)


class Unpacked(torch.nn.Module):
    """A layer that decodes its weights for each call, as hosts do without a kernel."""

    def __init__(self, layer: gt.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product with decoded weights."""
        return functional.linear(x, self.layer.dequantize(BF16))


def makers(formats: list[str]) -> dict[str, Make]:
    """The layers that are compared, by their names."""
    return {"dense": dense} | {name: partial(packed, name) for name in formats}


# --- times ----------------------------------------------------------------------------------------


def graph(works: list[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
    """The graph of calls, one after the other; each ran before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for work in works * 2:
            work()
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        for work in works:
            work()
    return recorded


def turns(works: dict[str, Callable[[], Any]], count: int = 1, rounds: int = 9) -> dict[str, float]:
    """Median microseconds of each work, in turns; ``count``: calls in one."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            work()
            start.record()
            work()
            stop.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(stop) * 1e3 / count)
    return {name: round(float(np.median(each)), 1) for name, each in times.items()}


def eager(work: Callable[[], Any], calls: int = 20) -> float:
    """Microseconds of a call, the host's and the GPU's, in the best of four rounds."""
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return round(best / calls * 1e6, 1)


# --- parts ----------------------------------------------------------------------------------------


def rows(formats: list[str]) -> Any:
    """Products of many rows, and decoding alone."""
    for name in formats:
        for n, k in SHAPES:
            count = max(1, min(4, COLD // (2 * n * k)))
            layers = [packed(name, n, k) for _ in range(count)]
            weights = [layer.dequantize(BF16) for layer in layers]
            for m in ROWS:
                x = torch.randn(m, k, device=GPU, dtype=BF16)
                with torch.no_grad():
                    times = turns({
                        "dense": graph([partial(functional.linear, x, w) for w in weights]).replay,
                        "ours": graph([partial(layer, x) for layer in layers]).replay,
                        "decoding": graph([partial(layer.dequantize, BF16) for layer in layers]).replay,
                    }, count)  # fmt: skip
                share = round(times["dense"] / times["ours"], 3)
                yield {"format": name, "N": n, "K": k, "M": m, "of dense": share, **times}


def block(formats: list[str], peers: dict[str, torch_peers.Peer]) -> Any:
    """The products of a block of Flux's size, 4608 tokens, 3072 wide."""
    width, x = 3072, torch.randn(4608, 3072, device=GPU, dtype=BF16)
    shapes = (3 * width, width), (width, width), (4 * width, width), (width, 4 * width)

    def work(qkv: Any, out: Any, up: Any, down: Any) -> torch.Tensor:
        return out(qkv(x)[:, :width].contiguous()) + down(functional.gelu(up(x)))

    works = {}
    for name, make in makers(formats).items():
        layers = [make(*shape) for shape in shapes]
        works[name] = partial(work, *layers)
        if name == formats[0]:
            works[f"{name}, unpacked each time"] = partial(work, *map(Unpacked, layers))
    with torch.no_grad():
        in_graphs = turns({name: graph([each]).replay for name, each in works.items()}, rounds=25)
        for name, each in works.items():
            share = round(in_graphs["dense"] / in_graphs[name], 3)
            yield {
                "layers": name,
                "us in a graph": in_graphs[name],
                "of dense": share,
                "us eager": eager(each),
            }
        for name, peer in peers.items():
            others = [peer(formats[0], *shape) for shape in shapes]
            yield {"layers": name, "us eager": eager(partial(work, *others), 5)}


class Branch(torch.nn.Module):
    """A layer of torch's own with a branch as that of ``ggmlq.torch.LoRA``."""

    def __init__(self, base: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.base, (n, k) = base, base.weight.shape
        self.a = torch.nn.Parameter(torch.randn(rank, k, device=GPU) / k**0.5)
        self.b = torch.nn.Parameter(torch.zeros(n, rank, device=GPU))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, and the branch."""
        return self.base(x) + functional.linear(functional.linear(x.float(), self.a), self.b).to(x.dtype)


def lora(formats: list[str]) -> Any:
    """A step of LoRA, rank 16, on eight layers of 4096 and 14336, with 2048 tokens."""
    x, base = torch.randn(2048, 4096, device=GPU, dtype=BF16), 0.0
    for name, make in makers(formats).items():
        pairs = [[make(14336, 4096), torch.nn.SiLU(), make(4096, 14336)] for _ in range(4)]
        if name == "dense":
            pairs = [[Branch(up, 16), act, Branch(down, 16)] for up, act, down in pairs]
        model = torch.nn.Sequential(*(torch.nn.Sequential(*pair) for pair in pairs))
        if name != "dense":
            gt.lora_(model, 16)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, 1e-4)
        torch.cuda.reset_peak_memory_stats()
        time_of_step = eager(partial(step, model, optimizer, x), 8) / 1e3
        base = base or time_of_step
        yield {
            "layers": name, "ms": round(time_of_step, 2), "times dense": round(time_of_step / base, 3),
            "MiB held": torch.cuda.memory_allocated() >> 20,
            "MiB at most": torch.cuda.max_memory_allocated() >> 20,
        }  # fmt: skip
        del model, optimizer, trained, pairs
        torch.cuda.empty_cache()


def calls(formats: list[str]) -> Any:
    """Microseconds that the host takes for a product of one row, without waiting for the GPU."""
    size, nothing = 256, torch.library.Library("bench", "DEF")
    nothing.define("nothing(Tensor x) -> Tensor")
    nothing.impl("nothing", torch.empty_like, "CUDA")
    x, plain = torch.randn(1, size, device=GPU, dtype=BF16), dense(size, size)
    works: dict[str, Callable[[], Any]] = {
        "an operator that does nothing": partial(torch.ops.bench.nothing, x),
        "an empty module": partial(torch.nn.Identity(), x),
        "torch.nn.functional.linear": partial(functional.linear, x, plain.weight),
        "torch.nn.Linear": partial(plain, x),
    }
    for name in formats:
        layer = packed(name, size, size)
        works[f"{name}, layer"] = partial(layer, x)
        works[f"{name}, operator"] = partial(torch.ops.ggmlq.linear, x, layer.weight, layer.blocks_type, size)
    with torch.no_grad():
        for name, work in works.items():
            yield {"call": name, "us": host_time(work)}


def host_time(work: Callable[[], Any], count: int = 300) -> float:
    """Microseconds of the host for a call, the fastest of some turns."""
    best = float("inf")
    for _ in range(12):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            work()
        best = min(best, time.perf_counter() - start)
    torch.cuda.synchronize()
    return round(best / count * 1e6, 2)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """One step of training."""
    optimizer.zero_grad()
    (model(x).float() * 1e-3).square().mean().backward()
    optimizer.step()


if __name__ == "__main__":
    main()
