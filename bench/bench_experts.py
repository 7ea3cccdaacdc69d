"""Products with experts on the CPU beside llama.cpp's ``mul_mat_id``: one process each, in turns.

    python bench/bench_experts.py [--quick] [--json FILE] [--types q4_0,q4_K] [--tokens 1,8,64,512]
                                  [--threads N] [--skew 0.5] [--layer]

A figure is the fastest of several rounds, and both sides run in each round: a machine whose speed changes
slows both. Weights are read once a product at least, so that no product takes less than the touched weights
take over the bandwidth, which is measured first (``floor``: with that alone). llama.cpp is measured with its
weights as they are and repacked; the faster counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.base.threads import num_threads
from ggmlq.base.writing import write_whole
from ggmlq.llama import Bridge
from ggmlq.testing.machine import commit, machine

# Experts, used, N, K; and the types that such models come in.
SHAPES = {
    "128/8 768x2048": (128, 8, 768, 2048, ("q4_0", "q4_K", "q8_0", "mxfp4")),
    "128/8 2048x768": (128, 8, 2048, 768, ("q4_0", "q4_K", "q8_0", "mxfp4")),
    "32/4 2880x2880": (32, 4, 2880, 2880, ("mxfp4",)),
    "64/6 1408x2048": (64, 6, 1408, 2048, ("q4_0", "q4_K")),
    "8/2 14336x4096": (8, 2, 14336, 4096, ("q4_0", "q4_K")),
    "8/2 4096x14336": (8, 2, 4096, 14336, ("q4_0", "q4_K")),
}
QUICK = ("128/8 768x2048", "32/4 2880x2880")
TOKENS = (1, 2, 4, 8, 32, 128, 512)
ROUNDS = 5
CALLS = 3


# --- the feed-forward layer of a mixture of experts, in NumPy -----------------------------------

Floats = NDArray[np.float32]


class Layer(NamedTuple):
    """The weights of the layer."""

    router: Floats  # [E, C]
    gate: Any  # [E, F, C]
    up: Any  # [E, F, C]
    down: Any  # [E, C, F]

    def route(self, x: Floats, used: int) -> tuple[NDArray[np.int64], Floats]:
        """The experts of each token, the likeliest first, and their shares: [T, U] both."""
        logits = x @ self.router.T
        likely = np.exp(logits - logits.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        ids = np.argsort(-likely, axis=1, kind="stable")[:, :used]
        return ids, np.take_along_axis(likely, ids, axis=1)

    def __call__(self, x: Floats, used: int, product: Callable[..., Any] = gq.expert_linear) -> Floats:
        """The output [T, C] of the layer for x [T, C]; ``product(x, q, ids)`` multiplies with experts."""
        ids, weights = self.route(x, used)
        gate, up = product(x, self.gate, ids), product(x, self.up, ids)
        hidden = gate / (1 + np.exp(-gate)) * up
        y: Floats = (product(hidden.astype(np.float32), self.down, ids) * weights[..., None]).sum(axis=1)
        return y.astype(np.float32)


class Cell(NamedTuple):
    """One product to measure."""

    shape: str
    name: str
    tokens: int


def main() -> None:
    """Measure, print a table of Markdown, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two shapes, three numbers of tokens")
    parser.add_argument("--json", type=Path, help="write the figures and what they were measured on")
    parser.add_argument("--types", help="q4_0,q4_K (default: those that models of a shape have)")
    parser.add_argument("--tokens", help=f"default: {','.join(map(str, TOKENS))}")
    parser.add_argument("--threads", type=int, default=num_threads(), help="of both")
    parser.add_argument("--skew", type=float, default=0.0, help="this part of all tokens uses expert 0")
    parser.add_argument("--layer", action="store_true", help="a whole layer too: router, SwiGLU, sum")
    args = parser.parse_args()
    gq.set_num_threads(args.threads)
    rate = bandwidth()
    print(f"{machine()['cpu']['name']}, {args.threads} threads, reads {rate:.1f} GB/s\n")
    print("| experts | type | T | used | ggmlq ms | llama.cpp ms | ratio | floor ms |\n" + "|---" * 8 + "|")
    rows = []
    with Bridge() as bridge:
        for row in measured(bridge, args, rate):
            rows.append(row)
            shown = (f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values())
            print(f"| {' | '.join(shown)} |", flush=True)
    if args.layer:
        layer(args)
    if args.json:
        facts = {"machine": machine(), "commit": commit(), "threads": args.threads, "read_GBps": rate}
        write_whole(args.json, json.dumps({**facts, "skew": args.skew, "rows": rows}, indent=1) + "\n")


def measured(bridge: Bridge, args: argparse.Namespace, rate: float) -> Iterator[dict[str, Any]]:
    """All cells, weights of a shape and type made once."""
    tokens = [int(t) for t in args.tokens.split(",")] if args.tokens else TOKENS[:: 3 if args.quick else 1]
    for shape in QUICK if args.quick else SHAPES:
        e, u, n, k, usual = SHAPES[shape]
        for name in args.types.split(",") if args.types else usual[: 1 if args.quick else None]:
            if k % gq.formats[name].block_size:
                continue
            q = weights(name, (e, n, k))
            for t in tokens:
                yield cell(bridge, Cell(shape, name, t), q, u, args, rate)


def cell(
    bridge: Bridge, of: Cell, q: gq.QuantArray, used: int, args: argparse.Namespace, rate: float
) -> dict[str, Any]:
    """One product by ggmlq and by llama.cpp, in turns."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((of.tokens, q.shape[2]), np.float32)
    ids = np.argsort(rng.random((of.tokens, len(q))), axis=1)[:, :used]
    skewed = (rng.random(of.tokens) < args.skew) & ~(ids == 0).any(axis=1)
    ids[skewed, 0] = 0
    touched = len(np.unique(ids))
    y = gq.expert_linear(x, q, ids)
    theirs, ours, checked = [np.inf], [np.inf], None
    for i in range(2 if args.quick else ROUNDS):
        for repack in (False, True):
            try:
                measurement = bridge.measure(
                    x, q, ids=ids, threads=args.threads, repack=repack, time_runs=CALLS
                )
            except gq.errors.GGMLQError:  # no repacked layout of this type
                continue
            theirs.append(measurement.fastest)
            if not i:
                checked = max(checked or 0.0, gq.nmse(measurement.y, y))
        ours.append(fastest(lambda: gq.expert_linear(x, q, ids, out=y)))
    if checked is None or not checked < 1e-3:
        raise SystemExit(f"{of}: the two differ, NMSE {checked}: no time is worth anything")
    best, other = min(ours) * 1e3, min(theirs) * 1e3
    floor = touched * q[0].nbytes / rate / 1e6
    return {"experts": of.shape, "type": of.name, "T": of.tokens, "used": touched, "ggmlq_ms": best,
            "llama_ms": other, "ratio": other / best, "floor_ms": floor}  # fmt: skip


def fastest(work: Callable[[], object], calls: int = CALLS) -> float:
    """Seconds of the fastest of a few calls."""
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def weights(name: str, shape: tuple[int, int, int]) -> gq.QuantArray:
    """Blocks of random bits with sane scales."""
    fmt, (e, n, k) = gq.formats[name], shape
    one = np.ascontiguousarray(random_blocks(fmt, n, k // fmt.block_size)).view(np.uint8)
    rolled = [np.roll(one.reshape(n, -1), i, axis=0) for i in range(e)]
    return gq.QuantArray.from_bytes(np.stack(rolled).tobytes(), fmt, shape)


def bandwidth() -> float:
    """GB/s at which all threads read: a product of one row with weights that no cache holds."""
    q = weights("q8_0", (1, 16384, 8192))[0]
    x, y = np.ones((1, 8192), np.float32), np.empty((1, 16384), np.float32)
    gq.linear(x, q, out=y)
    return q.nbytes / fastest(lambda: gq.linear(x, q, out=y), 7) / 1e9


def layer(args: argparse.Namespace) -> None:
    """Times of ggmlq's layer of 128 experts, of which 8 are used."""
    e, c, f = 128, 2048, 768
    rng = np.random.default_rng(0)
    matrices = [weights("q4_0", shape) for shape in ((e, f, c), (e, f, c), (e, c, f))]
    whole = Layer(rng.standard_normal((e, c), np.float32), *matrices)
    print("\n| layer 128/8, C=2048, F=768, q4_0, T | ms |\n|---|---|")
    for t in (1, 8, 64, 512):
        x = rng.standard_normal((t, c), np.float32)
        whole(x, 8)
        print(f"| {t} | {fastest(lambda x=x: whole(x, 8)) * 1e3:.3f} |", flush=True)


if __name__ == "__main__":
    main()
