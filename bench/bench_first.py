"""The first product of a fresh process: seconds from ``gq.open`` to a result that the host has.

    python bench/bench_first.py [--device cuda|cpu] [--formats q4_0,q8_0,q4_K,q6_K] [--rows 1,64,512]
                                [--json FILE] [--seconds 110] [--peers]

Each figure is a process of its own. "cold": with a cache folder of ggmlq's, and one of the driver's, that are
empty, as on a machine where nothing ever ran; "warm": the next process with the same two. Beside it: all that
the process took, and whether Numba was imported. Files lie in the system's cache.

--peers: the first call of what else multiplies so, each in a process of its own, from its import on: CuPy's
elementwise addition and torch's product of halves, and Humming's and gemlite's products of 4-bit weights
where they are installed (``pip install "humming-kernels[cu13]" gemlite``, which bring torch).

On a CPU also what a process takes that compiles: GGMLQ_PREBUILT=off leaves out the code of the package.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FORMATS, ROWS = "q4_0,q8_0,q4_K,q6_K", "1,64,512"
N, K = 4096, 14336
LIMIT = 120  # seconds of a process
CHILD = """
import json, sys, time
import numpy as np
import ggmlq as gq
path, device, m = sys.argv[1], sys.argv[2], int(sys.argv[3])
x = np.ones((m, {k}), np.float32)
begun = time.perf_counter()
q = gq.open(path)["w"]
if device == "cuda":
    q = q.to("cuda")
    import cupy
    y = gq.linear(cupy.asarray(x), q).get()
else:
    y = gq.linear(x, q)
first = time.perf_counter() - begun
print(json.dumps(dict(seconds=first, numba="numba" in sys.modules, finite=bool(np.isfinite(y).all()))))
"""
PEERS = {
    "cupy, elementwise": "import cupy; x = cupy.ones((64, 4096)); (x + x).get()",
    "torch, linear in float16": (
        "import torch; x = torch.ones(64, 4096, device='cuda').half(); torch.nn.functional.linear(x, x).cpu()"
    ),
    "humming": (
        "import torch, humming.layer as h; l = h.HummingLayer(shape_n=4096, shape_k=4096, "
        "weight_config={'dtype': 'int4', 'group_size': 32}, torch_dtype=torch.float16).cuda(); "
        "l.load_from_unquantized(torch.ones(4096, 4096, device='cuda').half()); l.transform(); "
        "l(torch.ones(64, 4096, device='cuda').half()).cpu()"
    ),
    "gemlite": (
        "import torch; from gemlite.helper import A16W4_MXFP; "
        "w = torch.nn.Linear(4096, 4096, bias=False, device='cuda', dtype=torch.float16); "
        "A16W4_MXFP(dtype=torch.float16).from_linear(w)(torch.ones(64, 4096, device='cuda').half()).cpu()"
    ),
}


def main() -> None:
    """Measure, print a table of Markdown, write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--formats", default=FORMATS, help='of the weights, "all" for all block formats')
    parser.add_argument("--rows", default=ROWS, help="of activations")
    parser.add_argument("--json", type=Path, help="write the figures and what they were measured on")
    parser.add_argument("--seconds", type=float, default=110, help="after which no further row is begun")
    parser.add_argument("--peers", action="store_true", help="the first call of others, too")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    results: list[dict[str, Any]] = []
    print("| format | M | cache | from open, s | process, s | Numba imported |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for row in products(Path(folder), args.device, args.formats, [int(m) for m in args.rows.split(",")]):
            results.append(row)
            figures = f"{row['seconds']:.2f} | {row['process']:.2f} | {'yes' if row['numba'] else 'no'}"
            print(f"| {row['format']} | {row['m']} | {row['cache']} | {figures} |", flush=True)
            if time.monotonic() > end:
                print(f"stopped after {args.seconds:.0f} s; --seconds, --formats or --rows for the others")
                break
    peers = first_calls() if args.peers else {}
    if args.json:
        from ggmlq.base.writing import write_whole
        from ggmlq.testing.machine import commit, machine

        report = {"machine": machine(), "commit": commit(), "n": N, "k": K, "device": args.device}
        write_whole(args.json, json.dumps({**report, "results": results, "peers": peers}, indent=1) + "\n")


def products(folder: Path, device: str, names: str, rows: list[int]) -> Iterator[dict[str, Any]]:
    """Each format and number of rows, with an empty cache and again."""
    import ggmlq as gq
    from ggmlq.arrays.blocks import random_blocks

    every = [fmt.name for fmt in gq.formats.values() if fmt.block_size > 1]
    for name in every if names == "all" else names.split(","):
        fmt = gq.formats[name]
        path = folder / f"{name}.gguf"
        raw = random_blocks(fmt, N, K // fmt.block_size)
        gq.save(path, {"w": gq.QuantArray.from_bytes(raw, fmt, (N, K))})
        for m in rows:
            place = folder / f"{name}-{m}"
            for cache in ("cold", "warm"):
                yield {"format": fmt.name, "m": m, "cache": cache, **one(place, path, device, m)}
        path.unlink()


def one(place: Path, path: Path, device: str, m: int) -> dict[str, Any]:
    """The figures of one process, and how long it took in all."""
    begun = time.perf_counter()
    done = process(CHILD.format(k=K), place, str(path), device, str(m))
    took = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"{path.name}, {m} rows on {device}: {done.stderr.strip()[-2000:]}")
    return {**json.loads(done.stdout.splitlines()[-1]), "process": took}


def process(code: str, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The outcome of a Python process that has caches of its own."""
    place.mkdir(exist_ok=True)
    caches = {"GGMLQ_CACHE_DIR": place / "ggmlq", "CUDA_CACHE_PATH": place / "driver"}
    caches |= {"CUPY_CACHE_DIR": place / "cupy", "TRITON_CACHE_DIR": place / "triton"}
    environment = {k: v for k, v in os.environ.items() if k != "GGMLQ_COMPILE_HERE"}
    environment |= {k: str(v) for k, v in caches.items()}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True,
        check=False, timeout=LIMIT,
    )  # fmt: skip


def first_calls() -> dict[str, Any]:
    """Seconds of the first call of other libraries, with their import; None where one is missing or fails."""
    results: dict[str, Any] = {}
    print("\n| first call of | seconds, with its import |\n|---|---|")
    for name, code in PEERS.items():
        timed = f"import time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
        with tempfile.TemporaryDirectory() as folder:
            try:
                done = process(timed, Path(folder))
                results[name] = float(done.stdout.split()[-1]) if done.returncode == 0 else None
                why = done.stderr.strip().splitlines()[-1:] if done.returncode else []
            except subprocess.TimeoutExpired:
                results[name], why = None, [f"more than {LIMIT} s"]
        print(f"| {name} | {f'{results[name]:.2f}' if results[name] else ' '.join(why)} |", flush=True)
    return results


if __name__ == "__main__":
    main()
