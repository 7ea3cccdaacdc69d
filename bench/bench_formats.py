"""Decoding and encoding of every format beside ggml's own C, by turns in one process.

    python bench/bench_formats.py [--json FILE] [--formats q4_0,q4_K] [--rounds 7]

Figures are million weights a second, the best round of each. ggml's functions run on one thread, so
ours do for the comparison; the same on all threads stands beside it. *Warm* writes into memory that
was written before; *fresh* makes the array, as a call of ``dequantize`` does, and then the system
has to find pages for it. Compiled code is loaded before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.arrays.rows import rows
from ggmlq.base.threads import available, set_num_threads
from ggmlq.base.writing import write_whole
from ggmlq.formats import FORMATS, BlockFormat, Format
from ggmlq.llama.library import Library
from ggmlq.testing.machine import commit, machine

decoding = import_module("ggmlq.ops.dequantize")  # ggmlq.ops has the function of that name
encoding = import_module("ggmlq.ops.quantize")  # ggmlq.ops has the function of that name

COLUMNS = 4096
DECODED = 128  # rows: what is decoded fits the cache, for memory would be the same for both
LARGER = 16  # times that for all threads
ENCODED = {False: 2048, True: 128}  # rows; fewer for an encoder that searches
NO_DECODER = ("q8_1",)  # ggml has none

Work = Callable[[], object]


def main() -> None:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures and what they were measured on")
    parser.add_argument("--formats", default=",".join(chosen()), help="names with commas between")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    figures = {name: measure(FORMATS[name], args.rounds) for name in args.formats.split(",")}
    for name, figure in figures.items():
        print(f"{name:8}", *(f"{what} {rate:.0f}" for what, rate in figure.items()), sep="  ")
    if args.json:
        write_whole(args.json, json.dumps({**surroundings(), "Mw/s": figures}, indent=1) + "\n")


def chosen() -> list[str]:
    """Formats that either side has to work for."""
    return [
        fmt.name for fmt in FORMATS.values() if isinstance(fmt, BlockFormat) or fmt.name in ("f16", "bf16")
    ]


def surroundings() -> dict[str, Any]:
    """The machine, the versions, the commit."""
    return {"commit": commit(), "threads": available(), "libggml": Library().version, "ggmlq": machine()}


def measure(fmt: Format, count: int, height: int = DECODED) -> dict[str, float]:
    """All figures of a format."""
    decoding.PATIENCE = encoding.PATIENCE = 0
    figures = decode_rates(fmt, count, height)
    if fmt.can_quantize:
        figures |= encode_rates(fmt, count, height)
    return {what: round(rate, 1) for what, rate in figures.items()}


def decode_rates(fmt: Format, count: int, height: int) -> dict[str, float]:
    """Rates of decoding blocks to float32."""
    blocks = random_blocks(fmt, height, COLUMNS // fmt.block_size)
    q = gq.QuantArray.from_bytes(blocks, fmt, (height, COLUMNS))
    large = gq.QuantArray.from_bytes(np.tile(blocks, (LARGER, 1)), fmt, (LARGER * height, COLUMNS))
    out, more = np.zeros(q.shape, np.float32), np.zeros(large.shape, np.float32)
    works: dict[str, tuple[int, Work]] = {
        "decode": (1, lambda: decoding.decode_into(q, out)),
        "decode, fresh": (1, q.dequantize),
    }
    shared: dict[str, tuple[int, Work]] = {
        "decode, all threads": (available(), lambda: decoding.decode_into(large, more)),
    }
    if fmt.name not in NO_DECODER:
        ggml, theirs = Library(), np.zeros(q.shape, np.float32)
        works["decode, ggml"] = (1, lambda: ggml.dequantize(q.raw, fmt, out=theirs))
        works["decode, ggml, fresh"] = (1, lambda: ggml.dequantize(q.raw, fmt))
    return rates(works, out.size, count) | rates(shared, more.size, count)


def encode_rates(fmt: Format, count: int, height: int) -> dict[str, float]:
    """Rates of encoding float32 to blocks."""
    search = isinstance(fmt, BlockFormat) and (fmt.pack is None or fmt.search == "always")
    x = rows("normal", ENCODED[search] if height > 2 else height, COLUMNS)
    weights = np.random.default_rng(0).uniform(0.1, 2, COLUMNS).astype(np.float32)
    imatrix = weights if fmt.needs_imatrix else None
    ggml = Library()
    works: dict[str, tuple[int, Work]] = {
        "encode": (1, lambda: gq.quantize(x, fmt, imatrix)),
        "encode, all threads": (available(), lambda: gq.quantize(x, fmt, imatrix)),
        "encode, ggml": (1, lambda: ggml.quantize(x, fmt, imatrix)),
    }
    figures = rates(works, x.size, min(count, 3) if search else count)
    if getattr(fmt, "imatrix", "ignored") != "optional":
        return figures
    few = x[: ENCODED[True]]
    works = {
        "encode, weighted": (1, lambda: gq.quantize(few, fmt, weights)),
        "encode, weighted, all threads": (available(), lambda: gq.quantize(few, fmt, weights)),
        "encode, weighted, ggml": (1, lambda: ggml.quantize(few, fmt, weights)),
    }
    return figures | rates(works, few.size, min(count, 3))


def rates(works: dict[str, tuple[int, Work]], weights: int, count: int) -> dict[str, float]:
    """The best rate of each over ``count`` rounds, in which all take turns."""
    best = dict.fromkeys(works, float("inf"))
    for turn in range(count + 1):
        for name, (threads, work) in works.items():
            set_num_threads(threads)
            start = time.perf_counter()
            work()
            if turn:  # the first loads and compiles
                best[name] = min(best[name], time.perf_counter() - start)
    set_num_threads(available())
    return {name: weights / seconds / 1e6 for name, seconds in best.items()}


def bench_one_format(libggml: Library) -> None:
    """The smoke test of this file; it needs the peer."""
    figures = measure(FORMATS["q4_0"], 1, height=2)
    assert min(figures.values()) > 0


if __name__ == "__main__":
    main()
