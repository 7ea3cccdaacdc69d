"""The operands of bench_engine.py on the GPU, the check of their products, and its results as JSON.

There are as many copies of the weights as exceed the cache. The right products with all activations are
computed once in float64, on the GPU too, from values of its decoder; a few rows are compared with the host's
decoder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ggmlq.arrays.array import QuantArray
from ggmlq.arrays.blocks import random_blocks
from ggmlq.base.devices import to_host
from ggmlq.base.writing import write_whole
from ggmlq.formats import Format

ROTATED = 160e6  # bytes of all copies, at least
NMSE, WORST = 2e-4, 1e-2  # of all products, of each one: beside the product of the lengths of its rows


class WrongError(Exception):
    """A product that is not what it should be."""


class Activations:
    """Activations of normal values on the GPU, as many rows as the largest M."""

    def __init__(self, cupy: Any, most: int, k: int) -> None:
        self.cupy, self.x = cupy, cupy.random.standard_normal((most, k), dtype=np.float32)
        self.sizes = (self.x.astype(np.float64) ** 2).sum(axis=1)

    def halves(self, n: int) -> list[Any]:
        """Weights of n rows in halves for cuBLAS, in as many copies as exceed the cache."""
        shape = (n, self.x.shape[1])
        random = self.cupy.random.standard_normal
        copies = 1 + int(ROTATED / (2 * n * shape[1]))
        return [(random(shape, dtype=np.float32) / 64).astype(np.float16) for _ in range(copies)]


class Weights:
    """Copies of one matrix on the card, and its products with all activations in float64."""

    def __init__(self, fmt: Format, n: int, activations: Activations, seed: int) -> None:
        k = activations.x.shape[1]
        here = QuantArray.from_bytes(random_bytes(fmt, n, k, seed), fmt, (n, k))
        first = here.to("cuda")
        self.copies: list[QuantArray] = [first, *(first.copy() for _ in range(int(ROTATED / first.nbytes)))]
        values = first.dequantize()
        if not np.array_equal(to_host(values[:4]), fmt.decode(here.blocks[:4])):
            raise RuntimeError(f"{fmt.name}: the card decodes otherwise than the host; the oracle is no good")
        values = values.astype(np.float64)
        self.want = activations.x.astype(np.float64) @ values.T
        self.sizes = (values**2).sum(axis=1) / k
        self.activations = activations

    def forget(self) -> None:
        """Free the recorded launches of products in a CUDA graph that is not replayed any more."""
        for q in self.copies:
            getattr(q, "recorded", []).clear()

    def judge(self, y: Any, m: int) -> float:
        """The NMSE of products y [..., m, N]; WrongError if it, or the error of one element, is too large."""
        error = (y - self.want[:m]) ** 2
        worst = float((error / (self.activations.sizes[:m, None] * self.sizes)).max())
        nmse = float(error.mean() / (self.want[:m] ** 2).mean())
        if not (nmse <= NMSE and worst <= WORST):
            raise WrongError(f"wrong: NMSE {nmse:.2e} (bound {NMSE:.0e}), worst {worst:.2e} ({WORST:.0e})")
        return nmse


def random_bytes(fmt: Format, n: int, k: int, seed: int) -> Any:
    """The bytes of random weights: blocks drawn from some thousands of similar size; each one matters."""
    rng = np.random.default_rng(seed)
    pool = random_blocks(fmt, 1, 1 << 14, seed)[0]
    size = np.abs(fmt.decode(pool)).reshape(len(pool), -1).max(axis=1)
    middle = np.median(size)
    pool = pool[(size > middle / 8) & (size < middle * 8)]
    return pool[rng.integers(len(pool), size=(n, k // fmt.block_size))].view(np.uint8)


# --- results as a JSON file: rows of figures, and the runs of these rows ------------------------
#     {"what": …, "runs": [{"device": …, "commit": …, "read_GBps": …}],
#      "rows": [{"run": 0, "format": "q4_0", "N": 4096, "K": 14336, "M": 1, "asked": "auto", "way": "graph",
#                "kernel": "cuda:mma_bf16", "us": 12.3}]}
# A row belongs to a run because a share of a roof only means something beside the roof of that run.

Row = dict[str, Any]
Results = dict[str, Any]

KEY = ("format", "N", "K", "M", "asked", "way")
ROOF = "cublas_f16"  # asked for: the product of halves, which belongs to its run like a roof


def merged(old: Results, new: Results) -> Results:
    """New results, and those old rows that were not measured again."""
    fresh = {key(row) for row in new["rows"]}
    old_rows = [row for row in old["rows"] if row["asked"] != ROOF and key(row) not in fresh]
    used = sorted({row["run"] for row in old_rows})
    old_rows = [row for row in old["rows"] if row["asked"] == ROOF and row["run"] in used] + old_rows
    runs = [old["runs"][i] for i in used] + new["runs"]
    rows = [{**row, "run": used.index(row["run"])} for row in old_rows]
    rows += [{**row, "run": row["run"] + len(used)} for row in new["rows"]]
    return {"what": new["what"], "runs": runs, "rows": rows}


def key(row: Row) -> tuple[Any, ...]:
    """The case that a row measures."""
    return tuple(row[name] for name in KEY)


def device_of(results: Results) -> str | None:
    """The card of all runs; results of two cards are two files."""
    return results["runs"][0]["device"] if results["runs"] else None


def load(path: Path) -> Results:
    """The rows of a file; none if there is no file."""
    if not path.exists():
        return {"what": "", "runs": [], "rows": []}
    results: Results = json.loads(path.read_text())
    return results


def save(path: Path, results: Results) -> None:
    """Write all results or nothing, a row a line."""
    lines = [f' "what": {_json(results["what"])},', ' "runs": [']
    lines += _lines(results["runs"])
    lines += [" ],", ' "rows": [', *_lines(results["rows"]), " ]"]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "\n".join(["{", *lines, "}"]) + "\n")


def _lines(records: list[Row]) -> list[str]:
    return [f"  {_json(record)}{',' * (i + 1 < len(records))}" for i, record in enumerate(records)]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
