"""Decoders on a GPU: GB/s read and written, of every block format to every kind of floats.

    python bench/bench_values.py [--json FILE] [--formats q4_K,q6_K] [--rounds 9] [--shape 8192 14336]

Times are those of ten launches in a CUDA graph, the median of rounds that go over all kinds of a format in
turns; bytes are those of the blocks and of the values. Before that the values of the first and the last
rows, and of a slice that begins at an odd block, are compared with the host's, bit by bit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.base.writing import write_whole
from ggmlq.cuda.driver import device
from ggmlq.cuda.intrinsics.floats import DTYPES, KINDS
from ggmlq.cuda.kernels.quantize import decode as dequantize
from ggmlq.formats import FORMATS, BlockFormat
from ggmlq.roofs.timing import GpuClock
from ggmlq.testing.machine import commit, machine

LAUNCHES, DRAWN = 10, 4096
BANDWIDTH = 4456  # GB/s that this project measured on an H200


def main() -> None:
    """Check, measure, print and write all formats."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--formats", default=",".join(f.name for f in dequantize.BLOCK_FORMATS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shape", type=int, nargs=2, default=(8192, 14336))
    args = parser.parse_args()
    cp, results = device.cupy(), {}
    for name in args.formats.split(","):
        fmt = FORMATS[name]
        assert isinstance(fmt, BlockFormat)
        results[name] = measured(cp, fmt, tuple(args.shape), args.rounds)
        rates = (f"{kind} {rate:5.0f} ({rate / BANDWIDTH:4.0%})" for kind, rate in results[name].items())
        print(f"{name:8}", *rates, flush=True)
    if args.json:
        card = device.card()
        facts = {"device": card and card.name, "commit": commit(), "ggmlq": machine(), "shape": args.shape}
        write_whole(args.json, json.dumps({**facts, "GB/s": results}, indent=1) + "\n")


def measured(cp: Any, fmt: BlockFormat, shape: tuple[int, int], rounds: int) -> dict[str, float]:
    """GB/s of one format, by kind of values."""
    rows, columns = shape[0], shape[1] // fmt.block_size
    pool = random_blocks(fmt, 1, DRAWN, 1).view(np.uint8).reshape(DRAWN, -1)
    drawn = np.random.default_rng(2).integers(DRAWN, size=rows * columns)
    blocks = cp.asarray(pool)[cp.asarray(drawn)]
    clock, runs = GpuClock(cp), {}
    for kind, size in KINDS.items():
        out = cp.full((rows * columns, fmt.block_size), 7, DTYPES[kind])
        dequantize.decode(fmt, kind, blocks, out)
        check(cp, fmt, kind, blocks, out)
        work = partial(dequantize.decode, fmt, kind, blocks, out)
        runs[kind] = (clock.replay([work] * LAUNCHES), blocks.nbytes + size * out.size, [])
    for _ in range(rounds):
        for run, _, times in runs.values():
            before = clock.now
            run()
            times.append(clock.now - before)
    return {kind: round(1e-9 * moved / statistics.median(times)) for kind, (_, moved, times) in runs.items()}


def check(cp: Any, fmt: BlockFormat, kind: str, blocks: Any, out: Any) -> None:
    """Compare values with the host's, bit by bit."""
    odd = cp.full((5, fmt.block_size), 7, DTYPES[kind])
    dequantize.decode(fmt, kind, blocks[1:6], odd)
    for sample, got in ((blocks[:99], out[:99]), (blocks[-99:], out[-99:]), (blocks[1:6], odd)):
        raw = sample.get()
        q = gq.QuantArray.from_bytes(raw, fmt, (len(raw), fmt.block_size))
        want = q.dequantize(np.float16 if kind == "float16" else np.float32)
        if kind == "bfloat16":
            bits = want.view(np.uint32).astype(np.uint64)
            want = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
        if not np.array_equal(got.get(), want):
            raise RuntimeError(f"{fmt.name} to {kind}: not the host's values")


if __name__ == "__main__":
    main()
