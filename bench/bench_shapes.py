"""Products of blocks on a GPU over many shapes, each beside the time in which its card could make it.

    python bench/bench_shapes.py --json shapes.json
    python bench/bench_shapes.py --formats q4_0 --columns 5120 --lengths 13824 --rows 1,200 --rungs auto

The floor of a product is the longer of two times: the blocks of its weights over the bandwidth of the card,
its operations over the rate of its tensor cores. Of an H200 4456 GB/s and 790 TFLOP/s were read off; another
card's memory is taken to reach the same share of what its clock and width say, so an H100's 3038 GB/s. A
figure is held against a bound made of the floor, which leaves something for starting:

    rows of x     bound                  aim
    1 … 4         floor ÷ 0.8 + 2 µs     floor ÷ 0.9 + 1.2
    8 … 64        floor ÷ 0.5 + 3        floor ÷ 0.62 + 2
    more          floor ÷ 0.75 + 4       floor ÷ 0.85 + 3

Types of six bits may take 15 % more. Times are those of bench_engine.py: of ``gq.linear`` in a CUDA graph,
activation handling included, weights rotated up to 128 rows, each product judged before its time counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from bench import engine
from bench.bench_engine import FORMATS, Bench, Cell, facts
from bench.on_card import bandwidth
from ggmlq.cuda.driver import device
from ggmlq.cuda.kernels.gemv import launch as _gemv
from ggmlq.cuda.ladder.linear import r13_gemv, r17_gemv_int16
from ggmlq.cuda.layouts.layout import layout_of
from ggmlq.dispatch.ladder import choose, rungs
from ggmlq.formats import BlockFormat

COLUMNS = (896, 2560, 3584, 4096, 5120, 8192, 11008, 18944, 28672, 151936)  # N
LENGTHS, LARGEST = (2560, 4096, 5120, 13824, 14336), 30000  # K; N from which there is but one K
GEMV = r13_gemv.__name__, r17_gemv_int16.__name__
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 200, 256, 333, 512, 777, 2048, 4096)
TENSORS, SIX_BITS = 790e6, 1.15  # operations of a microsecond
WHAT = (
    "one linear inside a CUDA graph of 8 or more, activation handling included, weights rotated over 160 MB "
    "up to 128 rows, the median of 12; floor, bound and aim: bench/bench_shapes.py"
)


def floor(name: str, m: int, n: int, k: int) -> float:
    """Microseconds in which the card reads the blocks, or multiplies."""
    fmt = gq.formats[name]
    return max(n * k // fmt.block_size * fmt.dtype.itemsize / (bandwidth() * 1e-6), 2 * m * n * k / TENSORS)


def bounds(name: str, m: int, least: float) -> tuple[float, float]:
    """The bound and the aim of a product with this floor, in microseconds."""
    (share, more), (aim_share, above) = (
        ((0.8, 2), (0.9, 1.2)) if m < 8 else ((0.5, 3), (0.62, 2)) if m <= 64 else ((0.75, 4), (0.85, 3))
    )
    slack = SIX_BITS if "6" in name else 1.0
    return slack * (least / share + more), slack * (least / aim_share + above)


def plan(args: Any) -> Iterator[Cell]:
    """All figures, those of a matrix together."""
    for n in args.columns:
        for k in args.lengths if n < LARGEST or args.lengths != LENGTHS else (4096,):
            for name in args.formats:
                if k % gq.formats[name].block_size == 0:
                    yield from (Cell(name, n, k, m, rung) for m in args.rows for rung in args.rungs)


def measured(bench: Bench, cell: Cell) -> dict[str, Any]:
    """The row of a figure."""
    row = bench.tried(cell)[0]
    least = floor(cell.format, cell.m, cell.n, cell.k)
    bound, aim = bounds(cell.format, cell.m, least)
    return {**row, "floor": round(least, 2), "bound": round(bound, 2), "aim": round(aim, 2)}


def line(row: dict[str, Any]) -> str:
    """One figure as a line."""
    if "us" not in row:
        return str(row["failed"])
    limit = "aim" if row["us"] <= row["aim"] else "bound" if row["us"] <= row["bound"] else ""
    share = f"{row['us'] / row['bound']:6.2f} × bound {row['floor'] / row['us']:5.0%} of the card"
    return f"{row['us']:9.2f} us {share}  {row['kernel']:18} {limit}"


def summary(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """For each M: how many figures are within their bounds and aims, and the worst."""
    good = [row for row in rows if "us" in row]
    for m, group in groupby(sorted(good, key=lambda row: row["M"]), key=lambda row: row["M"]):
        figures = list(group)
        within = [sum(row["us"] <= row[what] for row in figures) for what in ("bound", "aim")]
        worst = max(figures, key=lambda row: row["us"] / row["bound"])
        where = f"{worst['format']} {worst['N']}x{worst['K']}"
        yield (
            f"M={m:5} {len(figures):4} figures, {within[0]:4} within the bound, {within[1]:4} within the aim"
            f"; worst {worst['us'] / worst['bound']:.2f} × bound: {where} {worst['us']} us {worst['kernel']}"
        )


def compiled(names: set[str], formats: set[str]) -> None:
    """Compile the kernels whose code does not come with the package."""
    from ggmlq.cuda.driver import served
    from ggmlq.cuda.driver.launch import FAMILIES
    from ggmlq.testing import ahead

    modules = {rung.launch.__module__ for rung in rungs("linear", "cuda") if rung.name in names}
    have = device.capability() or (9, 0)
    tasks = []
    for name, i in ahead.kernels_of(modules, formats):
        module, case = name.rpartition(".")[0], FAMILIES[name].cases[i]
        if module not in modules or (module in GEMV and not _has_room(*case)):
            continue
        kernel = FAMILIES[name].make(*case)
        if kernel.origin is None:
            continue
        if not served.code_of(kernel.origin, have, kernel.exact):
            tasks.append((name, i))
    ahead.compile_all(tasks, have)


def _has_room(fmt: BlockFormat, columns: int, span: int, small: bool, fragment_rows: int) -> bool:
    """True where this card has room for so large a stage of ``cuda:gemv``."""
    return _gemv.stage_for(layout_of(fmt), columns, small, fragment_rows).span == span


def numbers(text: str) -> tuple[int, ...]:
    """The numbers of a list with commas."""
    return tuple(int(part) for part in text.split(","))


def words(text: str) -> tuple[str, ...]:
    """The words of a list with commas."""
    return tuple(text.split(","))


def options() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add: Callable[..., Any] = parser.add_argument
    add("--json", type=Path, metavar="PATH", help="rows are merged into this file")
    add("--formats", type=words, default=FORMATS, metavar="NAMES")
    add("--columns", type=numbers, default=COLUMNS, metavar="N,…", help="rows of weights")
    add("--lengths", type=numbers, default=LENGTHS, metavar="K,…", help="columns of weights")
    add("--rows", type=numbers, default=ROWS, metavar="M,…", help="rows of activations")
    add("--rungs", type=words, default=("auto",), metavar="NAMES", help="'auto' and names of kernels")
    add("--budget", type=float, default=500, metavar="S", help="seconds, without those of compiling")
    add("--quiet", action="store_true", help="only the summary")
    add("--seed", type=int, default=int(np.random.default_rng().integers(1 << 31)))
    return parser


def main() -> int:
    """Measure, print a line a figure and the summary, write JSON; 1 if something was wrong or failed."""
    args = options().parse_args()
    try:
        cupy = device.cupy()
    except gq.GGMLQError as error:
        sys.exit(str(error))
    cells = [cell for cell in plan(args) if _serves(cell)]
    compiled({choose(cell.problem, cell.kernel).name for cell in cells}, {cell.format for cell in cells})
    run, rows = {**facts(), "seed": args.seed}, []
    bench, deadline = Bench(cupy, max(args.rows), args.seed), time.monotonic() + args.budget
    for matrix, group in groupby(cells, key=lambda cell: (cell.format, cell.n, cell.k)):
        if time.monotonic() > deadline:
            print(f"no time left for {matrix} and those after it")
            break
        for cell in group:
            row = measured(bench, cell)
            rows.append({"run": 0, **row})
            if not args.quiet or "failed" in row:
                print(f"{cell!s:45} {line(row)}", flush=True)
        bench.forget(*matrix)
    print(*summary(rows), sep="\n")
    if args.json:
        new = {"what": WHAT, "runs": [run], "rows": rows}
        engine.save(args.json, engine.merged(engine.load(args.json), new))
    return int(any("failed" in row for row in rows))


def _serves(cell: Cell) -> bool:
    """True where the kernel of the cell takes its problem."""
    matches = [rung for rung in rungs("linear", "cuda") if rung.name == cell.kernel]
    return not matches or matches[0].refuses(cell.problem) is None


if __name__ == "__main__":
    sys.exit(main())
