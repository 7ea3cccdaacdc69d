"""The file ggmlq/cpu/choice.json, by which ``kernel="auto"`` chooses on this CPU; it is measured now.

One thread, weights of 4096 × 4096, kernels in turns; the shortest time counts. Kernels of one
arithmetic are compared, so that no result depends on the table, and ``cpu:amx``, which loses less. The
order that holds without a table changes only where another kernel is faster by more than the noise. Other
CPUs stay as they are.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

import ggmlq as gq
from ggmlq.cpu import choice
from ggmlq.dispatch.ladder import Rung, rungs
from ggmlq.dispatch.problems import Linear
from ggmlq.dispatch.tuned import ranked
from ggmlq.formats import BlockFormat
from ggmlq.testing.blocks import random_blocks
from ggmlq.testing.machine import commit

from . import Options, Texts
from .cuda_choice import lines, ranges

SIZE = 4096  # N and K
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 256)  # of activations
LEAST_LEVEL = 4  # rungs below explain
HOPELESS = 4.0  # times the second: not measured again
WHAT = "The fastest kernels, written by tools/table.py cpu_choice; ggmlq/cpu/choice.py says how to read it"
OPTIONS = {
    "--formats": {"nargs": "*", "help": "names (default: all that have blocks)"},
    "--rows": {"nargs": "*", "type": int, "default": list(ROWS), "help": "rows of activations"},
    "--turns": {"type": int, "default": 7, "help": "of all kernels (default: 7)"},
}


def texts(options: Options) -> Texts:
    """The file with this CPU's entry first; a line a shape is printed on the way."""
    gq.set_num_threads(1)
    formats = [gq.formats[name] for name in options.formats or gq.formats]
    formats = [fmt for fmt in formats if isinstance(fmt, BlockFormat)]
    fresh = {
        **choice.here()._asdict(), "commit": commit(), "date": time.strftime("%Y-%m-%d"), "threads": 1,
        "linear": [row_of(fmt, options.rows, options.turns) for fmt in formats],
    }  # fmt: skip
    cpus = json.loads(choice.TABLE.read_text())["cpus"] if choice.TABLE.exists() else []
    same = next((cpu for cpu in cpus if choice.fits(cpu, choice.here())), {"linear": []})
    measured = {row["format"] for row in fresh["linear"]}
    fresh["linear"] += [row for row in same["linear"] if row["format"] not in measured]
    fresh["linear"].sort(key=lambda row: list(gq.formats).index(row["format"]))
    yield "ggmlq/cpu/choice.json", lines([fresh, *(cpu for cpu in cpus if cpu is not same)], WHAT, "cpus")


def row_of(fmt: BlockFormat, rows: Iterable[int], turns: int) -> dict[str, Any]:
    """The row of one format."""
    blocks = random_blocks(fmt, 64, SIZE // fmt.block_size, seed=1)
    q = gq.QuantArray.from_bytes(np.tile(blocks, (SIZE // 64, 1)).tobytes(), fmt, (SIZE, SIZE))
    orders = {}
    for m in rows:
        usual = candidates(Linear(fmt, m, SIZE, SIZE, device="cpu"))
        times = seconds(q, m, usual, turns)
        orders[m] = ranked(times)
        shown = ", ".join(f"{name} {1e3 * best:.3f}" for name, best in times.items())
        changed = "" if orders[m] == list(times) else "  changed"
        print(f"{fmt.name:8} M {m:4}  ms: {shown}{changed}", flush=True)
    return {"format": fmt.name, "N": SIZE, "K": SIZE, "up to": ranges(orders)}


def candidates(problem: Linear) -> list[Rung]:
    """Rungs for a problem in the arithmetic that it has without a table, in the order that it has then."""
    by_name = {rung.name: rung for rung in reversed(rungs("linear", "cpu"))}
    names = dict.fromkeys([*choice.usual(problem), *by_name])
    able = [by_name[name] for name in names if by_name[name].refuses(problem) is None]
    compared = [able[0].arithmetic, *(rung.arithmetic for rung in able if rung.name == choice.MATRIX)]
    return [rung for rung in able if rung.arithmetic in compared and rung.level >= LEAST_LEVEL]


def seconds(q: gq.QuantArray, m: int, kernels: list[Rung], turns: int) -> dict[str, float]:
    """Seconds by kernel, the best of some turns."""
    x = np.random.default_rng(0).standard_normal((m, SIZE), np.float32)
    out = np.empty((m, SIZE), np.float32)

    def once(kernel: str) -> float:
        """Seconds of one product."""
        start = time.perf_counter()
        gq.linear(x, q, out=out, kernel=kernel)
        return time.perf_counter() - start

    times = {rung.name: math.inf for rung in kernels}
    for name in times:
        once(name)  # compiles and prepares
    for _ in range(turns):
        for name, best in times.items():
            if best == math.inf or best <= HOPELESS * sorted(times.values())[:2][-1]:
                times[name] = min(best, *(once(name) for _ in range(3)))
    return times
