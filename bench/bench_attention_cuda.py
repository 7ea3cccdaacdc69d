"""Attention on a GPU beside torch's scaled_dot_product_attention, in turns in one process.

    python bench/bench_attention_cuda.py [--types f16,q8_0,q4_0] [--heads 32,8] [--width 128]
                                         [--cases 1x1024,1x16384,512x4096] [--seconds 0.2] [--json FILE]

A case is queries x positions; queries are the last ones of the positions, causal. Queries and results are
float16 on both sides. Calls are recorded in a CUDA graph, each on a cache of its own, of 300 MB together, so
that keys and values come from memory. torch has float16 keys and values for all types, and its mask is causal
where there are as many queries as positions, or one query; otherwise it computes without a mask, more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

import ggmlq as gq

ROTATED = 300 << 20  # bytes of caches
MOST = 1 << 27  # scores that the oracle computes
BYTES_A_SECOND, RATE = 4.46e12, 0.8e15  # of an H200


def recorded(calls: list[Callable[[], Any]]) -> tuple[Any, Any]:
    """A graph of calls, and its stream."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        calls[0]()
        stream.synchronize()
        stream.begin_capture()
        results = [call() for call in calls]
        graph = stream.end_capture()
    return graph, (stream, results)


def torch_calls(q: Any, caches: list[Any], causal: bool) -> tuple[Any, int]:
    """torch's graph of the same calls."""
    import torch

    to = torch.from_dlpack
    q = to(q)
    tensors = [tuple(to(x.dequantize(np.float16)) for x in pair) for pair in caches]
    kernel = torch.nn.functional.scaled_dot_product_attention
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            kernel(q, *tensors[0], is_causal=causal, enable_gqa=True)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            results = [kernel(q, *pair, is_causal=causal, enable_gqa=True) for pair in tensors]
    return graph.replay, (stream, results)


def microseconds(launch: Callable[[], Any], seconds: float) -> float:
    """The time of a graph, the median of several replays."""
    first, last = cp.cuda.Event(), cp.cuda.Event()
    times = []
    spent = 0.0
    while spent < seconds * 1e6 or len(times) < 5:
        first.record()
        launch()
        last.record()
        last.synchronize()
        times.append(cp.cuda.get_elapsed_time(first, last) * 1e3)
        spent += times[-1]
    return float(np.median(times))


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    heads, kv_heads = (int(n) for n in options.heads.split(","))
    width, rng = options.width, np.random.default_rng(options.seed)
    for case in options.cases.split(","):
        queries, positions = (int(n) for n in case.split("x"))
        q = cp.asarray(rng.standard_normal((1, heads, queries, width)), np.float16)
        for name in options.types.split(","):
            shape = 1, kv_heads, positions, width
            first = [gq.quantize(cp.asarray(rng.standard_normal(shape, np.float32)), name) for _ in "kv"]
            nbytes = sum(x.nbytes for x in first)
            copies = max(2, min(64, ROTATED // nbytes))
            caches = [tuple(x.copy() for x in first) for _ in range(copies)]
            graph, kept = recorded([
                lambda k=k, v=v: gq.attention(q, k, v, causal=True, dtype=np.float16) for k, v in caches
            ])
            stream = kept[0]

            def ours(graph: Any = graph, stream: Any = stream) -> None:
                graph.launch(stream)

            with stream:
                ours()
                time = microseconds(ours, options.seconds) / copies
            off = None
            if heads * queries * positions <= MOST:
                want = gq.reference.attention(q.get(), *(x.to("cpu") for x in first), causal=True)
                off = gq.nmse(kept[1][0].get(), want)
            peer = None
            if options.torch:
                causal = queries == positions
                replay, held = torch_calls(q, caches, causal)
                import torch

                with torch.cuda.stream(held[0]), cp.cuda.ExternalStream(held[0].cuda_stream):
                    replay()
                    peer = microseconds(replay, options.seconds) / copies
                del held, replay
            seen = queries * positions - queries * (queries - 1) / 2
            floor = max(
                (nbytes + 4 * q.size) / BYTES_A_SECOND, 4 * heads * seen * width / RATE
            ) * 1e6
            yield {
                "queries": queries, "positions": positions, "type": name, "us": round(time, 2),
                "floor": round(floor, 2), "torch": peer and round(peer, 2), "off": off,
                "GB/s": round(nbytes / time / 1e3), "TFLOP/s": round(4 * heads * seen * width / time / 1e6, 1),
            }  # fmt: skip
            del graph, kept, caches, first
            cp.get_default_memory_pool().free_all_blocks()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--types", default="f16,q8_0,q4_0")
    parser.add_argument("--heads", default="32,8")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--cases", default="1x1024,1x4096,1x16384,1x65536,16x16384,512x4096,4096x4096")
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--torch", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    for row in rows(options):
        found.append(row)
        print(row, flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
