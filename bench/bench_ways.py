"""Each way to make a product on a Hopper card, timed: what tools/fit.py fits estimates to.

    python bench/bench_ways.py --json bench/results/ways_h200.json
    python bench/bench_ways.py --kernels gemv --formats q4_0,q4_K --shapes 12 --seed 5 --json FILE

A *way* is a tile and a split among blocks: of cuda:warp_specialized, cuda:gemv, and the kernels of 8-bit
codes; one row takes cuda:gemv_int16. Shapes are drawn by a seed. Activations are bfloat16 for
cuda:warp_specialized, float16 for cuda:gemv.
Times are those of a product in a CUDA graph of several, with weights rotated over 100 MB.
The file is written at the end, also that of a run which Ctrl-C or an error ends: with what was timed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from ggmlq.base.text import meant
from ggmlq.base.writing import write_whole
from ggmlq.cuda.driver import device
from ggmlq.cuda.kernels.codes8 import small_m
from ggmlq.cuda.kernels.codes8.tiles import FLOAT_TILES, MAX_SPLITS, SPLIT_TILES
from ggmlq.cuda.kernels.cost import gemv, warp_specialized
from ggmlq.cuda.kernels.hopper.tiles import UNIT_FRAGMENTS
from ggmlq.cuda.ladder.linear import r13_gemv, r16_warp_specialized, r17_gemv_int16
from ggmlq.cuda.ladder.scaled_linear import r9_persistent, r10_small_m, r11_split_k
from ggmlq.cuda.layouts.layout import FRAGMENT_ROWS, STEP, TILE_ROWS, layout_of
from ggmlq.testing.machine import commit, machine

KERNELS = "warp_specialized", "gemv", "codes8"
ROWS = {
    "warp_specialized": (4, 8, 16, 24, 32, 48, 64, 96, 128, 200, 256, 384, 512, 777, 1024, 2048, 4096),
    "gemv": (1, 2, 4, 8, 16, 32),
    "codes8": (1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096),
}
DRAWN = {"warp_specialized": 4, "gemv": 6, "codes8": 5}  # numbers of rows of a shape
ROTATED, GRAPH_US, REPLAYS = 100e6, 1000, 5
# Of codes: rows up to which weights are the first operand, and up to which they always are; blocks in parts.
FEWEST, SHORT, MOST_BLOCKS = 64, 16, 160
START_US, RATE = 5, 500  # and TFLOP/s, about: how many products a graph has
NEAR, FAR = 1.35, 2.2  # times the lowest estimate, up to which other splits of a tile are timed; the best one
Way = tuple[tuple[int, ...], Callable[[Any], object]]  # its numbers, and a product with given weights


def drawn(count: int, draw: random.Random) -> list[tuple[int, int]]:
    """Shapes of weights: 1 to 120 million weights, as many small as large ones."""
    shapes: list[tuple[int, int]] = []
    while len(shapes) < count:
        n, k = 128 * int(6 * 36 ** draw.random()), 256 * int(3 * 24 ** draw.random())
        shapes += [(n, k)] * (1e6 <= n * k <= 120e6)
    return shapes


def graph_us(product: Callable[[Any], object], weights: list[Any], once_us: float) -> float:
    """Microseconds of a product: the median of replays of a graph of several.

    ``once_us``: of one, about. Weights were multiplied before.
    """
    cp = device.cupy()
    stream = cp.cuda.Stream(non_blocking=True)
    events = [cp.cuda.Event() for _ in range(REPLAYS + 1)]
    some = weights[: max(2, int(GRAPH_US / once_us))]
    with stream:
        product(weights[0])
        stream.begin_capture()
        for w in some:
            product(w)
        graph = stream.end_capture()
        graph.launch(stream)
        for event in events:
            event.record(stream)
            graph.launch(stream)
        stream.synchronize()
    times = [cp.cuda.get_elapsed_time(a, b) for a, b in itertools.pairwise(events)]
    return float(statistics.median(times)) * 1e3 / len(some)


def tile_ways(fmt: Any, m: int, n: int, k: int) -> Iterator[Way]:
    """Tiles of cuda:warp_specialized: each with its best split by estimate, the best ones with others too."""
    cp, launch = device.cupy(), r16_warp_specialized.launch.launch
    x = cp.random.standard_normal((m, k), dtype=np.float32).view(np.uint32) >> 16
    x, y = x.astype(np.uint16), cp.empty((m, n), np.uint16)  # bfloat16
    card, layout = device.card_of(device.current()), layout_of(fmt)
    stages = -(-k // (UNIT_FRAGMENTS * STEP))
    shape = warp_specialized.WarpSpecializedShape.on(card, m, n, stages, layout, True)

    def product(q: Any, tile: Any, each: warp_specialized.Split) -> None:
        def taken(*_: Any) -> Any:
            return each, 0.0

        with mock.patch.object(r16_warp_specialized, "best_split", taken):
            launch(x, q, y, tile=tile)

    ways = {}
    for tile in warp_specialized.TILES:
        if tile.columns >= 2 * m + 16 or (tile.columns <= 64 and m > 256):
            continue
        blocks = device.resident_blocks(tile.blocks, tile.shared(layout))
        wave, tiles = shape.wave(tile, blocks), shape.down * shape.across(tile)
        able = warp_specialized.splits(tiles, stages, wave)
        ways[tile] = sorted((warp_specialized.split_us(each, tiles, stages, wave), each) for each in able)
    least = min(others[0][0] for others in ways.values())
    for tile, others in ways.items():
        us, best = others[0]
        if us > FAR * least:
            continue
        kinds: dict[Any, warp_specialized.Split] = {}
        for _, each in others if us < NEAR * least else []:
            kinds.setdefault((each.splits > 1, each.split_tiles > 0, each.cluster > 1), each)
            kinds.setdefault("second", each)
        for each in dict.fromkeys((best, *kinds.values())):
            yield (tile.columns, tile.blocks, *each), partial(product, tile=tile, each=each)


def gemv_ways(fmt: Any, m: int, n: int, k: int) -> Iterator[Way]:
    """Splits of cuda:gemv, or of cuda:gemv_int16 for one row."""
    cp, launch = device.cupy(), (r17_gemv_int16 if m == 1 else r13_gemv).launch.launch
    x = cp.random.standard_normal((m, k), dtype=np.float32).astype(np.float16)
    y = cp.empty((m, n), np.float16)
    card, height = device.card_of(device.current()), FRAGMENT_ROWS * -(-n // TILE_ROWS)
    shape = gemv.GemvShape(layout_of(fmt), height, k, m, card.multiprocessors, card.memory)

    def product(q: Any, each: gemv.GemvSplit) -> None:
        launch(x, q, y, split=each)

    for each in gemv.candidates(shape):
        yield (each.fragment_rows, *each.blocks), partial(product, each=each)


def code_ways(m: int, n: int, k: int) -> Iterator[Way]:
    """Tiles and splits of cuda:small_m, cuda:split_k and cuda:persistent, FP8 with scales of 128."""
    cp = device.cupy()
    x = gq.quantize_scaled(cp.random.standard_normal((m, k), dtype=np.float32), "e4m3", (1, 128))
    y, steps = cp.empty((m, n), np.float16), -(-k // 128)
    if m <= FEWEST:
        columns = min(tile.columns for tile in small_m.TILES if tile.columns >= m)
        for tile in (tile for tile in small_m.TILES if tile.columns == columns):
            for cut in (cut for cut in small_m.SPLITS if cut <= steps):
                facts = tile.rows, tile.columns, tile.stages, tile.blocks, cut
                yield facts, partial(code_product, r10_small_m, x, y, tile=tile, split=cut)
    if m <= SHORT:
        return
    for box in SPLIT_TILES:
        for cut in range(2, MAX_SPLITS + 1):
            if cut <= steps and box.tiles(m, n) * cut <= MOST_BLOCKS:
                facts = box.rows, box.columns, box.stages, 0, cut
                yield facts, partial(code_product, r11_split_k, x, y, tile=box, split=cut)
    for rated in FLOAT_TILES:
        box = rated.tile
        yield (box.rows, box.columns, box.stages, 0, 1), partial(code_product, r9_persistent, x, y, tile=box)


def code_product(rung: Any, x: Any, y: Any, w: Any, **way: Any) -> None:
    """A product of 8-bit codes by a rung."""
    rung.launch.launch(x, w, y, **way)


def compiled(names: list[str]) -> None:
    """Compile tiles of cuda:warp_specialized whose code does not come with the package, on all cores."""
    from bench import ahead
    from ggmlq.cuda.driver import served
    from ggmlq.cuda.driver.launch import FAMILIES

    module, layouts = r16_warp_specialized.__name__, {layout_of(gq.formats[name]) for name in names}
    tasks = []
    for name, family in FAMILIES.items():
        for i, case in enumerate(family.cases if name.rpartition(".")[0] == module else ()):
            kernel = family.make(*case) if case[0] in layouts else None
            if kernel and kernel.origin and not served.code_of(kernel.origin, (9, 0), kernel.exact):
                tasks.append((name, i))
    ahead.compile_all(tasks, (9, 0))


def weights_of(kind: str, n: int, k: int) -> list[Any]:
    """Copies of random weights on the card, two at least."""
    cp = device.cupy()
    first: Any
    if kind == "e4m3":
        first = gq.quantize_scaled(cp.random.standard_normal((n, k), dtype=np.float32), "e4m3", (128, 128))
    else:
        rows = np.random.default_rng(1).standard_normal((64, k)).astype(np.float32) / np.sqrt(k)
        first = gq.quantize(rows, kind).to("cuda")[cp.arange(n) % 64]
    return [first, *(first.copy() for _ in range(max(1, min(19, int(ROTATED / first.nbytes)))))]


def measured(kernel: str, kind: str, n: int, k: int, rows: list[int], end: float) -> Iterator[dict[str, Any]]:
    """The figures of a shape, one for each number of rows."""
    weights, seen = weights_of(kind, n, k), set()
    for m in rows:
        if time.perf_counter() > end:
            break
        if kernel == "codes8":
            ways = code_ways(m, n, k)
        else:
            ways = (gemv_ways if kernel == "gemv" else tile_ways)(gq.formats[kind], m, n, k)
        about = START_US + 2e-6 * m * n * k / RATE
        us = []
        for way, product in ways:
            if way[:2] not in seen:  # what a tile reads is prepared in no graph
                seen.add(way[:2])
                for w in weights:
                    product(w)
            us.append([*way, round(graph_us(product, weights, about), 3)])
        facts = {"kernel": kernel, "format": kind, "N": n, "K": k, "M": m, "plain": kernel == KERNELS[0]}
        yield {**facts, "ways": us}
        best = min(us, key=lambda way: way[-1])
        print(
            f"{kernel} {kind} {n}x{k} M={m}: {len(us)} ways, {best[-1]:.1f} us with {best[:-1]}", flush=True
        )


def all_measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The figures of all kernels, formats and shapes."""
    for kernel in options.kernels:
        draw, begun = random.Random(options.seed), time.perf_counter()
        if kernel == "warp_specialized":
            compiled(options.formats)
        end = begun + options.seconds
        for n, k in drawn(options.shapes, draw):
            for kind in ("e4m3",) if kernel == "codes8" else options.formats:
                rows = sorted(draw.sample(ROWS[kernel], DRAWN[kernel]))
                if time.perf_counter() < end:
                    yield from measured(kernel, kind, n, k, rows, end)


def text_of(facts: dict[str, Any], figures: list[dict[str, Any]]) -> str:
    """A JSON text with a line for each figure."""
    head = json.dumps(facts)[:-1]
    return head + ', "figures": [\n' + ",\n".join(json.dumps(each) for each in figures) + "\n]}\n"


def kernels_of(words: str) -> list[str]:
    """The kernels of a list with commas."""
    names = words.split(",")
    for name in names:
        if name not in KERNELS:
            way = meant(name, KERNELS, "name some of these, with commas between")
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(KERNELS)}; {way}")
    return names


def main(arguments: list[str] | None = None) -> int:
    """Time the ways that options name; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernels", type=kernels_of, default=",".join(KERNELS), help="(%(default)s)")
    parser.add_argument("--formats", type=lambda words: words.split(","), default="q4_0,q4_K")
    parser.add_argument("--shapes", type=int, default=16, help="for each kernel and format (%(default)s)")
    parser.add_argument("--seed", type=int, default=43, help="of shapes and rows (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1e9, help="for each kernel; no shape begins later")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", help="of the run, where its folder is no git checkout")
    options = parser.parse_args(arguments)
    figures: list[dict[str, Any]] = []
    try:
        for figure in all_measured(options):
            figures.append(figure)
    except KeyboardInterrupt:
        print(f"bench_ways: interrupted after {len(figures)} figures", file=sys.stderr)
        return 130  # as a shell counts it
    finally:
        if options.json and figures:
            facts = {**machine(), "commit": options.commit or commit(), "seed": options.seed}
            write_whole(options.json, text_of(facts, figures))
            print(f"{options.json.name}: {len(figures)} figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
