"""A GRU in integers on the CPU, beside PyTorch's float GRU and its dynamically quantized one.

    python bench/bench_gru.py [--quick] [--json PATH] [--threads 2] [--torch PYTHON]

Time a step of the whole call, floats in and floats out, the best of rounds in which all take turns; that of
PyTorch by the interpreter of ``--torch``, a process that answers on request and sleeps in between, so that
both have the machine to themselves. *Floors*: products at the rate of the bare tile with its weights near,
and bytes of W and R, which each step reads, at the rate at which they come from where they lie.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ggmlq as gq
from ggmlq.base.writing import write_whole
from ggmlq.cpu.machine.jit import jit
from ggmlq.cpu.machine.target import target
from ggmlq.gru.cpu.layout import tile_cell
from ggmlq.gru.cpu.step_loop import GATES, HALVES, ROOM, dots
from ggmlq.testing.machine import commit, machine

Record = dict[str, Any]
CASES = [
    (100, 1, 256, 256),
    (100, 32, 256, 256),
    (100, 1, 128, 128),
    (500, 16, 512, 1024),
    (50, 64, 128, 256),
]
TORCH = """
import sys, time, warnings
warnings.filterwarnings("ignore")
import torch
torch.set_num_threads(int(sys.argv[1]))
class Net(torch.nn.Module):
    def __init__(self, c, h):
        super().__init__()
        self.g = torch.nn.GRU(c, h)
    def forward(self, x):
        return self.g(x)
nets = {}
print(torch.__version__, flush=True)
with torch.inference_mode():
    for line in sys.stdin:
        kind, t, n, c, h, rounds = line.split()
        t, n, c, h = map(int, (t, n, c, h))
        if (kind, c, h) not in nets:
            net = Net(c, h).eval()
            if kind == "int8":
                net = torch.ao.quantization.quantize_dynamic(net, {torch.nn.GRU}, dtype=torch.qint8)
            nets[kind, c, h] = net
        net, x, best = nets[kind, c, h], torch.rand(t, n, c), 1e9
        for _ in range(int(rounds)):
            start = time.perf_counter(); net(x); best = min(best, time.perf_counter() - start)
        print(best, flush=True)
"""


def main() -> None:
    """Measure, print a line a case, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the first two sizes, fewer rounds")
    parser.add_argument("--json", metavar="PATH", help="write the figures and what they were measured on")
    parser.add_argument("--threads", type=int, help="for us and for PyTorch")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch")
    parser.add_argument("--widths", nargs="*", default=["int8", "mixed", "int16"])
    args = parser.parse_args()
    if args.threads:
        gq.set_num_threads(args.threads)
    from ggmlq.base.threads import num_threads

    threads = num_threads()
    python = args.torch or (sys.executable if importlib.util.find_spec("torch") else None)
    peer = Peer(python, threads) if python else None
    results = []
    for case in CASES[: 2 if args.quick else None]:
        for record in measured(case, args.widths, peer, 3 if args.quick else 8):
            results.append({"threads": threads, **record})
            print(*(f"{name}={value}" for name, value in results[-1].items()), flush=True)
    if args.json:
        report = {
            "machine": machine(),
            "commit": commit(),
            "torch": peer and peer.version,
            "results": results,
        }
        write_whole(args.json, json.dumps(report, indent=1) + "\n")


class Peer:
    """PyTorch in a process of its own, which sleeps between calls."""

    def __init__(self, python: str, threads: int) -> None:
        self._process = subprocess.Popen(
            [python, "-c", TORCH, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.version = self._answer()

    def seconds(self, kind: str, case: tuple[int, ...], rounds: int) -> float:
        """The best of a few calls."""
        assert self._process.stdin
        self._process.stdin.write(" ".join(map(str, (kind, *case, rounds))) + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the interpreter of --torch has no torch that runs")
        return line.strip()


def measured(case: tuple[int, ...], widths: list[str], peer: Peer | None, rounds: int) -> Iterator[Record]:
    """Microseconds a step, all in turns."""
    t, n, c, h = case
    rng, reach = np.random.default_rng(0), h**-0.5
    parts = [
        rng.uniform(-reach, reach, shape).astype(np.float32)
        for shape in ((3 * h, c), (3 * h, h), 3 * h, 3 * h)
    ]
    g = gq.GRU(*parts)
    x = rng.uniform(-1, 1, (t, n, c)).astype(np.float32)
    g.observe(x[:20])
    fixed = {name: g.fixed(name) for name in widths}
    best = dict.fromkeys([*widths, *(("float", "dynamic") if peer else ())], np.inf)
    for f in fixed.values():
        f(x)
    for _ in range(rounds):
        for name, f in fixed.items():
            best[name] = min(best[name], *(once(lambda f=f: f(x)) for _ in range(3)))
        if peer:
            for name, kind in (("float", "float"), ("dynamic", "int8")):
                best[name] = min(best[name], peer.seconds(kind, case, 3))
    shown = {f"{name}_us": round(seconds / t * 1e6, 2) for name, seconds in best.items()}
    for name in widths if peer else ():
        shown[f"{name}_times_float"] = round(best["float"] / best[name], 2)
        shown[f"{name}_times_dynamic"] = round(best["dynamic"] / best[name], 2)
    yield {"T": t, "N": n, "C": c, "H": h, **shown, **floors(g.fixed("int8"), n)}


def floors(f: Any, n: int) -> Record:
    """The floors of a step on one thread: products and bytes of the bare tile over W and R, for N rows."""
    cell = f.cells[0]
    layout = tile_cell(cell, f.plan(cell, cell.formats["x"]), target())
    x, h = (np.zeros((n, how.pitch), how.dtype) for how in (layout.x_storage, layout.h_storage))
    sums, multiply = np.empty(ROOM, np.int32), tiles()
    multiply(layout.W, x, sums)
    least = min(once(lambda: (multiply(layout.W, x, sums), multiply(layout.R, h, sums))) for _ in range(200))
    products = n * (layout.W.size + layout.R.size)
    return {
        "tiles_us": round(least * 1e6, 2), "gmac_s": round(products / least / 1e9, 1),
        "gb_s": round((layout.W.nbytes + layout.R.nbytes) / least / 1e9, 1),
    }  # fmt: skip


def tiles() -> Callable[..., Any]:
    """A compiled function that takes the sums of all blocks and does nothing with them."""
    multiply = dots(True, target())

    def all_blocks(slabs: Any, x: Any, sums: Any) -> None:
        for block in range(len(slabs)):
            row = 0
            while row < len(x):
                row += multiply(slabs, block, x, row, len(x) - row, sums)

    kernel: Callable[..., Any] = jit(all_blocks)
    return kernel


def once(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bench_gru(benchmark: Any) -> None:
    """One small case, for the smoke test."""
    assert GATES * HALVES
    benchmark(lambda: list(measured((3, 2, 8, 8), ["int8"], None, 1)))


if __name__ == "__main__":
    main()
