"""Loading a GGUF file to a GPU, from the system's cache, beside the rate of the link.

    python bench/bench_load.py [--gigabytes 4] [--folder DIR] [--json FILE] [--seconds 45]

Needs a GPU. The file has the tensors of a model of 8 billion weights: 32 times four matrices of
attention and three larger ones in q4_0 with two norms in f32. The roof is measured in the same run:
copies of 256 MiB of locked memory. Every load opens the file anew, so that no page of it is mapped;
its figure is the median of three, the memory of CuPy's pools warm, except where it says cold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import ggmlq as gq
from ggmlq.base.threads import available
from ggmlq.base.writing import write_whole
from ggmlq.cuda.driver import device
from ggmlq.cuda.driver.upload import Link
from ggmlq.gguf import load
from ggmlq.gguf.source import Files
from ggmlq.testing.machine import commit, machine

THREADS = (1, 4, 8, 12, 16)
BUFFERS = (4, 8, 24, 32)  # MiB, with all threads; the usual size is in the rows above
ROUNDS = 3
ROOF_BYTES = 256 << 20
WIDTH, SHARED, WIDER = 4096, 1024, 14336  # K of most tensors, rows of keys and values, rows of the others
LAYERS, LAYER_BYTES = 32, 122_716_160
Row = dict[str, Any]


def main() -> None:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=4.0, help="size of the file, about")
    parser.add_argument("--folder", help="where it is written; a temporary folder if not given")
    parser.add_argument("--json", type=Path, help="write the figures and what they were measured on")
    parser.add_argument("--seconds", type=float, default=45, help="after which no further row is begun")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    try:
        cp = device.cupy()
    except gq.errors.GGMLQError as error:
        sys.exit(str(error))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = str(Path(folder) / "model.gguf")
        make(path, args.gigabytes)
        size, count = sum(q.nbytes for q in gq.open(path).values()), len(gq.open(path))
        print(f"{count} tensors, {size / 1e9:.2f} GB, {available()} cores", flush=True)
        check(path)
        roof = link_rate(cp)
        print(f"locked memory to the GPU: {roof:.1f} GB/s\n", flush=True)
        results = []
        for row in rows(cp, path):
            rate = size / row["seconds"] / 1e9
            results.append({**row, "GBps": round(rate, 2), "share": round(rate / roof, 3)})
            print(f"{row['what']:44} {row['seconds']:7.3f} s {rate:7.2f} GB/s {rate / roof:6.1%}", flush=True)
            if time.monotonic() > end:
                print(f"stopped after {args.seconds:.0f} s; --seconds or --gigabytes for the other rows")
                break
    if args.json:
        report = {"machine": machine(), "commit": commit(), "bytes": size, "tensors": count}
        report |= {"link_GBps": round(roof, 2), "buffer_bytes": load.BUFFER_BYTES, "results": results}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_whole(args.json, json.dumps(report, indent=1) + "\n")


def make(path: str, gigabytes: float) -> None:
    """Write the file and read it once, so that every page lies in the system's cache."""
    layers = max(1, min(LAYERS, round(gigabytes * 1e9 / LAYER_BYTES)))
    raw = np.random.default_rng(0).integers(0, 256, WIDER * WIDTH // 32 * 18 + 4096 * layers, np.uint8)
    norm = np.ones(WIDTH, np.float32)

    def matrix(rows: int, columns: int, layer: int) -> gq.QuantArray:
        first = 4096 * layer  # other bytes in every layer
        return gq.QuantArray.from_bytes(
            raw[first : first + rows * columns // 32 * 18], "q4_0", (rows, columns)
        )

    tensors: dict[str, Any] = {}
    for i in range(layers):
        tensors |= {f"blk.{i}.{name}_norm.weight": norm for name in ("attn", "ffn")}
        tensors |= {f"blk.{i}.attn_{name}.weight": matrix(WIDTH, WIDTH, i) for name in ("q", "output")}
        tensors |= {f"blk.{i}.attn_{name}.weight": matrix(SHARED, WIDTH, i) for name in ("k", "v")}
        tensors |= {f"blk.{i}.ffn_{name}.weight": matrix(WIDER, WIDTH, i) for name in ("gate", "up")}
        tensors[f"blk.{i}.ffn_down.weight"] = matrix(WIDTH, WIDER, i)
    gq.save(path, tensors, {"general.architecture": "llama"})
    with open(path, "rb") as file:
        while file.read(1 << 24):
            pass


def check(path: str) -> None:
    """Compare loaded tensors with the file; this is also CuPy's first use, which takes long."""
    f = gq.open(path)
    names = [*list(f)[:7], *list(f)[-7:]]
    for name, q in f.to("cuda", filter=names.__contains__).items():
        if not np.array_equal(q.raw.get(), f[name].raw):
            sys.exit(f"{name} arrived wrong")


def link_rate(cp: Any) -> float:
    """GB/s from locked memory to the GPU, the best of ten copies."""
    memory = cp.cuda.alloc_pinned_memory(ROOF_BYTES)
    host = np.frombuffer(memory, np.uint8, ROOF_BYTES)
    host[:] = 1
    target = cp.empty(ROOF_BYTES, np.uint8)
    stream = cp.cuda.Stream(non_blocking=True)
    best = np.inf
    for _ in range(10):
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record(stream)
        cp.cuda.runtime.memcpyAsync(
            target.data.ptr, host.ctypes.data, ROOF_BYTES, cp.cuda.runtime.memcpyHostToDevice, stream.ptr
        )
        end.record(stream)
        end.synchronize()
        best = min(best, cp.cuda.get_elapsed_time(start, end) * 1e-3)
    return ROOF_BYTES / best / 1e9


# --- rows -----------------------------------------------------------------------------------


def rows(cp: Any, path: str) -> Iterator[Row]:
    """The rows of the table, the most telling first."""

    def whole() -> object:
        return gq.open(path).to("cuda", progress=False)

    def one_by_one() -> object:
        return {name: cp.asarray(q.raw) for name, q in gq.open(path).items()}

    release(cp)
    yield {"what": "f.to, cold: nothing in CuPy's pools", "seconds": timed(cp, whole)}
    most = available()
    for threads in sorted({min(n, most) for n in THREADS}, reverse=True):
        gq.set_num_threads(threads)
        yield {"what": f"f.to, threads: {threads}", "threads": threads, "seconds": median(cp, whole)}
    gq.set_num_threads(most)
    yield {"what": "cupy.asarray, tensor by tensor", "seconds": median(cp, one_by_one)}
    with replaced(Link, "send", lambda *_: None):
        yield {"what": "f.to, nothing sent: reading alone", "seconds": median(cp, whole)}
    with replaced(load, "fill", lambda *_: None):
        yield {"what": "f.to, nothing read: sending alone", "seconds": median(cp, whole)}
    with replaced(Files, "read", lambda *_: 0):
        yield {"what": "f.to, through the memory map", "seconds": median(cp, whole)}
    for megabytes in BUFFERS:
        with replaced(load, "BUFFER_BYTES", megabytes << 20):
            what = f"f.to, buffers of {megabytes} MiB"
            yield {"what": what, "buffer_bytes": megabytes << 20, "seconds": median(cp, whole)}
        cp.get_default_pinned_memory_pool().free_all_blocks()


@contextmanager
def replaced(place: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of the loader replaced within ``with``."""
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


def timed(cp: Any, work: Callable[[], object]) -> float:
    """Seconds until the arrays may be used; they are dropped after."""
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    arrays = work()
    cp.cuda.Device().synchronize()
    seconds = time.perf_counter() - start
    del arrays
    return seconds


def median(cp: Any, work: Callable[[], object]) -> float:
    """The median time of some rounds, after one that warms up the pools."""
    timed(cp, work)
    return statistics.median(timed(cp, work) for _ in range(ROUNDS))


def release(cp: Any) -> None:
    """Free all memory in CuPy's pools."""
    cp.get_default_memory_pool().free_all_blocks()
    cp.get_default_pinned_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
