"""Host time of products: the cost of a call beside its kernels.

    python bench/bench_host.py [--device cuda|cpu] [--json FILE] [--calls 150] [--rounds 15] [--format q4_0]
                               [--kernel auto]

On a GPU calls run back to back without waiting for it; fewer than its queue holds (1024 launches). The best
round is shown. Beside products: the launch of one kernel, an elementwise operation and a product of CuPy.
On a CPU products are small, on one thread; beside them their kernels alone, and NumPy's product of floats.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.base.writing import write_whole
from ggmlq.dispatch import ladder
from ggmlq.dispatch.problems import Linear
from ggmlq.testing.machine import commit, machine

SIZE = 4096
ROWS = (1, 8, 64, 512)
SMALL = ((64, 256), (256, 256), (256, 512))  # N and K of products on a CPU
Work = Callable[[], object]
LIBRARIES: list[Any] = []  # operators live as long as theirs


def main() -> None:
    """Measure everything, print it as a table of Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--json", type=Path, help="write the figures and what they were measured on")
    parser.add_argument("--calls", type=int, default=150, help="calls of a round")
    parser.add_argument("--rounds", type=int, default=15, help="rounds; the best is shown")
    parser.add_argument("--format", default="q4_0", help="of the weights")
    parser.add_argument("--kernel", default="auto", help="for all products")
    args = parser.parse_args()
    fmt = gq.formats[args.format]
    if args.device == "cpu":
        on_cpu(args, fmt)
        return

    from ggmlq.cuda.driver.device import cupy

    cp = cupy()
    raw = random_blocks(fmt, SIZE, SIZE // fmt.block_size)
    q = gq.QuantArray.from_bytes(raw, fmt, (SIZE, SIZE)).to("cuda")
    print("| M | call | µs of host time |\n|---|---|---|")
    results = []
    for m, work in [(None, single(cp)), *((m, products(cp, q, m, args.kernel)) for m in ROWS)]:
        for name, call in work.items():
            micros = host_time(cp, call, args.calls, args.rounds)
            results.append({"m": m, "call": name, "us": round(micros, 2)})
            print(f"| {m or ''} | {name} | {micros:.1f} |", flush=True)
    if args.json:
        where = {"machine": machine(), "commit": commit(), "format": fmt.name, "n": SIZE, "k": SIZE}
        write_whole(args.json, json.dumps({**where, "results": results}, indent=1) + "\n")


def host_time(cp: Any, call: Work, calls: int, rounds: int) -> float:
    """Microseconds of one call in the best round."""
    times = []
    for _ in range(rounds + 1):
        cp.cuda.runtime.deviceSynchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append(time.perf_counter() - start)
    return min(times[1:]) / calls * 1e6


def on_cpu(args: argparse.Namespace, fmt: Any) -> None:
    """Measure products of a few microseconds on one thread of the CPU."""
    gq.set_num_threads(1)
    print("| N | K | M | call | µs |\n|---|---|---|---|---|")
    results = []
    for n, k in SMALL:
        q = gq.QuantArray.from_bytes(random_blocks(fmt, n, k // fmt.block_size).tobytes(), fmt, (n, k))
        for m in (1, 4):
            for name, call in small_products(q, m, args.kernel).items():
                times = []
                for _ in range(args.rounds + 1):
                    start = time.perf_counter()
                    for _ in range(args.calls):
                        call()
                    times.append(time.perf_counter() - start)
                micros = min(times[1:]) / args.calls * 1e6
                results.append({"n": n, "k": k, "m": m, "call": name, "us": round(micros, 2)})
                print(f"| {n} | {k} | {m} | {name} | {micros:.1f} |", flush=True)
    if args.json:
        where = {"machine": machine(), "commit": commit(), "format": fmt.name, "device": "cpu"}
        write_whole(args.json, json.dumps({**where, "results": results}, indent=1) + "\n")


def small_products(q: gq.QuantArray, m: int, kernel: str) -> dict[str, Work]:
    """Calls of a product in its forms, and its kernels alone, which no saving in Python can shorten."""
    n, k = q.shape
    x = np.random.default_rng(0).standard_normal((m, k), np.float32)
    out, w = np.empty((m, n), np.float32), q.dequantize()
    gq.linear(x, q, kernel=kernel)
    works: dict[str, Work] = {
        "linear(x, q)": lambda: gq.linear(x, q, kernel=kernel),
        "linear(x, q, out=)": lambda: gq.linear(x, q, kernel=kernel, out=out),
        "x @ q.T": lambda: x @ q.T,
        "numpy.matmul, float32": lambda: np.matmul(x, w.T),
    }
    if callable(plan := q.recording((x.shape, kernel, None))):
        at = x.ctypes.data, out.ctypes.data
        works["its kernels alone"] = lambda: plan(*at)
    return works


def single(cp: Any) -> dict[str, Work]:
    """Calls that launch one kernel, by ggmlq and by CuPy."""
    from ggmlq.cuda.driver.device import current, driver
    from ggmlq.cuda.layouts.unpacked import INT8_THREADS, activation_kernel

    kernel, grid, block = activation_kernel(32, False), (1, 1), (INT8_THREADS,)
    x, codes = cp.ones((1, 1024), np.float32), cp.empty((1, 1024), np.int8)
    scale, sums = (cp.empty((32, 1), np.float32) for _ in range(2))
    arguments = (x, codes, scale, sums, 1024, 1, 1024)
    kernel(grid, block, *arguments)
    function, shared, _ = kernel._loaded[current()]
    half = cp.ones((8, SIZE), np.float16)
    return {
        "a kernel of 4 arrays and 3 words": lambda: kernel(grid, block, *arguments),
        "the same, CuPy's function alone": lambda: function(grid, block, arguments, shared),
        "the number of the current device": lambda: driver().device(),
        "cupy.empty": lambda: cp.empty((8, SIZE), np.float32),
        "cupy.add, out": lambda: cp.add(half, half, out=half),
    }


def products(cp: Any, q: gq.QuantArray, m: int, kernel: str) -> dict[str, Work]:
    """Calls of one product in all its forms."""
    x = cp.asarray(np.random.default_rng(0).standard_normal((m, SIZE), np.float32))
    x16, cube, double = x.astype(np.float16), x[None], x.astype(np.float64)
    out, bias = cp.empty((m, SIZE), np.float32), cp.ones(SIZE, np.float32)
    w16 = cp.ones((SIZE, SIZE), np.float16)
    rung = ladder.choose(Linear.here(q.format, m, SIZE, SIZE, device="cuda"), kernel)

    def linear(x: Any, **options: Any) -> Work:
        return lambda: gq.linear(x, q, kernel=kernel, **options)

    works = {
        f"linear(x, q), {rung.name}": linear(x),
        f"{rung.name} alone": lambda: rung.launch(x, q, out),
        "out=": linear(x, out=out),
        "x in float16": linear(x16),
        "x in three axes": linear(cube),
        "bias=, out=": linear(x, bias=bias, out=out),
        "dtype=float16": linear(x, dtype=np.float16),
        "x in float64 (all checks)": linear(double),
        "cupy.matmul, float16": lambda: cp.matmul(x16, w16.T),
    }
    if find_spec("torch"):
        works |= with_torch(m, q, kernel)
    return works | graph(cp, works["out="])


def with_torch(m: int, q: gq.QuantArray, kernel: str) -> dict[str, Work]:
    """Calls with tensors of torch, and torch's own product."""
    import torch

    import ggmlq.torch

    if not torch.cuda.is_available():
        return {}
    x = torch.ones((m, SIZE), device="cuda")
    x16, w16 = x.half(), torch.ones((SIZE, SIZE), dtype=torch.float16, device="cuda")
    x_bf, out, bias = x.bfloat16(), torch.empty((m, SIZE), device="cuda"), x[0]
    out_bf, operators = out.bfloat16(), torch.ops
    layer = ggmlq.torch.Linear(q)
    size = layer.blocks_type, SIZE
    if not hasattr(operators.ggmlq_bench, "nothing"):
        define_nothing(torch)

    def linear(x: Any, **options: Any) -> Work:
        return lambda: gq.linear(x, q, kernel=kernel, **options)

    return {
        "x of torch": linear(x),
        "x of torch, float16": linear(x16),
        "x of torch, bfloat16": linear(x_bf),
        "x of torch, bfloat16, dtype=bfloat16": linear(x_bf, dtype=torch.bfloat16),
        "x of torch, out=": linear(x, out=out),
        "x of torch, bfloat16, out= in bfloat16": linear(x_bf, out=out_bf),
        "x of torch, bias=": linear(x, bias=bias),
        "layer of ggmlq.torch, bfloat16": lambda: layer(x_bf),
        "torch.ops.ggmlq.linear, bfloat16": lambda: operators.ggmlq.linear(x_bf, layer.weight, *size),
        "an operator that does nothing": lambda: operators.ggmlq_bench.nothing(x_bf, layer.weight, *size),
        "torch.empty": lambda: torch.empty((m, SIZE), device="cuda"),
        "torch's linear, float16": lambda: torch.nn.functional.linear(x16, w16),
    }


def define_nothing(torch: Any) -> None:
    """Define an operator on the operands of ``ggmlq.linear`` that gives x: the cost of any operator."""
    library = torch.library.Library("ggmlq_bench", "DEF")
    library.define("nothing(Tensor x, Tensor w, int type, SymInt n) -> Tensor")
    library.impl("nothing", lambda x, *_: x.detach(), "CUDA")
    torch.library.register_autograd(
        "ggmlq_bench::nothing", lambda ctx, dy: (dy, None, None, None),
        setup_context=lambda ctx, inputs, output: None, lib=library,
    )  # fmt: skip
    LIBRARIES.append(library)


def graph(cp: Any, call: Work) -> dict[str, Work]:
    """The replay of a product in a CUDA graph, where it can be recorded."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        call()
        stream.begin_capture()
        try:
            call()
        except NotImplementedError:
            stream.end_capture()
            return {}
        recorded = stream.end_capture()
    return {"replay of a graph": lambda: recorded.launch(stream)}


if __name__ == "__main__":
    main()
