#!/usr/bin/env python3
"""Measure which kernels are fast on this CPU, and write it to ggmlq/cpu/choice.json for ``kernel="auto"``.

python tools/cpu_choice.py [--formats q4_0 q4_K] [--rows 1 2 3 4] [--turns 7] [--print]

One thread, weights of 4096 × 4096, kernels in turns; of each the shortest time counts. Kernels of one
arithmetic are compared, so that no result depends on the table, and ``cpu:amx``, which loses less. The
order that holds without a table changes only where another kernel is faster by more than the noise. Other
CPUs stay as they are.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from choice_table import ranges, written

import ggmlq as gq
from ggmlq.cpu import choice
from ggmlq.dispatch.ladder import Rung, rungs
from ggmlq.dispatch.problems import Linear
from ggmlq.formats import BlockFormat
from ggmlq.testing.blocks import random_blocks
from ggmlq.testing.machine import commit

SIZE = 4096  # N and K
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 256)  # of activations
LEAST_LEVEL = 4  # rungs below explain
NOISE = 1.1  # so many times as fast is faster
HOPELESS = 4.0  # times the second: not measured again
WHAT = "The fastest kernels, written by tools/cpu_choice.py; ggmlq/cpu/choice.py says how to read it"


def main(arguments: list[str] | None = None) -> None:
    """Measure, print a line a shape, write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--formats", nargs="*", help="names; all that have blocks if not given")
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS), help="rows of activations")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--print", action="store_true", help="print the table, write nothing")
    args = parser.parse_args(arguments)
    gq.set_num_threads(1)
    formats = [gq.formats[name] for name in args.formats or gq.formats]
    fresh = {
        **choice.here()._asdict(), "commit": commit(), "date": time.strftime("%Y-%m-%d"), "threads": 1,
        "linear": [of_format(fmt, args.rows, args.turns) for fmt in formats if isinstance(fmt, BlockFormat)],
    }  # fmt: skip
    known = json.loads(choice.TABLE.read_text())["cpus"] if choice.TABLE.exists() else []
    same = next((cpu for cpu in known if choice.is_of(cpu, choice.here())), {"linear": []})
    measured = {row["format"] for row in fresh["linear"]}
    fresh["linear"] += [row for row in same["linear"] if row["format"] not in measured]
    fresh["linear"].sort(key=lambda row: list(gq.formats).index(row["format"]))
    text = written([fresh, *(cpu for cpu in known if cpu is not same)], WHAT, "cpus")
    if args.print:
        print(text, end="")
    else:
        choice.TABLE.write_text(text)


def of_format(fmt: BlockFormat, rows: Iterable[int], turns: int) -> dict[str, Any]:
    """The entry of one format."""
    blocks = random_blocks(fmt, 64, SIZE // fmt.block_size, seed=1)
    q = gq.QuantArray.from_bytes(np.tile(blocks, (SIZE // 64, 1)).tobytes(), fmt, (SIZE, SIZE))
    found = {}
    for m in rows:
        usual = candidates(Linear(fmt, m, SIZE, SIZE, device="cpu"))
        times = measured(q, m, usual, turns)
        found[m] = order(times)
        shown = ", ".join(f"{name} {1e3 * seconds:.3f}" for name, seconds in times.items())
        changed = "" if found[m] == list(times) else "  changed"
        print(f"{fmt.name:8} M {m:4}  ms: {shown}{changed}", flush=True)
    return {"format": fmt.name, "N": SIZE, "K": SIZE, "up to": ranges(found)}


def candidates(problem: Linear) -> list[Rung]:
    """Rungs that take a problem in the arithmetic that it has without a table, in the order of then."""
    by_name = {rung.name: rung for rung in reversed(rungs("linear", "cpu"))}
    names = dict.fromkeys([*choice.usual(problem), *by_name])
    able = [by_name[name] for name in names if by_name[name].refuses(problem) is None]
    compared = [able[0].arithmetic, *(rung.arithmetic for rung in able if rung.name == choice.MATRIX)]
    return [rung for rung in able if rung.arithmetic in compared and rung.level >= LEAST_LEVEL]


def measured(q: gq.QuantArray, m: int, kernels: list[Rung], turns: int) -> dict[str, float]:
    """Seconds of each, the best of some turns."""
    x = np.random.default_rng(0).standard_normal((m, SIZE), np.float32)
    out = np.empty((m, SIZE), np.float32)
    times = {rung.name: math.inf for rung in kernels}
    for rung in kernels:
        gq.linear(x, q, out=out, kernel=rung.name)  # compiles and prepares
    for _ in range(turns):
        for name, best in times.items():
            if best == math.inf or best <= HOPELESS * sorted(times.values())[:2][-1]:  # each once at least
                times[name] = min(best, *(once(x, q, out, name) for _ in range(3)))
    return times


def once(x: Any, q: gq.QuantArray, out: Any, kernel: str) -> float:
    """Seconds of a product."""
    start = time.perf_counter()
    gq.linear(x, q, out=out, kernel=kernel)
    return time.perf_counter() - start


def order(times: dict[str, float]) -> list[str]:
    """The fastest first; one that came later without a table passes another only if it is clearly faster."""
    ranked: list[str] = []
    for name, seconds in times.items():
        place = len(ranked)
        while place and seconds * NOISE < times[ranked[place - 1]]:
            place -= 1
        ranked.insert(place, name)
    return ranked


if __name__ == "__main__":
    main()
