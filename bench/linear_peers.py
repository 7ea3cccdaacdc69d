"""``linear`` on a Hopper card beside Humming's products and cuBLAS on halves, in turns in one process.

    python bench/linear_peers.py --json linear_peers.json    # cells of a seed: drawn.py
    python bench/linear_peers.py --draw 12 --seed 5
    python bench/linear_peers.py --cells 64x4096x14336,300x2560x2048 --formats q4_0
    python bench/linear_peers.py --tiles    # each tile of cuda:warp_specialized, too
    python bench/linear_peers.py --seed 5 --part 2/4 --json 2.json   # on several cards, and --join: parts.py

Humming (``pip install humming-kernels``; with torch, nvcc and CUDA_HOME) multiplies int4 in groups of 32,
beside which both types stand here: it has no groups of 32 with offsets, as q4_K has. torch multiplies weights
of float16. All get the same float16 activations and give float16. Every product is judged before its time
counts.

Times are those of a product in a CUDA graph of several: the median of replays after a rest of 0.1 s, two such
turns each. Weights are rotated over more than 150 MB. Where kernels are compiled at the first call, runs with
``--once`` side by side, each of some rows, have done so before: they multiply once and time nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from bench import ahead, drawn, parts
from bench.engine import random_bytes
from bench.on_card import Replays, in_turns
from bench.scaled_peers import TorchReplays, tensor
from ggmlq.base.writing import write_whole
from ggmlq.cuda.driver import device, served
from ggmlq.cuda.driver.launch import FAMILIES
from ggmlq.cuda.kernels.cost.warp_specialized import TILES
from ggmlq.cuda.ladder.linear import r16_warp_specialized
from ggmlq.testing.machine import commit, machine

GROUP = 32  # of Humming's weights
ROTATED, TURNS, REST = 150e6, 2, 0.1
WORST = 3e-4  # mean squared error beside the mean square


def compiled(formats: set[str]) -> None:
    """Compile the tiles of ``cuda:warp_specialized`` whose code does not come with the package."""
    module, have, tasks = r16_warp_specialized.__name__, device.capability() or (9, 0), []
    for name, i in ahead.kernels_of({module}, formats):
        if name.rpartition(".")[0] != module:
            continue
        kernel = FAMILIES[name].make(*FAMILIES[name].cases[i])
        if kernel.origin is not None and not served.code_of(kernel.origin, have, kernel.exact):
            tasks.append((name, i))
    ahead.compile_all(tasks, have)


def humming(n: int, k: int, copies: int) -> Any:
    """Layers of Humming, and the weights of the first one."""
    import torch
    from humming.layer import HummingLayer

    layers, first = [], None
    for _ in range(copies):
        w = torch.randn((n, k), dtype=torch.float16, device="cuda")
        config = {"dtype": "int4", "weight_scale_group_size": GROUP}
        layer = HummingLayer(shape_n=n, shape_k=k, weight_config=config, torch_dtype=torch.float16).cuda()
        layer.load_from_unquantized(w)
        layer.transform()
        layers.append(layer)
        first = w if first is None else first
    return layers, first


def products(m: int, tiled: bool) -> dict[str, Any]:
    """Ways to multiply: ``auto``, and ``cuda:warp_specialized`` with each tile that m rows fill."""
    ways: dict[str, Any] = {"ggmlq": lambda x, q, y: gq.linear(x, q, out=y)}
    if tiled:
        filled = (tile for tile in TILES if tile.columns < 2 * m and (tile.columns > 64 or m <= 128))
        ways |= {
            f"warp_specialized, {tile}": partial(r16_warp_specialized.launch.launch, tile=tile)
            for tile in filled
        }
    return ways


def contenders(weights: list[Any], layers: Any, dense: list[Any], x: Any, tiled: bool) -> dict[str, Replays]:
    """A graph for each contender, after its result was judged."""
    cp, m = device.cupy(), len(x)
    count = len(weights)
    copies = max(count, 8 if m <= 1024 else 4)
    y, graphs = cp.empty((m, weights[0].shape[0]), np.float16), {}
    want = x.astype(np.float32) @ weights[0].dequantize().T
    for name, product in products(m, tiled).items():
        y.fill(np.nan)
        product(x, weights[0], y)
        wrong = float(((y.astype(np.float32) - want) ** 2).mean() / (want**2).mean())
        if not wrong < WORST:
            print(f"  {name}, {m} rows: {wrong:.2e} WRONG", flush=True)
            continue
        graphs[name] = Replays([partial(product, x, q, y) for q in weights[:count]], copies)
    if layers is not None:
        replicas, first = layers
        x_torch = tensor(x)
        result, want = replicas[0](x_torch).float(), x_torch.float() @ first.float().T
        assert float(((result - want) ** 2).mean() / (want**2).mean()) < 0.05  # of four bits
        graphs["Humming"] = TorchReplays(lambda i: replicas[i](x_torch), count, copies)
    halves, rows = dense, tensor(x)
    graphs["cuBLAS"] = TorchReplays(lambda i: rows @ halves[i].T, len(halves), max(len(halves), copies // 4))
    return graphs


def measured(name: str, cell: drawn.Product, tiled: bool) -> dict[str, Any]:
    """The figures of a cell, which are printed as a line."""
    cp, fmt, (m, n, k) = device.cupy(), gq.formats[name], cell
    first = gq.QuantArray.from_bytes(random_bytes(fmt, n, k, 1), fmt, (n, k)).to("cuda")
    weights = [first, *(first.copy() for _ in range(int(ROTATED / first.nbytes)))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            layers = humming(n, k, len(weights))
    except Exception as failed:
        print(f"  Humming: {type(failed).__name__}: {str(failed)[:200]}", flush=True)
        layers = None
    half = tensor(first.dequantize().astype(np.float16))
    dense = [half, *(half.clone() for _ in range(int(ROTATED / (2 * n * k))))]
    large = float(np.abs(first[:64].dequantize()).max())  # random K-quants can be so large that sums overflow
    x = (cp.random.standard_normal((m, k), dtype=np.float32) / max(1, large)).astype(np.float16)
    times_by_peer = in_turns(contenders(weights, layers, dense, x, tiled), TURNS, 0.02, REST, 10)
    us = {peer: statistics.median(times) * 1e6 for peer, times in times_by_peer.items()}
    ahead = {peer: us[peer] / us["ggmlq"] for peer in ("Humming", "cuBLAS") if peer in us}
    print(
        f"{name} {cell!s:17}  {'  '.join(f'{peer} {value:8.1f} us' for peer, value in us.items())}  "
        f"{2e-6 * m * n * k / us['ggmlq']:5.0f} T/s  "
        + "  ".join(f"{ratio:.2f} x {peer}" for peer, ratio in ahead.items()),
        flush=True,
    )
    return {"format": name, "N": n, "K": k, "M": m, "us": us, "ours is faster by": ahead}


def once(name: str, cell: drawn.Product) -> None:
    """Multiply once, ours and Humming's, so that what is compiled lies on disk."""
    cp, fmt, (m, n, k) = device.cupy(), gq.formats[name], cell
    q = gq.QuantArray.from_bytes(random_bytes(fmt, n, k, 1), fmt, (n, k)).to("cuda")
    x = cp.zeros((m, k), np.float16)
    gq.linear(x, q, out=cp.empty((m, n), np.float16))
    humming(n, k, 1)[0][0](tensor(x))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cells", help="as 64x4096x14336,300x2560x2048: M x N x K, instead of drawn ones")
    drawn.add_options(parser, 20)
    parser.add_argument("--formats", default="q4_0,q4_K")
    parser.add_argument(
        "--tiles", action="store_true", help="cuda:warp_specialized with each of its tiles, too"
    )
    parser.add_argument("--once", action="store_true", help="time nothing: compile, by one product of each")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further product after so many")
    parser.add_argument("--json", type=Path)
    parts.add_options(parser)
    options = parser.parse_args()
    for facts in [parts.joined(options.join)] if options.join else run(options):
        if options.json and facts["figures"]:
            write_whole(options.json, json.dumps(facts, indent=1))
    print(*drawn.shares_of_products(facts["figures"]), sep="\n")
    return parts.status(facts)


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The figures of this run's part and facts about the machine, again after each product."""
    begun, names = time.perf_counter(), options.formats.split(",")
    cells = [drawn.Product(*map(int, text.split("x"))) for text in (options.cells or "").split(",") if text]
    step = max(64, *(gq.formats[name].block_size for name in names))
    cells = cells or drawn.products(options.seed, options.draw, step)
    print("" if options.cells else f"--seed {options.seed}", flush=True)
    if options.tiles:
        compiled(set(names))
    facts: dict[str, Any] = {} if options.once else {**machine(), "commit": commit()}
    facts |= {"seed": None if options.cells else options.seed, "part": options.part}
    facts |= {"figures": [], "failed": []}
    yield facts
    for cell, name in itertools.product(parts.of_part(cells, options.part), names):
        if time.perf_counter() - begun > options.seconds:
            return
        try:
            if options.once:
                once(name, cell)
            else:
                facts["figures"].append(measured(name, cell, options.tiles))
        except Exception as failed:  # what was timed stays
            print(f"  {name} {cell}: {type(failed).__name__}: {str(failed)[:200]}", flush=True)
            facts["failed"].append(f"{name} {cell}")
        yield facts


if __name__ == "__main__":
    sys.exit(main())
