"""Products on several GPUs beside one: rows left in parts, columns with their sum, a feed-forward block.

    python bench/bench_parallel.py --json parallel.json
    python bench/bench_parallel.py --formats q4_0 --rows 512,4096 --seconds 120
    python bench/bench_parallel.py --devices cpu,cpu --shape 512x256 --rows 1,8   # a try of the program

Times are those of products in a CUDA graph, begun on the first GPU's stream and joined there: the best and
the median of replays, one card and several in turns. x lies on every card beforehand, as it does between the
blocks of a model; "gathered" begins and ends on one card. Up to 64 rows weights are rotated, so that none is
left in the L2. Every product is judged before its time counts: rows of weights drawn by the seed, in float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.base.writing import write_whole
from ggmlq.testing.machine import commit, machine

ROWS = (1, 8, 64, 512, 2048, 4096)
FORMATS = ("q4_0", "q4_K")
FEW, SETS, DRAWN, WORST = (
    64,
    2,
    48,
    3e-4,
)  # rows with rotated weights, how many sets; rows judged, their error
GOALS = {"rows left": (1.4, 1.8), "columns": (None, 1.6)}  # times as fast as one card, few rows and many
Work = Callable[[int], Any]


class Bench:
    """The devices, and what is measured on them."""

    def __init__(self, devices: list[str], shape: tuple[int, int], seed: int) -> None:
        self.devices, (self.wide, self.narrow) = devices, shape
        self.rng = np.random.default_rng(seed)
        self.gpu = devices[0] != "cpu"
        self.figures: list[dict[str, Any]] = []
        self.arrays: dict[Any, Any] = {}  # weights, by what they are

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self.arrays:
            self.arrays[key] = make()
        return self.arrays[key]

    def weights(self, name: str, n: int, k: int, number: int = 0) -> gq.QuantArray:
        """Weights that repeat some random rows: the time of a product does not depend on them."""
        weights: gq.QuantArray = self.cached((name, n, k, number), lambda: self._weights(name, n, k))
        return weights

    def _weights(self, name: str, n: int, k: int) -> gq.QuantArray:
        fmt = gq.formats[name]
        count = min(n, 512)
        blocks = random_blocks(fmt, count, k // fmt.block_size, int(self.rng.integers(1 << 30)))
        raw = np.tile(blocks.view(np.uint8).reshape(count, -1), (-(-n // count), 1))[:n]
        raw.flags.writeable = False
        return gq.QuantArray.from_bytes(raw, name, (n, k))

    def floats(self, m: int, k: int) -> Any:
        x = self.rng.standard_normal((m, k), np.float32)
        if not self.gpu:
            return x
        from ggmlq.cuda.driver import device

        with device.named(self.devices[0]):
            return device.cupy().asarray(x)

    def sync(self) -> None:
        if self.gpu:
            from ggmlq.cuda.driver import device

            for name in self.devices:
                with device.named(name):
                    device.cupy().cuda.runtime.deviceSynchronize()

    def times(self, works: dict[str, Callable[[], Any]], per: int) -> dict[str, list[float]]:
        """Seconds of one of the ``per`` products of each piece of work, in turns."""
        if not self.gpu:
            seconds: dict[str, list[float]] = {name: [] for name in works}
            for _ in range(3):
                for name, work in works.items():
                    begun = time.perf_counter()
                    work()
                    seconds[name].append((time.perf_counter() - begun) / per)
            return seconds
        from bench.on_card import Replays, in_turns

        graphs = {}
        for name, work in works.items():
            try:
                graphs[name] = Replays([work])
            except Exception as failed:  # one that fails does not lose the others
                print(f"  {name}: no graph: {type(failed).__name__}: {str(failed)[:300]}", flush=True)
        runs = in_turns(graphs, 3, 0.05, 0.05)
        return {name: [t / per for t in times] for name, times in runs.items()}

    # --- judging --------------------------------------------------------------------------

    def right(self, what: str, y: Any, x: Any, q: gq.QuantArray) -> bool:
        """True where the product agrees with float64, for rows of weights drawn at random."""
        self.sync()
        rows = np.sort(self.rng.choice(q.shape[0], min(DRAWN, q.shape[0]), replace=False))
        y, x = (np.asarray(a.get() if hasattr(a, "get") else a, np.float64) for a in (y[:, rows], x))
        w = q[rows].dequantize(np.float64)
        scale = (x**2).sum() * (w**2).sum(axis=1) / w.shape[1]
        error = (((y - x @ w.T) ** 2).sum(axis=0) / scale).max()
        if not error <= WORST:
            print(f"  {what}: WRONG, {error:.1e} of a row; its time does not count", flush=True)
            return False
        return True

    def note(self, case: str, m: int, times: dict[str, list[float]], one: str) -> None:
        """Print a line for each way, with how many times as fast as one card it is."""
        base = statistics.median(times[one]) if one in times else None
        for name, seconds in times.items():
            us, best = statistics.median(seconds) * 1e6, min(seconds) * 1e6
            line = {"case": case, "M": m, "of": name, "us": us, "best us": best}
            text = f"{case:24} M={m:<5} {name:22} {us:10.2f} us (best {best:.2f})"
            if base is not None and name != one:
                line["times one card"] = base * 1e6 / us
                text += f"  {line['times one card']:.2f} x one card"
                goal = GOALS.get(name, (None, None))[m >= 512]
                text += "" if goal is None else f" (goal {goal})"
            print(text, flush=True)
            self.figures.append(line)

    # --- what is measured -------------------------------------------------------------------

    def case(self, name: str, m: int) -> None:
        few = m <= FEW
        count, per = (SETS if few else 1), (8 if few else 2)
        with_sums = [None, "nccl"] if self.gpu and len(set(self.devices)) > 1 else [None]
        how = self.captured(m)
        for axis, (n, k) in ((0, (self.wide, self.narrow)), (1, (self.narrow, self.wide))):
            wholes = [self.weights(name, n, k, i) for i in range(count)]
            ones = [self.cached((q, 0), lambda q=q: q.to(self.devices[0])) for q in wholes]
            x, y = self.floats(m, k), self.floats(1, n).repeat(m, 0)
            works: dict[str, Work] = {
                "one card": lambda i, x=x, y=y, ones=ones: gq.linear(x, ones[i], out=y, **how)
            }
            teams: dict[str, list[Any]] = {}
            for sums in with_sums if axis else [None]:
                left = "rows left" if not axis else "columns" if sums is None else "columns by NCCL"
                teams[left] = [self.sharded(q, axis, sums) for q in wholes]
                operand = self.operand(x, teams[left][0])
                works[left] = lambda i, g=operand, s=teams[left]: gq.parallel.linear(g, s[i], **how)
                if sums is None:
                    works["gathered"] = lambda i, x=x, s=teams[left]: gq.linear(x, s[i], **how)
            works = {
                what: work
                for what, work in works.items()
                if self.right(what, gathered(work(0)), x, wholes[0])
            }
            once = {what: self.several(what, work, teams, count, per) for what, work in works.items()}
            self.note(f"{name} {n}x{k}", m, self.times(once, per), "one card")
            for q in (*ones, *(part for arrays in teams.values() for s in arrays for part in (s, *s.parts))):
                q.recorded.clear()  # the graphs are gone

    def captured(self, m: int) -> dict[str, str]:
        """The kernel to name: auto gives many rows to cuBLAS, which CuPy does not record into a graph."""
        return {"kernel": "cuda:mma_bf16"} if self.gpu and m > 512 else {}

    def sharded(self, q: gq.QuantArray, axis: int, sums: str | None = None) -> Any:
        return self.cached((q, axis, sums), lambda: gq.parallel.shard(q, self.devices, axis, sums=sums))

    def operand(self, x: Any, s: Any) -> Any:
        """An operand x as the step before leaves it: whole on every card, or cut as K is."""
        every = gq.parallel.replicate(x, self.devices)
        if s.axis == 0:
            return every
        cut = []
        for (a, b), part in zip(s.spans, every.parts, strict=True):
            with part.device if self.gpu else nullcontext():
                cut.append(part[:, a:b].copy())
        self.sync()
        return gq.parallel.Parts(cut, s.spans, every.team)

    def several(
        self, what: str, work: Work, teams: dict[str, list[Any]], count: int, per: int
    ) -> Callable[[], None]:
        """A function that makes products one after the other, in one run where they stay in parts."""

        def all_of_them() -> None:
            for i in range(per):
                work(i % count)

        if what not in teams:
            return all_of_them

        def in_one_run() -> None:
            with gq.parallel.together(teams[what][0]):
                all_of_them()

        return in_one_run

    def sums(self, m: int) -> None:
        """Measure the all-reduce of [M, narrow] beside NCCL's bare call."""
        if not self.gpu or len(set(self.devices)) < 2:
            return
        from ggmlq.cuda.driver import device
        from ggmlq.cuda.driver.parallel import nccl
        from ggmlq.parallel.team import team_of

        cp, works = device.cupy(), {}
        parts = gq.parallel.replicate(self.floats(m, self.narrow), self.devices).parts
        for sums in ("nccl", "copies"):
            team = team_of(tuple(self.devices), sums)

            def ours(team: Any = team) -> None:
                with team.run(self.devices[0], []) as run:
                    run.fork()
                    for _ in range(4):
                        run.sum(parts)

            works[team.sums] = ours
        library = nccl.library()
        if library is not None:
            works["bare NCCL"] = self.bare(cp, library, parts)
        self.note(f"all-reduce [M, {self.narrow}]", m, self.times(works, 4), "bare NCCL")

    def bare(self, cp: Any, library: Any, parts: Any) -> Callable[[], None]:
        """A function that calls NCCL as its own examples do, on streams joined by events."""
        numbers = [part.device.id for part in parts]
        communicators = library.NcclCommunicator.initAll(numbers)
        others = []
        for number in numbers:
            with cp.cuda.Device(number):
                others.append((cp.cuda.Stream(non_blocking=True), cp.cuda.Event(disable_timing=True)))

        def work() -> None:
            main, begun = cp.cuda.get_current_stream(numbers[0]), others[0][1]
            begun.record(main)
            for stream, _ in others[1:]:
                stream.wait_event(begun)
            for _ in range(4):
                library.groupStart()
                for one, part, (stream, _) in zip(communicators, parts, others, strict=True):
                    at, on = part.data.ptr, main if part is parts[0] else stream
                    one.allReduce(at, at, part.size, library.NCCL_FLOAT32, library.NCCL_SUM, on.ptr)
                library.groupEnd()
            for number, (stream, done) in list(zip(numbers, others, strict=True))[1:]:
                with cp.cuda.Device(number):
                    done.record(stream)
                main.wait_event(done)

        return work

    def feed_forward(self, name: str, m: int) -> None:
        """Measure down(silu(gate(x)) · up(x)): split by rows, then by columns, with one sum."""
        shapes = ((self.wide, self.narrow), (self.wide, self.narrow), (self.narrow, self.wide))
        wholes = [self.weights(name, n, k, i) for (n, k), i in zip(shapes, (0, 1, 0), strict=True)]
        gate, up, down = (self.cached((q, 0), lambda q=q: q.to(self.devices[0])) for q in wholes)
        x = self.floats(m, self.narrow)
        x /= 100  # so that silu is neither 0 nor x everywhere
        silu = gq.parallel.silu
        sharded = [self.sharded(q, axis) for q, axis in zip(wholes, (0, 0, 1), strict=True)]
        every = gq.parallel.replicate(x, self.devices)

        how = self.captured(m)

        def one() -> Any:
            return gq.linear(silu(gq.linear(x, gate, **how)) * gq.linear(x, up, **how), down, **how)

        def all_of_them() -> Any:
            a, b, c = sharded
            with gq.parallel.together(*sharded):
                g, u = (gq.parallel.linear(every, s, **how) for s in (a, b))
                return gq.parallel.linear(g.map(lambda g, u: silu(g) * u, u), c, **how)

        single, several = one(), gathered(all_of_them())
        self.sync()
        rows = slice(0, min(m, 64))
        a, b = (np.asarray(y[rows].get() if self.gpu else y[rows], np.float64) for y in (single, several))
        error = ((a - b) ** 2).sum() / (a**2).sum()
        if not error <= 10 * WORST:
            print(f"  feed-forward: WRONG, {error:.1e}; its time does not count", flush=True)
            return
        works = {"one card": one, "all cards": all_of_them}
        self.note(f"{name} feed-forward", m, self.times(works, 1), "one card")


def gathered(y: Any) -> Any:
    """A result as one array."""
    return y.gather() if isinstance(y, gq.parallel.Parts) else y


def main() -> int:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", default="cuda:0,cuda:1")
    parser.add_argument("--shape", default="28672x8192", help="N x K of rows; of columns K x N")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="of x")
    parser.add_argument("--only", choices=("products", "sums", "block"))
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing further after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    begun = time.perf_counter()
    wide, narrow = map(int, options.shape.split("x"))
    bench = Bench(options.devices.split(","), (wide, narrow), options.seed)
    rows = list(map(int, options.rows.split(",")))
    steps: list[tuple[str, Callable[[], None]]] = []
    for name in options.formats.split(","):
        steps += [("products", lambda name=name, m=m: bench.case(name, m)) for m in rows]
        steps += [("block", lambda name=name, m=m: bench.feed_forward(name, m)) for m in (rows[0], rows[-1])]
    steps[len(steps) // 2 : len(steps) // 2] = [("sums", lambda m=m: bench.sums(m)) for m in rows]
    for kind, step in steps:
        if options.only in (None, kind) and time.perf_counter() - begun < options.seconds:
            step()
    print(f"{time.perf_counter() - begun:.0f} s", flush=True)
    if options.json:
        facts = {**machine(), "commit": commit(), "devices": bench.devices, "figures": bench.figures}
        write_whole(options.json, json.dumps(facts, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
