"""Times of the CUDA rungs of ``scaled_linear``, and of other tiles for the fast ones, in one run.

    python bench/scaled_ladder.py                       # all rungs at three shapes
    python bench/scaled_ladder.py --tiles               # other tiles of mma_int8 and widen, too
    python bench/scaled_ladder.py --shapes 4096x7168x16384 --rungs mma_int8,widen --json out.json

Work is captured in a CUDA graph of several products; the median of some replays counts. Before that, a
rung's result is held against that of the plainest kernel on some rows. Kernels are compiled first, by
several processes, and kept on disk.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from functools import partial
from typing import Any

import ggmlq as gq
from ggmlq.base.writing import write_whole
from ggmlq.codes.tiling import tiling
from ggmlq.cuda.driver import device
from ggmlq.cuda.kernels.codes8 import mma_tiles
from ggmlq.cuda.kernels.codes8.mma_tiles import ByteTile, is_uniform
from ggmlq.cuda.kernels.codes8.rows import operand_pair
from ggmlq.cuda.kernels.codes8.tiles import FLOAT_TILES, INTEGER_TILES, Variant
from ggmlq.cuda.ladder.scaled_linear import r4_mma_int8, r5_widen, r9_persistent
from ggmlq.dispatch import ladder
from ggmlq.dispatch.problems import ScaledLinear

SHAPES = ["4096x7168x16384", "4096x4096x4096", "8192x8192x8192"]
CASES = {  # name: code, tile of x, tile of w, accumulate
    "int8 by row": ("int8", (1, None), (1, None), None),
    "int8 in chunks": ("int8", (1, None), (1, None), "fp32_chunks"),
    "int8 1x128": ("int8", (1, 128), (128, 128), None),
    "e4m3 1x128": ("e4m3", (1, 128), (128, 128), None),
    "e4m3 by row": ("e4m3", (1, None), (1, None), None),
}
PROMOTED = ("cuda:persistent", "cuda:small_m")  # sums of 128 are shorter
SLOW = ("cuda:naive", "cuda:tiled")  # once each, at 4096 only
OTHERS = {
    "mma_int8": [
        ByteTile(128, 256, 64, 64, stages=4), ByteTile(128, 256, 64, 64, stages=3),
        ByteTile(256, 128, 64, 64, stages=4), ByteTile(128, 128, 64, 64, stages=3, blocks=1),
        ByteTile(128, 128, 64, 32, stages=6), ByteTile(128, 256, 64, 64, step=64, stages=8),
        ByteTile(256, 128, 64, 64, step=64, stages=7),
    ],
    "mma_int8 in groups": [
        ByteTile(128, 128, 64, 32, stages=5), ByteTile(128, 128, 32, 64, stages=5),
        ByteTile(64, 256, 32, 64, stages=4), ByteTile(64, 128, 32, 64, stages=4, blocks=2),
    ],
    "widen": [
        ByteTile(128, 128, 64, 32, stages=5), ByteTile(128, 128, 64, 32, stages=3),
        ByteTile(128, 128, 32, 64, stages=5), ByteTile(64, 256, 64, 32, stages=4),
        ByteTile(256, 64, 32, 64, stages=4), ByteTile(64, 128, 64, 32, stages=4, blocks=2),
        ByteTile(64, 128, 32, 64, stages=4, blocks=2),
    ],
}  # fmt: skip

KERNELS = {"whole": r4_mma_int8.ungrouped, "grouped": r4_mma_int8.grouped, "widen": r5_widen.kernel}
KERNELS |= {"persistent": r9_persistent.kernel}


def operand(code: str, tile: tuple[int | None, int | None], rows: int, k: int, seed: int) -> gq.ScaledArray:
    """Random codes, so that the chip draws the power that it does with data; scales near one."""
    cp = device.cupy()
    rng = cp.random.RandomState(seed)
    raw = rng.randint(0, 256, (rows, k), dtype=cp.uint8)
    if code == "e4m3":
        raw = cp.where((raw & 0x7F) == 0x7F, cp.uint8(0), raw)
    else:
        raw = cp.maximum(raw.view(cp.int8), cp.int8(-127))
    over = tiling(tile, rows, k)
    scales = rng.uniform(0.5, 2, over.shape).astype(cp.float32)
    return gq.ScaledArray(raw, scales, code, tile)


def timed(work, copies: int = 3, seconds: float = 0.4) -> float:
    """The median time of one call, in seconds."""
    cp = device.cupy()
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        work()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(copies):
            work()
        graph = stream.end_capture()
        times, end = [], time.perf_counter() + seconds
        while len(times) < 5 or (time.perf_counter() < end and len(times) < 30):
            first, last = cp.cuda.Event(), cp.cuda.Event()
            first.record()
            graph.launch(stream)
            last.record()
            last.synchronize()
            times.append(cp.cuda.get_elapsed_time(first, last) * 1e-3 / copies)
            if len(times) >= 2 and times[-1] > 0.1:
                break
    return statistics.median(times)


def checked(y: Any, x: gq.ScaledArray, w: gq.ScaledArray, exact: bool, bound: float) -> float:
    """The mean error against the plainest kernel, on 48 rows; 0 for integers, or it is wrong."""
    cp = device.cupy()
    rows = slice(0, 48) if x.tile[0] != 1 else slice(len(x) - 48, len(x))
    few = cp.empty((48, len(w)), cp.float32)
    by_name = {rung.name: rung for rung in ladder.rungs("scaled_linear", "cuda")}
    by_name["cuda:naive"].launch(x[rows], w, few)
    error = float(cp.abs(y[rows] - few).mean() / cp.abs(few).mean())
    assert error == 0 if exact else error < bound, error
    return error


def compiled(what: tuple[str, tuple, tuple[int, int]]) -> str:
    """The name of one kernel, after compiling it to disk; other processes call this."""
    name, case, capability = what
    kernel = KERNELS[name](*case)
    kernel.cubin(capability)
    return kernel.name


def needed(tiles: bool) -> list[tuple[str, tuple]]:
    """All kernels of this program, the longest to compile first."""
    cases = [("whole", (wave.tile, "s8", "s8", False)) for wave in r4_mma_int8.UNGROUPED_TILES[:2]]
    cases += [("grouped", (r4_mma_int8.GROUPED_TILES[0].tile, "s8", "s8", True, False))]
    for wave in FLOAT_TILES:
        cases += [("persistent", (Variant(wave.tile, "e4m3", "e4m3"),))]
    cases += [("persistent", (Variant(wave.tile, "s8", "s8"),)) for wave in INTEGER_TILES]
    cases += [("widen", (r5_widen.TILES[0].tile, "e4m3", "e4m3", uniform, True)) for uniform in (True, False)]
    if tiles:
        cases += [("whole", (tile, "s8", "s8", False)) for tile in OTHERS["mma_int8"]]
        cases += [("grouped", (tile, "s8", "s8", True, False)) for tile in OTHERS["mma_int8 in groups"]]
        cases += [("widen", (tile, "e4m3", "e4m3", True, True)) for tile in OTHERS["widen"]]
    return list(dict.fromkeys(cases))


def others(case: str, x: gq.ScaledArray, w: gq.ScaledArray, out: Any):
    """Kernels with other tiles and orders of blocks that serve a case."""
    operands = operand_pair(x, w)
    grouped, span = operands.groups.length < x.shape[1], operands.groups.span
    if case == "int8 by row":
        choices = [
            (tile, ("s8", "s8", False), r4_mma_int8.ungrouped, (0,) * 4) for tile in OTHERS["mma_int8"]
        ]
    elif case == "int8 1x128":
        more, maker = (0, 0, 0, 0, span), r4_mma_int8.grouped
        choices = [
            (tile, ("s8", "s8", is_uniform(operands, tile), False), maker, more)
            for tile in OTHERS["mma_int8 in groups"]
        ]
    elif case.startswith("e4m3") and grouped:
        choices = [
            (tile, ("e4m3", "e4m3", is_uniform(operands, tile), True), r5_widen.kernel, ())
            for tile in OTHERS["widen"]
        ]
    else:
        return
    for tile, kinds, maker, more in choices:
        for tall in (4, 8, 16, 32) if tile is choices[0][0] else (8,):
            kernel = partial(maker, tile, *kinds)
            yield f"{tile}, {tall} tall", partial(run_tile, operands, kernel, tile, out, more, tall)


def run_tile(operands, kernel, tile, out, more, tall) -> None:
    """Launch one product with a tile."""
    mma_tiles.launch(kernel(), tile, operands, out, *more, raster_height=tall)


class Table:
    """The figures so far, each printed as it comes."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.figures = seconds, []

    def add(self, case: str, name: str, work, out, x, w) -> None:
        (m, k), n = x.shape, len(w)
        text = f"{case:15} {m}x{n}x{k:<6} {name:58}"
        try:
            work()
            exact = x.code.kind == "integer" and "chunks" not in case
            error = checked(out, x, w, exact, 2e-4 if name in PROMOTED else 1e-5)
            t = timed(work, seconds=self.seconds)
        except Exception as failed:  # one figure that fails does not lose the others
            print(f"{text} {type(failed).__name__}: {str(failed)[:300]}", flush=True)
            return
        rate = 2 * m * n * k / t / 1e12
        figure = {"case": case, "m": m, "n": n, "k": k, "kernel": name, "us": t * 1e6, "tera": rate}
        self.figures.append(figure)
        print(f"{text} {t * 1e6:9.1f} us {rate:7.1f} T/s  error {error:.1e}", flush=True)


def main() -> int:
    cp = device.cupy()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rungs", default="", help="names such as mma_int8,widen")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--tiles", action="store_true", help="other tiles too, at 4096 rows and K above 4096")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each figure")
    parser.add_argument("--json")
    options = parser.parse_args()
    begun = time.perf_counter()
    capability = device.capability()
    with multiprocessing.get_context("spawn").Pool(min(16, os.cpu_count() or 1)) as pool:
        for _ in pool.imap_unordered(compiled, [(*job, capability) for job in needed(options.tiles)]):
            pass
    print(f"compiled in {time.perf_counter() - begun:.0f} s", flush=True)
    table = Table(options.seconds)
    for shape in options.shapes.split(","):
        m, n, k = map(int, shape.split("x"))
        out = cp.empty((m, n), cp.float32)
        for case in options.cases.split(","):
            code, x_tile, w_tile, accumulate = CASES[case]
            x, w = operand(code, x_tile, m, k, 1), operand(code, w_tile, n, k, 2)
            problem = ScaledLinear.of(x, w, accumulate)
            for rung in ladder.rungs("scaled_linear", "cuda"):
                is_selected = not options.rungs or rung.name[5:] in options.rungs.split(",")
                slow = rung.name in SLOW and m * n * k > 4096**3
                if is_selected and not slow and not rung.refuses(problem):
                    table.add(case, rung.name, partial(rung.launch, x, w, out), out, x, w)
            if options.tiles and m == 4096 and k > 4096:
                for name, work in others(case, x, w, out):
                    table.add(case, name, work, out, x, w)
    if options.json:
        write_whole(options.json, json.dumps(table.figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
