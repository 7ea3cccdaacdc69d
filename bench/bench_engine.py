"""The default path on a GPU: the rung that ``kernel="auto"`` takes, and the others, at every M.

    python bench/bench_engine.py [--json PATH] [--budget 240] [--formats q4_0 q4_K] [--rungs auto]

Times are those of ``gq.linear(x, q, out=out)`` in a CUDA graph of at least eight, as llama.cpp's were
measured (bench/baseline/ggml_cuda_h200.json): activation handling included, weights rotated over more
than 150 MB up to 128 rows of activations, the median of 12. Up to 4 rows also the plain call. A time
counts only where the products that it made, in poisoned memory, agree with float64. Roofs of the same
run: reading memory, and cuBLAS on halves of the same shape.

A run keeps to its budget, most important first, and says what it left out; the file is written as it
goes, and rows of it that were not measured again stay. ``tools/keep.py`` keeps it, and
``tools/table.py`` writes tables and what ``auto`` takes from it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from bench import engine
from bench.engine import NMSE, ROOF, Activations, Weights, WrongError
from bench.replays import Time, called, replayed
from ggmlq.cuda.driver import device
from ggmlq.dispatch.ladder import Rung, choose, rungs
from ggmlq.dispatch.problems import Linear
from ggmlq.roofs.timing import read_rate
from ggmlq.testing.machine import commit, machine

FORMATS = ("q4_0", "q8_0", "mxfp4", "q4_K", "q6_K")
N, LENGTHS, ROWS = 4096, (14336, 4096), tuple(2**i for i in range(13))
FEW = 128  # rows up to which weights rotate
PLAIN = 4  # rows up to which the call without a graph is measured too
HALVES_FROM = 64  # rows from which cuBLAS is
LEAST_LEVEL = 7  # of rungs that are measured unless others are named
OUT = Path(__file__).parent / "results" / "engine_h200.json"
WHAT = (
    "one linear inside a CUDA graph of 8 or more (way graph), activation handling included, weights rotated "
    "over 160 MB up to 128 rows; way plain: calls one after another; median of 12; least: the shortest"
)


class Cell(NamedTuple):
    """One figure to measure."""

    format: str
    n: int
    k: int
    m: int
    kernel: str  # "auto", a rung, or ROOF
    way: str = "graph"

    def __str__(self) -> str:
        return f"{self.format} {self.n}x{self.k} M={self.m} {self.kernel}{' plain' * (self.way == 'plain')}"

    @property
    def problem(self) -> Linear:
        return Linear.here(gq.formats[self.format], self.m, self.n, self.k, device="cuda")


# --- what to measure, and in which order ------------------------------------------------------


def plan(
    formats: Iterable[str], rows: Iterable[int], names: list[str], lengths: Iterable[int] = LENGTHS
) -> Iterator[Cell]:
    """Roofs, then the default path of all formats, then the other rungs from the highest down."""
    formats, rows, lengths = list(formats), list(rows), list(lengths)
    for k in lengths:
        yield from (Cell("f16", N, k, m, ROOF) for m in rows if m >= HALVES_FROM)
    for k in lengths:
        for name in formats:
            yield from (Cell(name, N, k, m, "auto") for m in rows)
            yield from (Cell(name, N, k, m, "auto", "plain") for m in rows if m <= PLAIN)
    for k in lengths:
        for name in formats:
            for rung in considered(names):
                cells = (Cell(name, N, k, m, rung.name) for m in rows)
                yield from (cell for cell in cells if worthwhile(cell, rung))


def considered(names: list[str]) -> list[Rung]:
    """Rungs to measure besides what auto takes, from the highest down."""
    ladder = rungs("linear", "cuda")[::-1]
    if strange := set(names) - {"auto", "all", *(rung.name for rung in ladder)}:
        raise gq.errors.UnsupportedError(
            f"--rungs {' '.join(strange)}: no such kernel; gq.kernels() lists them"
        )
    if "all" in names:
        return list(ladder)
    return [rung for rung in ladder if (rung.name in names if names else rung.level >= LEAST_LEVEL)]


def worthwhile(cell: Cell, rung: Rung) -> bool:
    """True where the rung takes the problem and is not the one that auto chooses."""
    return rung.refuses(cell.problem) is None and choose(cell.problem) is not rung


# --- measuring --------------------------------------------------------------------------------


class Bench:
    """One run on one card."""

    def __init__(self, cupy: Any, most: int, seed: int) -> None:
        self.cupy, self.most, self.seed = cupy, most, seed
        self._activations: dict[int, Activations] = {}
        self._weights: dict[tuple[str, int, int], Weights] = {}
        self._halves: dict[tuple[int, int], list[Any]] = {}
        cupy.random.seed(seed)

    def activations(self, k: int) -> Activations:
        """Activations for weights of this length; they are made once."""
        if k not in self._activations:
            self._activations[k] = Activations(self.cupy, self.most, k)
        return self._activations[k]

    def weights(self, cell: Cell) -> Weights:
        """Weights for this cell; they are made once."""
        key = (cell.format, cell.n, cell.k)
        if key not in self._weights:
            fmt, count = gq.formats[cell.format], len(self._weights)
            self._weights[key] = Weights(fmt, cell.n, self.activations(cell.k), self.seed + count)
            self.cupy.cuda.Device().synchronize()
        return self._weights[key]

    def forget(self, name: str, n: int, k: int) -> None:
        """Give back the memory of weights that are done with."""
        if self._weights.pop((name, n, k), None):
            self.cupy.get_default_memory_pool().free_all_blocks()

    def halves(self, n: int, k: int) -> list[Any]:
        """Weights in halves for cuBLAS; they are made once."""
        if (n, k) not in self._halves:
            self._halves[n, k] = self.activations(k).halves(n)
        return self._halves[n, k]

    def tried(self, cell: Cell) -> list[engine.Row]:
        """The rows of a cell, or one that says what went wrong."""
        try:
            return list(self.rows(cell))
        except Exception as error:  # of any kind: the other cells are worth having
            self.cupy.cuda.Device().synchronize()  # after an illegal access nothing works: that ends the run
            about = {"format": cell.format, "N": cell.n, "K": cell.k, "M": cell.m, "asked": cell.kernel}
            problem = f"{type(error).__name__}: {error}"[:300]
            return [{**about, "way": cell.way, "kernel": cell.kernel, "failed": problem}]
        finally:
            if weights := self._weights.get((cell.format, cell.n, cell.k)):
                weights.forget()

    def rows(self, cell: Cell) -> Iterator[engine.Row]:
        """The rows of a cell: its own, and after ``auto`` also that of the rung that auto took."""
        took, nmse, nbytes = (self._product if cell.kernel == ROOF else self._linear)(cell)
        kernel = ROOF if cell.kernel == ROOF else choose(cell.problem, cell.kernel).name
        row = {
            "format": cell.format, "N": cell.n, "K": cell.k, "M": cell.m, "asked": cell.kernel,
            "way": cell.way, "kernel": kernel, "us": round(took.us, 2), "least": round(took.least, 2),
            "TFLOPS": round(2e-6 * cell.m * cell.n * cell.k / took.us, 2),
            "weight_GBps": round(1e-3 * nbytes / took.us, 1), "nmse": float(f"{nmse:.2e}"),
        }  # fmt: skip
        if cell.way == "plain":
            row["host_us"] = round(took.host, 2)
        elif not took.graph:
            row["graph"] = False
        yield row
        if cell.kernel == "auto" and cell.way == "graph":
            yield {**row, "asked": kernel}

    def _linear(self, cell: Cell) -> tuple[Time, float, int]:
        weights, m = self.weights(cell), cell.m
        x, copies = self.activations(cell.k).x[:m], weights.copies
        if m > FEW:
            level = choose(cell.problem, cell.kernel).level
            copies = copies[:1] * (1 if level < LEAST_LEVEL else 4 if m > 1024 else 8)
        else:
            copies = copies * -(-8 // len(copies))
        out = self.cupy.empty((len(copies) if m <= FEW else 1, m, cell.n), np.float32)
        work = [
            lambda q=q, y=y: gq.linear(x, q, kernel=cell.kernel, out=y)
            for q, y in zip(copies, cycle(out), strict=False)
        ]
        errors: list[float] = []
        if cell.way == "graph":
            took = replayed(
                self.cupy, work, lambda: out.fill(np.nan), lambda: errors.append(weights.judge(out, m))
            )
        else:
            out.fill(np.nan)
            work[0]()
            errors.append(weights.judge(out[0], m))
            took = called(self.cupy, work * -(-40 // len(work)))
        return took, errors[0], copies[0].nbytes

    def _product(self, cell: Cell) -> tuple[Time, float, int]:
        cp, (m, n) = self.cupy, (cell.m, cell.n)
        x = self.activations(cell.k).x[:m].astype(np.float16)
        weights = self.halves(n, cell.k)[: None if m <= FEW else 1]
        weights = weights * -(-(8 if m <= 1024 else 4) // len(weights))
        out = cp.empty((m, n), np.float16)
        last = weights[-1]
        errors: list[float] = []

        def judge() -> None:
            want = x.astype(np.float32) @ last.astype(np.float32).T
            errors.append(float(((out.astype(np.float32) - want) ** 2).mean() / (want**2).mean()))
            if not errors[0] <= NMSE:
                raise WrongError(f"wrong: cuBLAS, NMSE {errors[0]:.2e}")

        work = [lambda w=w: cp.matmul(x, w.T, out=out) for w in weights]
        return replayed(cp, work, lambda: out.fill(np.nan), judge), errors[0], last.nbytes


# --- the run ----------------------------------------------------------------------------------


def facts() -> dict[str, Any]:
    """The facts of a run: device, driver, date, commit, versions."""
    host = machine()
    gpu = host["gpu"]["devices"][0]
    return {
        "device": gpu["name"], "compute_capability": gpu["compute_capability"],
        "multiprocessors": gpu["multiprocessors"], "driver": driver(), "driver_cuda": gpu["driver_cuda"],
        "date": datetime.now(UTC).date().isoformat(), "commit": commit(), "python": host["python"],
        "packages": {name: version for name, version in host["packages"].items() if version},
    }  # fmt: skip


def driver() -> str | None:
    """The version of the driver, where there is a command that says it."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    return lines[0] if lines else None


def main() -> int:
    """Measure, print a line a figure, write JSON; 1 if something was wrong or failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, default=OUT, metavar="PATH", help="rows are merged into it")
    parser.add_argument("--budget", type=float, default=240, help="seconds, without those of compiling")
    parser.add_argument("--formats", nargs="*", default=FORMATS)
    parser.add_argument("--rows", nargs="*", type=int, default=ROWS, help="values of M")
    parser.add_argument("--lengths", nargs="*", type=int, default=LENGTHS, help="values of K")
    parser.add_argument(
        "--rungs", nargs="*", default=[], metavar="NAME",
        help=f"besides auto: names, 'all', or only 'auto'; those from level {LEAST_LEVEL} on if not given",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=int(np.random.default_rng().integers(1 << 31)))
    args = parser.parse_args()
    try:
        cupy = device.cupy()
    except gq.GGMLQError as error:
        sys.exit(str(error))
    old, run = engine.load(args.json), {**facts(), "seed": args.seed}
    if engine.device_of(old) not in (None, run["device"]):
        sys.exit(f"{args.json}: holds results of {engine.device_of(old)}; name another file with --json")
    cells = list(plan(args.formats, args.rows, args.rungs, args.lengths))
    kernels = {choose(cell.problem, cell.kernel).name for cell in cells if cell.kernel != ROOF}
    from bench.ahead import compile_ahead

    compile_ahead(kernels, {cell.format for cell in cells}, device.capability() or (7, 5))
    deadline = time.monotonic() + args.budget
    run["read_GBps"] = round(read_rate(cupy))
    print(f"{run['device']}, seed {args.seed}: reads {run['read_GBps']} GB/s", flush=True)
    bench = Bench(cupy, max(args.rows), args.seed)
    return 1 if measure(bench, cells, deadline, args.json, old, run) else 0


def measure(
    bench: Bench, cells: list[Cell], deadline: float, path: Path, old: engine.Results, run: dict[str, Any]
) -> int:
    """All cells until the deadline, each printed, the file written every few seconds; how many failed."""
    new: engine.Results = {"what": WHAT, "runs": [run], "rows": []}
    failed, left, written = 0, list(cells), time.monotonic()
    try:
        while left and time.monotonic() < deadline:
            rows = bench.tried(cell := left.pop(0))
            failed += "failed" in rows[0]
            new["rows"] += [{"run": 0, **row} for row in rows]
            print(f"{cell!s:45} {rows[0].get('failed') or line(rows[0])}", flush=True)
            if time.monotonic() > written + 5:
                save(path, old, new, left)
                written = time.monotonic()
    finally:
        save(path, old, new, left)
    print(f"{len(cells) - len(left)} of {len(cells)} measured, {failed} failed", *left_out(left), sep="\n")
    return failed


def line(row: engine.Row) -> str:
    """One figure as a line."""
    figures = f"{row['us']:10.2f} us {row['TFLOPS']:8.2f} TFLOP/s {row['weight_GBps']:8.1f} GB/s"
    return f"{figures}  {row['kernel']}{'' if row.get('graph', True) else ', no graph'}"


def save(path: Path, old: engine.Results, new: engine.Results, left: list[Cell]) -> None:
    """Write the earlier results merged with the new ones."""
    rates = [row["TFLOPS"] for row in new["rows"] if row["asked"] == ROOF and "us" in row]
    new["runs"][0] |= {"cublas_f16_TFLOPS": max(rates, default=None), "left_out": left_out(left)}
    engine.save(path, engine.merged(old, new))


def left_out(left: list[Cell]) -> list[str]:
    """Cells that no time was left for, those of a rung in one line."""
    by_rung: dict[Cell, list[int]] = {}
    for cell in left:
        by_rung.setdefault(cell._replace(m=0), []).append(cell.m)
    return [f"left out: {str(cell).replace(' M=0', '')}, M = {', '.join(map(str, ms))}"
            for cell, ms in by_rung.items()]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
