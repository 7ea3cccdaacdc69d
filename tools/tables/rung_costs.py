"""The file ggmlq/cuda/rungs.json, by which ``gq.kernels(card=…)`` estimates the time of kernels on any card.

From bench/results/ladder_h200.json: for each kernel of blocks the weights that a multiprocessor unpacks in a
clock, by the fewest rows of activations, and its operations in a clock, by the most. ggmlq/cuda/cost/roof.py
says how they are used.
"""

from __future__ import annotations

import json

from ggmlq.cuda.cost import roof
from ggmlq.cuda.cost.stage import NORM, SHARE
from ggmlq.dispatch.card import card_named
from ggmlq.formats import FORMATS

from . import RESULTS, Options, Texts, load

FORMAT, N, K = "q4_0", 4096, 14336
WHAT = "Speeds of kernels, by tools/table.py rung_costs; ggmlq/cuda/cost/roof.py says how it is read"
UNITS = {
    "dp4a": ("cuda:vectorized", "cuda:dp4a", "cuda:registers"),
    "int8": ("cuda:mma", "cuda:mma_magic", "cuda:streamk", "cuda:packed", "cuda:gemv_int16", "cuda:mma_q8"),
    "bfloat16": (
        "cuda:dequant_cublas",
        "cuda:dequant_bf16",
        "cuda:gemv",
        "cuda:mma_bf16",
        "cuda:mma_f16",
        "cuda:wgmma",
    ),
}


def texts(options: Options) -> Texts:
    """The file, a line a kernel."""
    run = load(RESULTS / "ladder_h200.json")
    rows = [row for row in run["rows"] if (row["format"], row["N"], row["K"]) == (FORMAT, N, K)]
    times: dict[str, dict[int, float]] = {}
    for row in rows:
        times.setdefault(row["kernel"], {})[row["M"]] = row["us"]
    costs = {name: cost(name, us, run["device"]) for name, us in times.items()}
    head = json.dumps({"what": WHAT, "card": run["device"], "commit": run["commit"]})
    rungs = ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in costs.items())
    lines = [head[:-1] + ', "kernels": {', rungs, "}}"]
    yield "ggmlq/cuda/rungs.json", "\n".join(lines) + "\n"


def cost(kernel: str, us: dict[int, float], device: str) -> dict[str, str | float]:
    """The unit of a kernel, and what it does in a clock."""
    card = card_named("rung_costs", device)
    few, many = min(us), max(us)
    clocks = card.multiprocessors * card.clock * 1e3
    unpacking = _beside(us[few] - roof.START_US, _memory_us(few, card.memory))
    working = _beside(_beside(us[many] - roof.START_US, _memory_us(many, card.memory)), unpacking)
    unit = next((unit for unit, names in UNITS.items() if kernel in names), "float32")
    return {
        "unit": unit,
        "weights": float(f"{N * K / unpacking / clocks:.4g}"),
        "operations": float(f"{2 * many * N * K / working / clocks:.4g}"),
    }


def _memory_us(m: int, memory: float) -> float:
    return (N * K * FORMATS[FORMAT].bits_per_weight / 8 + 4 * m * (N + K)) / 1e6 / (SHARE * memory)


def _beside(us: float, other_us: float) -> float:
    """The time of which ``at_one_time`` and another one make ``us``."""
    return max(us**NORM - other_us**NORM, (us / 2) ** NORM) ** (1 / NORM)
