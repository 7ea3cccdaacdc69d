"""Attention on the CPU beside FLASH_ATTN_EXT of a libggml, in turns on the same keys, values and queries.

    python bench/bench_attention.py [--lib FOLDER] [--types q8_0,q4_0,f16] [--queries 1,16,64,512]
                                    [--positions 4096,16384] [--threads 1,2] [--heads 32,8] [--width 128]
                                    [--kernel auto,cpu:rows,cpu:amx] [--arithmetic bf16]
                                    [--seconds 0.5] [--json FILE]

Kernels and the arithmetic have the names of gq.attention; several kernels are timed in turns, a row each.
Queries are the last ones of the positions, causal; llama.cpp gets that as a mask. Each figure is the fastest
of the runs in so many seconds. "off" is the worst row's error of each, in squares beside float64.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ggmlq as gq
from ggmlq.base.writing import write_whole
from ggmlq.llama.devices import handles
from ggmlq.llama.library import INT, InitParams, Library, P, address

F32, F16, TENSORS = 0, 1, 16
MOST = 1 << 28  # scores that the oracle computes


class Peer:
    """FLASH_ATTN_EXT as a graph of one node on the library's CPU."""

    def __init__(self, library: Library, threads: int) -> None:
        self.symbols = library.symbols
        self.handle = next(
            handle for handle in handles(library.symbols) if handle.device.name.startswith("CPU")
        )
        self.backend = self.symbols.ggml_backend_dev_init(self.handle.dev, None)
        set_threads = self.symbols.procedure(self.handle.reg, "ggml_backend_set_n_threads", None, P, INT)
        set_threads(self.backend, threads)

    def runner(self, q: Any, k: Any, v: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
        """A function that runs the node, and one that gives its result [H, T, D]."""
        s, (heads, queries, width) = self.symbols, q.shape
        positions = k.shape[1]
        size = TENSORS * s.ggml_tensor_overhead() + s.ggml_graph_overhead()
        context = s.ggml_init(InitParams(size, None, True))
        tensors = [
            s.ggml_new_tensor_4d(context, F32, width, queries, heads, 1),
            *(s.ggml_new_tensor_4d(context, x.format.id, width, positions, len(x), 1) for x in (k, v)),
        ]
        data = [q, k.raw, v.raw]
        mask = None
        if queries > 1:
            rows = -(-queries // 64) * 64
            mask = s.ggml_new_tensor_4d(context, F16, positions, rows, 1, 1)
            seen = np.arange(positions) <= np.arange(rows)[:, None] + positions - queries
            tensors.append(mask)
            data.append(np.where(seen, 0, -np.inf).astype(np.float16))
        y = s.ggml_flash_attn_ext(context, *tensors[:3], mask, width**-0.5, 0.0, 0.0)
        kind = s.ggml_backend_dev_buffer_type(self.handle.dev)
        assert s.ggml_backend_alloc_ctx_tensors_from_buft(context, kind)
        for tensor, array in zip(tensors, data, strict=True):
            s.ggml_backend_tensor_set(tensor, address(array), 0, array.nbytes)
        graph = s.ggml_new_graph(context)
        s.ggml_build_forward_expand(graph, y)

        def run() -> None:
            assert not s.ggml_backend_graph_compute(self.backend, graph)

        def result() -> Any:
            out = np.empty((queries, heads, width), np.float32)
            s.ggml_backend_tensor_get(y, address(out), 0, out.nbytes)
            return out.swapaxes(0, 1)

        return run, result


def fastest(runs: list[Callable[[], Any]], seconds: float) -> list[float]:
    """The fastest run of each, taken in turns; the first ones load code and do not count."""
    for run in runs:
        run()
    best, end = [float("inf")] * len(runs), time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end or float("inf") in best:
        for i, run in enumerate(runs):
            begun = time.perf_counter()
            run()
            best[i] = min(best[i], time.perf_counter() - begun)
    return best


def off(y: Any, want: Any) -> float:
    """The worst row's error in squares."""
    return float((((y - want) ** 2).sum(-1) / (want**2).sum(-1)).max())


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A record for each type, length, number of queries, number of threads and kernel."""
    heads, kv_heads = map(int, options.heads.split(","))
    rng, library = np.random.default_rng(0), Library(options.lib, whole=True)
    for threads in map(int, options.threads.split(",")):
        gq.set_num_threads(threads)
        peer = Peer(library, threads)
        for name in options.types.split(","):
            for positions in map(int, options.positions.split(",")):
                k, v = (
                    gq.quantize(
                        rng.standard_normal((1, kv_heads, positions, options.width), np.float32), name
                    )
                    for _ in "kv"
                )
                for queries in map(int, options.queries.split(",")):
                    q = rng.standard_normal((1, heads, queries, options.width), np.float32)
                    size = {"type": name, "positions": positions, "queries": queries, "threads": threads}
                    want = None
                    if heads * queries * positions <= MOST:
                        want = gq.reference.attention(q, k, v, causal=True)[0]
                    for figures in timed(peer, q, k, v, want, options):
                        yield size | figures


def timed(
    peer: Peer, q: Any, k: Any, v: Any, want: Any, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """The figures of each kernel, timed in turns with the others and llama.cpp; errors beside ``want``."""
    outs = {kernel: np.empty_like(q) for kernel in options.kernel.split(",")}
    runs = [
        partial(gq.attention, q, k, v, causal=True, kernel=kernel, arithmetic=options.arithmetic, out=out)
        for kernel, out in outs.items()
    ]
    run, result = peer.runner(q[0], k[0], v[0])
    *ours, theirs = fastest([*runs, run], options.seconds)
    for (kernel, out), seconds in zip(outs.items(), ours, strict=True):
        errors = {} if want is None else {"off": off(out[0], want), "llama_off": off(result(), want)}
        times = {"ms": seconds * 1e3, "llama_ms": theirs * 1e3, "ratio": theirs / seconds}
        yield {"kernel": kernel, **times, **errors}


def check_kernels(options: argparse.Namespace) -> None:
    """End where a kernel cannot be taken here, before anything is timed."""
    q = np.zeros((1, 1, 1, options.width), np.float32)
    for kernel in options.kernel.split(","):
        for name in options.types.split(","):
            try:
                k = gq.quantize(q, name)
                gq.attention(q, k, k, kernel=kernel, arithmetic=options.arithmetic)
            except gq.GGMLQError as error:
                sys.exit(f"bench_attention: --kernel {kernel} --types {name}: {error}")


def main(arguments: list[str] | None = None) -> int:
    """Print a row for each case and kernel; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lib")
    parser.add_argument("--types", default="q8_0,q4_0,f16")
    parser.add_argument("--queries", default="1,16,64,512")
    parser.add_argument("--positions", default="4096,16384")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--heads", default="32,8")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--kernel", default="auto", help="of gq.attention, with commas between (%(default)s)")
    parser.add_argument("--arithmetic", help="of gq.attention")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    check_kernels(options)
    records = []
    print("type   positions queries threads kernel          ms llama.cpp  ratio  off")
    for r in cases(options):
        records.append(r)
        errors = f"{r['off']:.1e} / {r['llama_off']:.1e}" if "off" in r else ""
        print(
            f"{r['type']:6} {r['positions']:9} {r['queries']:7} {r['threads']:7} {r['kernel']:8} "
            f"{r['ms']:9.2f} {r['llama_ms']:9.2f} {r['ratio']:6.2f}  {errors}",
            flush=True,
        )
    if options.json:
        write_whole(options.json, json.dumps(records, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
