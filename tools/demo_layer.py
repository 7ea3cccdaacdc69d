"""The main job on the CPU: quantize a layer, write it to a GGUF file and open that, multiply, check."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import _chart
import _demo_options
import numpy as np
from tqdm import tqdm

import ggmlq as gq
from ggmlq import cache
from ggmlq.cpu.threads import num_threads
from ggmlq.llama import Bridge
from ggmlq.testing.oracle import Judgement, judged
from ggmlq.text import size, table

FORMATS = ("f16", "q8_0", "q6_K", "q5_K", "q4_K", "q4_0", "mxfp4", "q2_K")
RUNS, SECONDS = 7, 0.3  # of a product, both at least: the fastest counts, for others use the machine too
MOST_RUNS = 300  # of llama.cpp
LONG = 4096  # columns from which the bound grows, as the roundings of longer sums in float32 do
PATIENCE = 3.0  # seconds, after which fewer runs are enough
NAME = "a layer in several types"  # of the file; another's file is never replaced
LEGEND = """\
loss      what the type loses: Σ(q − w)² / Σw² over its weights
error     of the kernel: the worst row of weights against the same arithmetic in float64,
          Σ(y − right)² / (Σ‖x‖²·‖w‖² / K); right is up to {bound}
GFLOP/s   of x @ q.T on {threads} thread{s}, the fastest of its runs
llama.cpp {theirs}"""
THEIRS = "GFLOP/s of its CPU backend on as many threads, the better of its two layouts"
NO_PEER = "is not installed here: pip install llama-cpp-python puts its CPU backend beside this"


@dataclass
class Row:
    """What was seen of one type."""

    name: str
    bits: float
    loss: float
    judgement: Judgement
    first: float  # seconds of the first product, which compiles and lays the weights out
    seconds: float
    theirs: float | None  # llama.cpp's seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns its exit status."""
    args = _demo_options.parse(arguments)
    try:
        return show(args.rows, args.columns, args.tokens, args.save)
    except (gq.GGMLQError, MemoryError) as error:
        print(f"tools/demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def show(rows: int, columns: int, tokens: int, path: Path) -> int:
    """Make the layer, open its file, multiply with each type, print what came of it."""
    check_own(path)
    rng = np.random.default_rng(7)
    w = rng.normal(0, 0.02, (rows, columns)).astype(np.float32)
    x = rng.standard_normal((tokens, columns), np.float32)
    print(
        f"ggmlq {gq.__version__}: a layer [{rows}, {columns}] times {tokens} token{'s' * (tokens > 1)}\n",
        flush=True,
    )
    where = cache.root()
    if where is None or not where.exists():
        print(f"nothing is compiled for this CPU yet: a minute or so, kept {kept_in(where)}\n", flush=True)
    with telling(5 * len(FORMATS)) as tell, peer() as ggml:
        layers = {}
        for name in FORMATS:
            tell(f"{name}: encoding")
            layers[name] = gq.quantize(w, name)
        gq.save(path, layers, {"general.name": NAME})
        start = time.perf_counter()
        file = gq.open(path)
        opened = time.perf_counter() - start
        found = [measured(file[name], w, x, ggml, tell) for name in FORMATS]
    print(report(found, 2e-9 * tokens * rows * columns) + "\n")
    bounds = " or ".join(dict.fromkeys(f"{row.judgement.bound:.0e}" for row in reversed(found)))
    theirs, threads = NO_PEER if ggml is None else THEIRS, num_threads()
    print(LEGEND.format(bound=bounds, threads=threads, s="s" * (threads > 1), theirs=theirs))
    print("\n" + "\n".join(afterwards(file, path, opened, sum(row.first for row in found))))
    wrong = [row.name for row in found if not row.judgement.right]
    print(f"\n{'WRONG PRODUCTS: ' + ', '.join(wrong) if wrong else 'all products are right'}")
    return 1 if wrong else 0


def check_own(path: Path) -> None:
    """A file that is there must be an earlier run's."""
    if not path.exists():
        return
    with contextlib.suppress(gq.GGUFError), gq.open(path) as file:
        if file.metadata.get("general.name") == NAME:
            return
    raise gq.GGUFError(
        f"--save {path}: a file is there that no demo made; name another, this one would be lost"
    )


def measured(q: gq.QuantArray, w: Any, x: Any, ggml: Bridge | None, tell: Callable[[str], None]) -> Row:
    """Multiply with one type, check, and time."""
    name = q.format.name
    tell(f"{name}: the first product, which may compile")
    start = time.perf_counter()
    y = x @ q.T
    first = time.perf_counter() - start
    tell(f"{name}: the same in float64")
    judgement = judged(y, x, q)
    judgement = replace(judgement, bound=judgement.bound * max(1, q.shape[1] / LONG))
    loss = float(gq.nmse(np.asarray(q), w))
    tell(f"{name}: timing")
    seconds = settled(lambda: x @ q.T)
    tell(f"{name}: timing llama.cpp" if ggml else f"{name}: done")
    theirs = None if ggml is None else their_seconds(ggml, x, q, seconds)
    return Row(name, q.format.bits_per_weight, loss, judgement, first, seconds, theirs)


def settled(work: Callable[[], object]) -> float:
    """Seconds of the fastest run, of so many that more would hardly be faster."""
    times: list[float] = []
    spent = 0.0
    while (len(times) < RUNS or spent < SECONDS) and spent < PATIENCE:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
        spent += times[-1]
    return min(times)


# --- llama.cpp --------------------------------------------------------------------------------


@contextlib.contextmanager
def peer() -> Iterator[Bridge | None]:
    """llama.cpp's CPU backend, if there is one."""
    with contextlib.ExitStack() as stack:
        bridge = None
        with contextlib.suppress(gq.GGMLQError):
            bridge = stack.enter_context(Bridge())
        yield bridge


def their_seconds(ggml: Bridge, x: Any, q: gq.QuantArray, ours: float) -> float | None:
    """llama.cpp's time for the same product in about as many runs, None if it cannot multiply so."""
    runs, many = [], min(MOST_RUNS, max(RUNS, round(SECONDS / ours)))
    for repack in (False, True):
        with contextlib.suppress(gq.GGMLQError):  # not every type has a second layout
            runs.append(ggml.measure(x, q, threads=num_threads(), repack=repack, time_runs=many).fastest)
    time.sleep(0.1)  # its threads look for more work for a while
    return min(runs, default=None)


# --- on paper ---------------------------------------------------------------------------------


@contextlib.contextmanager
def telling(steps: int) -> Iterator[Callable[[str], None]]:
    """A function that says what comes next, in a line at the foot of a terminal; silent elsewhere."""
    form = "{desc:44}{bar} {elapsed}"
    bar = tqdm(total=steps, leave=False, disable=None, dynamic_ncols=True, bar_format=form)

    def tell(what: str) -> None:
        bar.set_description_str(what)
        bar.update(1)

    with bar:
        yield tell


def report(found: list[Row], operations: float) -> str:
    """A table, with bars of speed beside it where a terminal is wide enough; operations in GFLOP."""
    header = ["type", "bits", "loss", "error", "", "ms", "GFLOP/s"]
    lines = [
        [
            row.name,
            f"{row.bits:.4g}",
            f"{row.loss:.1e}",
            f"{row.judgement.worst:.1e}",
            "right" if row.judgement.right else "WRONG",
            f"{row.seconds * 1e3:.2f}",
            f"{operations / row.seconds:.3g}",
        ]
        for row in found
    ]
    if any(row.theirs is not None for row in found):
        header.append("llama.cpp")
        for line, row in zip(lines, found, strict=True):
            line.append("-" if row.theirs is None else f"{operations / row.theirs:.3g}")
    columns = _chart.room(max(map(len, table(header, lines).splitlines())) + 2)
    if columns:
        rates = [(1 / row.seconds, 1 / row.theirs if row.theirs else None) for row in found]
        most = max(rate for pair in rates for rate in pair if rate is not None)
        marked = f"({_chart.MARK} llama.cpp)" if "llama.cpp" in header else ""
        header.append(marked[:columns])
        for line, (ours, theirs) in zip(lines, rates, strict=True):
            line.append(_chart.bar(ours, most, columns, theirs))
    return table(header, lines)


def afterwards(file: gq.GGUFFile, path: Path, opened: float, first: float) -> list[str]:
    """What was made, and what to try with it."""
    block, where = file["q4_0"].blocks[0, 0], cache.root()
    shown, ggmlq = _from_here(path), Path(sys.executable).with_name("ggmlq")
    command = _from_here(ggmlq) if ggmlq.exists() else f"{_from_here(Path(sys.executable))} -m ggmlq"
    return [
        f"first products took {first:.1f} s in all: they lay weights out, and compile what no earlier run "
        f"has (kept {kept_in(where)})",
        f"{shown}: {len(file)} types, {size(os.path.getsize(path))}, opened in {opened * 1e3:.1f} ms; "
        "the first block of q4_0:",
        f"  d  {block['d']}",
        f"  qs {' '.join(f'{byte:02x}' for byte in block['qs'])}",
        "",
        "try next:",
        f"  {command} info {shown}",
        f"  {command} show {shown} q4_K --block 0",
        f"  {command} doctor",
    ]


def kept_in(where: Path | None) -> str:
    """Where compiled code lies."""
    return "nowhere: GGMLQ_CACHE_DIR switches that off" if where is None else f"in {where}"


def _from_here(path: Path) -> str:
    """A path as one would type it."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
