"""The rungs of a GRU in integers on a card: bare barriers, each rung checked, then times; under 100 s.

    python bench/gru_card.py --compile        # without a GPU: machine code into build/gru, some minutes
    python bench/gru_card.py                  # on the card: barriers, check with guarded waits, check, time
    python bench/gru_card.py --only check
    python bench/gru_card.py --only time --rungs grid,cluster --json gru.json

Each rung is checked by a process of its own, with waits that give up (GGMLQ_GUARD_WAITS) and then without,
which is ended after some seconds: a kernel that hangs costs that, and what is right is still timed. Codes are
held against the CPU's, on outputs of poisoned memory, twice.

Times are microseconds a step: of the whole call replayed as a CUDA graph (nothing but the card), and of the
whole call from Python until its results are there, each the median of many; and of the two parts, what x
brings and the steps. The goals are in the table TARGETS.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder
os.environ.setdefault("GGMLQ_COMPILE_HERE", "1")  # before kernels are imported: some are made here

import ggmlq as gq
from bench.on_card import Replays, in_processes
from ggmlq.base.writing import write_whole
from ggmlq.cuda.driver import device
from ggmlq.cuda.driver.launch import Kernel
from ggmlq.cuda.intrinsics import hopper
from ggmlq.cuda.intrinsics.language import cuda, uint32, uint64
from ggmlq.dispatch import ladder
from ggmlq.gru.cuda import call as around
from ggmlq.gru.cuda import encode, plain, project, r2_graph, r3_grid, r4_cluster

ROOT = Path(__file__).parents[1]
os.environ.setdefault("GGMLQ_CACHE_DIR", str(ROOT / "build" / "gru"))  # read when the first kernel is made
RUNGS = ("graph", "grid", "cluster")
TARGETS = {(100, 32, 256, 256): 3.0, (500, 64, 512, 1024): 6.0, (100, 1, 256, 256): 2.0}  # T N C H: us a step
CHECKS = [  # widths, T, N, C, H
    ("int8", 5, 3, 5, 7), ("mixed", 40, 17, 70, 64), ("int8", 70, 32, 256, 256),
    ("mixed", 100, 1, 256, 256), ("mixed", 9, 150, 33, 200), ("int8", 20, 40, 64, 512),
    ("int8", 40, 64, 512, 1024), ("mixed", 3, 9, 8, 1100),
    ("int16", 34, 5, 20, 30),
]  # fmt: skip
warnings.simplefilter("ignore", gq.gru.SaturationWarning)


# --- the bare barriers --------------------------------------------------------------------------


def cluster_barrier() -> Kernel:
    """A kernel of nothing but barriers of a cluster."""
    sync_cluster, arrive_at_cluster, wait_for_cluster = (
        hopper.sync_cluster, hopper.arrive_at_cluster, hopper.wait_for_cluster
    )  # fmt: skip

    def work(steps: Any) -> None:
        sync_cluster()
        i = uint32(0)
        while i < steps:
            arrive_at_cluster()
            wait_for_cluster()
            i = uint32(i + uint32(1))

    return Kernel("gru bare barrier of a cluster", work, uint32, threads=64, least=(9, 0))


def grid_barrier() -> Kernel:
    """A kernel of nothing but barriers of a grid."""
    reach, wait_for_sum = hopper.add_release, hopper.wait_for_sum

    def work(counter: Any, blocks: Any, steps: Any) -> None:
        i = uint32(0)
        while i < steps:
            i = uint32(i + uint32(1))
            cuda.syncthreads()
            if uint32(cuda.threadIdx.x) == uint32(0):
                reach(counter, uint32(1))
                wait_for_sum(counter, uint32(i * blocks))
            cuda.syncthreads()

    return Kernel("gru bare barrier of a grid", work, uint64, uint32, uint32, threads=256, together=True)


def bare() -> dict[str, float]:
    """Microseconds of each bare barrier."""
    cp, steps, figures = device.cupy(), 2000, {}
    cluster, grid = cluster_barrier(), grid_barrier()
    for blocks in (2, 8):
        took = seconds(lambda b=blocks: cluster((8 * b,), (64,), steps, cluster=b))
        figures[f"a cluster of {blocks}"] = took / steps * 1e6
    for blocks in (16, 64, 128):
        counter = cp.zeros(32, np.uint32)

        def run(blocks: int = blocks, counter: Any = counter) -> None:
            counter[...] = 0
            grid((blocks,), (256,), counter, blocks, steps)

        figures[f"{blocks} blocks at a counter"] = seconds(run) / steps * 1e6
    for name, us in figures.items():
        print(f"barrier of {name:24} {us:6.3f} us", flush=True)
    return figures


# --- kernels ------------------------------------------------------------------------------------


def kernels() -> list[Kernel]:
    """All kernels of this program, the longest to compile first."""
    jobs = [r4_cluster.kernel(s) for shapes in r4_cluster.SHAPES.values() for s in shapes]
    jobs += [r3_grid.kernel(s) for shapes in r3_grid.SHAPES.values() for s in shapes]
    jobs += [project.kernel(), cluster_barrier(), grid_barrier()]
    for narrow in (True, False):
        jobs += [plain.one(narrow), plain.project(narrow), encode.kernel("float32", narrow, False)]
    jobs += [encode.last_states_copier()]
    return jobs


def compiled(number: int) -> str:
    """The name of one kernel, after compiling it into the cache; other processes call this."""
    listed = kernels()
    listed[number].cubin((9, 0))
    return str(listed[number])


def compile_all(guarded: bool, processes: int) -> None:
    """Compile all kernels into the cache; those with guarded waits are kernels of their own."""
    begun = time.perf_counter()
    os.environ["GGMLQ_GUARD_WAITS"] = str(int(guarded))
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for name in pool.imap_unordered(compiled, range(len(kernels()))):
            print(f"{time.perf_counter() - begun:6.0f} s  {name}", flush=True)


# --- checks -------------------------------------------------------------------------------------


def fixed(widths: str, t: int, n: int, c: int, h: int, seed: int) -> tuple[Any, Any]:
    """A FixedGRU that is calibrated on a few rows, and an x for it."""
    rng = np.random.default_rng(seed)
    reach = 1 / np.sqrt(h)
    g = gq.GRU(
        *(rng.uniform(-reach, reach, s).astype(np.float32) for s in ((3 * h, c), (3 * h, h), 3 * h, 3 * h))
    )
    x = rng.uniform(-0.7, 0.8, (t, n, c)).astype(np.float32)
    g.observe(x[:20, :8])
    return g.fixed(widths), x


def rung(name: str) -> Any:
    """The rung of this name."""
    return next(candidate for candidate in ladder.rungs("gru", "cuda") if candidate.name == f"cuda:{name}")


def check(name: str) -> None:
    """Run all cases that a rung takes, twice, and compare with the CPU's codes."""
    cp, served = device.cupy(), 0
    for i, (widths, t, n, c, h) in enumerate(CHECKS):
        f, x = fixed(widths, t, n, c, h, 100 + i)
        want, gpu, dx = f(x, return_codes=True)[0], f.to("cuda"), cp.asarray(x)
        poison = cp.full(1 << 26, 0x5A, cp.uint8)
        del poison
        try:
            y = gpu(dx, return_codes=True, kernel=f"cuda:{name}")[0].get()
        except gq.errors.UnsupportedError:
            continue
        again = gpu(dx, return_codes=True, kernel=f"cuda:{name}")[0].get()
        same, wrong = bool((y == again).all()), int((y != want).sum())
        verdict = "right" if same and not wrong else "WRONG" + ", two runs differ" * (not same)
        where = "" if not wrong else f", first at {np.argwhere(y != want)[0].tolist()}"
        print(f"    {widths:6} T={t} N={n} C={c} H={h}: {wrong} codes differ{where}  {verdict}", flush=True)
        assert verdict == "right"
        served += 1
    assert served


# --- times --------------------------------------------------------------------------------------


def seconds(work: Any, replays: int = 20) -> float:
    """The median time of some work on the card, replayed as a graph."""
    return statistics.median(Replays([work], warm=3).times(0, least=replays))


def called(gpu: Any, dx: Any, name: str, calls: int = 20) -> tuple[float, float]:
    """Median times of a call from Python until all is queued, and until its results are there."""
    cp, queued, ends, wait_for = device.cupy(), [], [], device.wait_for

    def wait(stream: Any) -> None:
        queued.append(time.perf_counter())
        wait_for(stream)

    device.wait_for = wait
    try:
        for i in range(calls + 3):
            begun = time.perf_counter()
            gpu(dx, kernel=f"cuda:{name}")
            cp.cuda.runtime.deviceSynchronize()
            ends.append(time.perf_counter() - begun)
            queued[i:] = [queued[i] - begun]
    finally:
        device.wait_for = wait_for
    return statistics.median(queued[3:]), statistics.median(ends[3:])


def parts(gpu: Any, dx: Any, name: str) -> dict[str, float]:
    """Microseconds a step of a call's parts on the card: the codes of x, x @ W, the steps."""
    steps = {"graph": r2_graph.steps, "grid": r3_grid.steps, "cluster": r4_cluster.steps}.get(name)
    if steps is None:
        return {}
    call = gq.gru.run._call(gpu, 0, dx, None, False, False)
    counters = r3_grid.counters(call, 1) if name == "grid" else 0
    work, t = around.begin_call(call, counters), dx.shape[0]
    count = work.chunk_steps

    def all_steps() -> None:
        if counters:
            work.counters[...] = 0  # a meeting counts on from where it is
        steps(work, 0, count)

    return {
        "codes": seconds(lambda: around.begin_call(call), 5) / t * 1e6,
        "x": seconds(lambda: project.project(work, 0, count), 5) / count * 1e6,
        "steps": seconds(all_steps, 5) / count * 1e6,
    }


def time_all(names: list[str]) -> list[dict[str, Any]]:
    """Microseconds a step, at the shapes of the goals."""
    figures = []
    for (t, n, c, h), goal in TARGETS.items():
        for widths in ("int8", "mixed"):
            f, x = fixed(widths, t, n, c, h, 7)
            gpu, dx = f.to("cuda"), device.cupy().asarray(x)
            for name in reversed(names):
                try:
                    gpu(dx, kernel=f"cuda:{name}")
                    graph = seconds(partial(gpu, dx, kernel=f"cuda:{name}"), 7) / t * 1e6
                    host, whole = called(gpu, dx, name, 12)
                    more = parts(gpu, dx, name)
                except Exception as failed:  # one that fails does not lose the others
                    print(f"{name} {widths} T={t} N={n} C={c} H={h}: {str(failed)[:200]}", flush=True)
                    continue
                figure = {"rung": name, "widths": widths, "T": t, "N": n, "C": c, "H": h, "goal": goal}
                figures.append(
                    {
                        **figure,
                        "graph us": graph,
                        "call us": whole / t * 1e6,
                        "host us a call until queued": host * 1e6,
                        **more,
                    }
                )
                shares = ", ".join(f"{part} {us:.3f}" for part, us in more.items())
                print(
                    f"{name:8} {widths:6} T={t} N={n} C={c} H={h}: {graph:7.3f} us a step in a graph, "
                    f"{whole / t * 1e6:7.3f} from Python (goal {goal}) {shares}; "
                    f"host us a call until queued {host * 1e6:.0f} of {whole * 1e6:.0f}", flush=True,
                )  # fmt: skip
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--compile", action="store_true", help="only make the machine code; needs no GPU")
    parser.add_argument("--processes", type=int, default=min(16, os.cpu_count() or 1), help="that compile")
    parser.add_argument("--only", choices=["barriers", "check", "time"])
    parser.add_argument("--check", metavar="RUNG", help="check one rung in this process")
    parser.add_argument("--rungs", default=",".join(RUNGS))
    parser.add_argument(
        "--unguarded", action="store_true", help="leave out the check with waits that give up"
    )
    parser.add_argument("--seconds", type=float, default=30, help="after which a check is ended")
    parser.add_argument("--json")
    options = parser.parse_args()
    names = options.rungs.split(",")
    if options.compile:
        for guarded in (False, True):
            compile_all(guarded, options.processes)
        return 0
    if options.check:
        check(options.check)
        return 0
    begun, passed, report = time.perf_counter(), names, {}
    if options.only in (None, "barriers"):
        report["barriers"] = bare()
    if options.only in (None, "check"):
        if not options.unguarded:
            passed = in_processes(__file__, passed, True, options.seconds)
        passed = in_processes(__file__, passed, False, options.seconds)
    if options.only in (None, "time"):
        report["steps"] = time_all(passed)
    if options.json:
        write_whole(options.json, json.dumps(report, indent=1))
    took = time.perf_counter() - begun
    print(f"{took:.0f} s in all; {len(passed)} of {len(names)} rungs are right", flush=True)
    return 0 if len(passed) == len(names) else 1


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
