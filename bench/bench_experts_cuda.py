"""Products with experts on a GPU: checked against float64, then timed beside llama.cpp's figures.

    python bench/bench_experts_cuda.py --compile         # without a GPU: machine code, some minutes
    python bench/bench_experts_cuda.py --check           # every rung and some formats against the oracle
    python bench/bench_experts_cuda.py --time --json FILE              # cells of a seed: drawn.py
    python bench/bench_experts_cuda.py --time --baseline ggml_cuda_experts_h200.json    # its cells
    python bench/bench_experts_cuda.py --tiles --cells 128/8:768x2048:64                # with each tile
    python bench/bench_experts_cuda.py --types e4m3,int8 --check --time                 # codes

A time is that of a product in a CUDA graph of twelve, over three sets of weights, each product with ids of
its own: the median of replays. Beside it stand llama.cpp's time, if the baseline has the cell, or that of
torch's ``_grouped_mm`` on weights of bfloat16 and rows that are sorted before, and ``floor``, the larger of
two: the weights of all experts that are used over the card's bandwidth (of an H200 4456 GB/s), operations
over 790 TFLOP/s, of e4m3 over 1451, of int8 over 862. Rows of x are codes already where weights are; every
second cell has a row for each use. ``skewed``: half of all tokens use expert 0; ``few``: a hundredth of the
experts are used, one at least; ``sorted``: an expert's tokens follow each other.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from bench import drawn
from bench.on_card import Replays, bandwidth
from bench.scaled_peers import TorchReplays, tensor
from ggmlq.arrays.blocks import random_blocks
from ggmlq.base.writing import write_whole
from ggmlq.cuda.driver import device
from ggmlq.cuda.kernels.codes8.small_m import SPLITS
from ggmlq.cuda.kernels.codes8.tiles import EXPERT_FLOAT_TILES, EXPERT_INTEGER_TILES, expert_variants
from ggmlq.cuda.ladder.expert_linear import r4_gemv, r5_grouped, r6_grouped_codes, r7_small_m_codes
from ggmlq.cuda.layouts import groups
from ggmlq.cuda.layouts.groups import MOST_LISTED
from ggmlq.cuda.layouts.layout import layout_of
from ggmlq.dispatch import ladder
from ggmlq.dispatch.problems import ExpertLinear
from ggmlq.formats import BLOCK_FORMATS, BlockFormat
from ggmlq.reference.judgement import TOLERANCE
from ggmlq.testing.machine import commit, machine

PEAK = 790e12  # operations a second that this project measured on an H200
PEAKS = {"e4m3": 1451e12, "int8": 862e12}  # of codes
TILES = {"e4m3": ((1, 128), (128, 128)), "int8": ((1, None), (1, None))}  # of activations and weights
BOUNDS = {"e4m3": 2e-7, "int8": 1e-11}  # errors that are allowed
COPIES, SETS = 12, 3  # products of a graph; sets of weights
MOST_FEW_TOKENS = 32  # with which the kernel for few codes is timed with each cut


class Shape(NamedTuple):
    """Sizes of a mixture. ``row_per_use``: x has a row for each use."""

    experts: int
    used: int
    n: int
    k: int
    row_per_use: bool = False

    def __str__(self) -> str:
        return f"{self.experts}/{self.used} {self.n}x{self.k}"


TIMED = ("q4_K", "q4_0", "mxfp4", "q8_0", "q6_K", "e4m3", "int8")
ROUTINGS = ("even", "skewed", "few", "sorted")
CHECKS = (  # T, used, experts, N, rows of x for each use, ids
    (1, 3, 5, 100, False, "even"), (9, 2, 4, 140, True, "skewed"), (50, 3, 7, 300, False, "skewed"),
    (200, 1, 3, 64, False, "few"), (700, 2, 3, 130, True, "skewed"), (400, 2, 4, 256, False, "even"),
    (300, 1, 4, 130, False, "sorted"),
)  # fmt: skip


# --- kernels ----------------------------------------------------------------------------------


def kernels(names: list[str]) -> list[Any]:
    """All kernels that some formats need here, the longest to compile first."""
    formats = [gq.formats[name] for name in names if name not in TILES]
    listing = [
        r5_grouped.kernel(layout_of(fmt), tile) for tile in reversed(r5_grouped.TILES) for fmt in formats
    ]
    listing += [r4_gemv.kernel(layout_of(fmt), *case) for case in reversed(r4_gemv.CASES) for fmt in formats]
    every = [
        (r7_small_m_codes.kernel, r7_small_m_codes.variants()),
        (r6_grouped_codes.kernel, expert_variants()),
    ]
    codes = {"e4m3": "e4m3", "int8": "s8"}
    kinds = {codes[name] for name in names if name in codes}
    for make, cases in every:
        listing += [make(job, *more) for job, *more in cases if job.x == job.w and job.x in kinds]
    gatherers = groups.x_tile_gatherer(), groups.few_x_tile_gatherer(), groups.code_gatherer()
    return [*listing, groups.grouper(), *gatherers]


def compiled(number: int, names: list[str]) -> str:
    """The name of one kernel, after compiling it; other processes call this."""
    kernel = kernels(names)[number]
    kernel.cubin((9, 0))
    return str(kernel)


def compile_all(names: list[str], jobs: int) -> None:
    """Compile all kernels into the cache."""
    os.environ["GGMLQ_COMPILE_HERE"] = "1"
    begun, count = time.perf_counter(), len(kernels(names))
    with multiprocessing.get_context("spawn").Pool(min(jobs, os.cpu_count() or 1)) as pool:
        for name in pool.imap_unordered(partial(compiled, names=names), range(count)):
            print(f"{time.perf_counter() - begun:6.0f} s  {name}", flush=True)


# --- operands ---------------------------------------------------------------------------------


def weights(name: str, experts: int, n: int, k: int, seed: int) -> Any:
    """Weights on the card: blocks of random bits with sane scales; experts differ by the order of their rows.

    For codes with scales: an array of normal values.
    """
    cp = device.cupy()
    if name in TILES:
        floats = cp.random.RandomState(seed).standard_normal((experts, n, k), dtype=cp.float32)
        return gq.quantize_scaled(floats, name, TILES[name][1])
    fmt = gq.formats[name]
    assert isinstance(fmt, BlockFormat)
    one = cp.asarray(np.ascontiguousarray(random_blocks(fmt, n, k // fmt.block_size, seed)).view(np.uint8))
    one = one.reshape(n, -1)
    whole = cp.stack([cp.roll(one, i, axis=0) for i in range(experts)])
    return gq.QuantArray.from_bytes(whole, fmt, (experts, n, k))


def rows_of(name: str, x: Any) -> Any:
    """Activations on the card as a kernel takes them."""
    return gq.quantize_scaled(x, name, TILES[name][0]) if name in TILES else x


def ids_of(routing: str, tokens: int, shape: Shape, rng: np.random.Generator) -> Any:
    """Different experts for each token, on the host."""
    e, u = shape.experts, shape.used
    if routing == "few":
        return np.zeros((tokens, u), np.int64) + rng.integers(0, max(1, e // 100), (tokens, u))
    if routing == "sorted":
        return np.sort(rng.integers(0, e, (tokens, u)), axis=None).reshape(tokens, u)
    ids = np.argsort(rng.random((tokens, e)), axis=1)[:, :u]
    if routing == "skewed":
        moved = (rng.random(tokens) < 0.5) & ~(ids == 0).any(axis=1)
        ids[moved, 0] = 0
    return np.ascontiguousarray(ids)


def rung(name: str) -> Any:
    rungs = ladder.rungs("expert_linear", "cuda")
    return next(candidate for candidate in rungs if candidate.name == f"cuda:{name}")


# --- checks -----------------------------------------------------------------------------------


def check(names: list[str]) -> int:
    """The kernels of some formats, twice, in a graph too, against the oracle; how many are wrong."""
    cp, wrong = device.cupy(), 0
    for i, name in enumerate(names):
        rng, k = np.random.default_rng(i), 2 * max(256, 1 if name in TILES else gq.formats[name].block_size)
        for t, u, e, n, row_per_use, routing in CHECKS:
            q = weights(name, e, n, k, i)
            x = rng.standard_normal((t * u if row_per_use else t, k)).astype(np.float32)
            ids = ids_of(routing, t, Shape(e, u, n, k), rng)
            if t > 1 and routing != "sorted":
                ids[-1, -1], ids[0, 0] = ids[-1, 0], e
            try:
                wrong += checked(name, q, rows_of(name, cp.asarray(x)), ids, row_per_use)
            except Exception as failed:  # one that fails does not lose the others
                wrong += 1
                print(f"  {name} {ids.shape}: {type(failed).__name__}: {str(failed)[:300]}", flush=True)
    print("all right" if not wrong else f"{wrong} WRONG", flush=True)
    return wrong


def checked(name: str, q: Any, x: Any, ids: Any, row_per_use: bool) -> int:
    """The number of kernels that compute one case wrongly, among those that read ids on the card."""
    cp, wrong, lost = device.cupy(), 0, ids >= len(q)
    host = x.to("cpu") if name in TILES else x.get()
    rows = host.reshape(*ids.shape, x.shape[-1]) if row_per_use else host
    on_card = cp.asarray(ids)
    for kernel in ("gemv", "grouped", "small_m_codes", "grouped_codes"):
        candidate = rung(kernel)
        if candidate.refuses(ExpertLinear.of(x, q, on_card)):
            continue
        how = () if name in TILES else (candidate.arithmetic,)
        want = gq.reference.expert_linear(rows, q.to("cpu"), np.where(lost, 0, ids), *how)
        y = cp.full((*ids.shape, q.shape[1]), 7, np.float32)
        candidate.launch(x, q, on_card, y)
        first = y.get()
        tiles = r5_grouped.TILES if kernel == "grouped" else ()
        for tile in tiles:
            y.fill(7)
            candidate.launch(x, q, on_card, y, tile=tile)
            wrong += not gq.nmse(y.get()[~lost], first[~lost]) < 1e-10
        y.fill(7)
        Replays([partial(candidate.launch, x, q, on_card, y)], 2, warm=2)
        again = y.get()
        error = gq.nmse(first[~lost], want[~lost])
        right = (
            error <= (BOUNDS[name] if name in TILES else TOLERANCE[candidate.accumulate])
            and np.isnan(first[lost]).all()
            and np.array_equal(first, again, equal_nan=True)
        )
        wrong += not right
        print(
            f"  {name:8} {kernel:13} {ids.shape} of {q.shape}: {error:.2e} {'right' if right else 'WRONG'}",
            flush=True,
        )
    return wrong


# --- times ------------------------------------------------------------------------------------


class Cell:
    """Operands of one shape and type, and the times of their products."""

    def __init__(self, shape: Shape, name: str, sets: list[Any]) -> None:
        self.shape, self.name, self.sets = shape, name, sets

    def time(self, tokens: int, routing: str, kernel: str, **more: Any) -> dict[str, Any]:
        """A row of the table, or why there is none."""
        try:
            return self.timed(tokens, routing, kernel, **more)
        except Exception as failed:  # one that fails does not lose the others
            return {
                "failed": f"{self.shape} {self.name} T={tokens} {kernel}: {type(failed).__name__}: {failed}"
            }

    def timed(
        self, tokens: int, routing: str, kernel: str, peer: bool = False, **more: Any
    ) -> dict[str, Any]:
        """A row of the table, from a product in a CUDA graph."""
        cp, shape, rng = device.cupy(), self.shape, np.random.default_rng(tokens)
        rows = tokens * shape.used if shape.row_per_use else tokens
        x = rows_of(self.name, cp.random.RandomState(0).standard_normal((rows, shape.k), dtype=cp.float32))
        listed = [ids_of(routing, tokens, shape, rng) for _ in range(COPIES)]
        y = cp.empty((tokens, shape.used, shape.n), np.float32)
        on_card = [cp.asarray(ids) for ids in listed]
        if kernel == "auto":
            choice = ladder.choose(ExpertLinear.of(x, self.sets[0], on_card[0]))
        else:
            choice = rung(kernel)
        works = [
            partial(choice.launch, x, self.sets[i % SETS], ids, y, **more) for i, ids in enumerate(on_card)
        ]
        us = statistics.median(Replays(works, COPIES, warm=4).times(0.02, least=9)) * 1e6
        touched = statistics.mean(len(np.unique(ids)) for ids in listed)
        read = touched * self.sets[0][0].nbytes / bandwidth()
        peak = PEAKS.get(self.name, PEAK)
        floor = 1e6 * max(read, 2 * tokens * shape.used * shape.n * shape.k / peak)
        row = {"shape": str(shape), "type": self.name, "T": tokens, "ids": routing, "kernel": choice.name}
        row |= {"torch_us": grouped_us(self.sets, listed) if peer else None}
        return row | {"used": touched, "us": us, "floor_us": floor} | {k: str(v) for k, v in more.items()}


def grouped_us(sets: list[Any], listed: list[Any]) -> float:
    """Microseconds of torch's products of bfloat16, of sorted rows and all weights decoded before."""
    import torch

    (e, _, k), uses = sets[0].shape, listed[0].size
    ends = [np.bincount(ids.ravel(), minlength=e).cumsum() for ids in listed]
    offsets = [tensor(device.cupy().asarray(last, np.int32)) for last in ends]
    decoded = [tensor(q.dequantize()).to(torch.bfloat16).transpose(1, 2) for q in sets]
    x = torch.randn((uses, k), dtype=torch.bfloat16, device="cuda")
    work = lambda i: torch._grouped_mm(x, decoded[i % len(decoded)], offs=offsets[i])
    return round(statistics.median(TorchReplays(work, len(listed), COPIES).times(0.02, least=9)) * 1e6, 2)


def cell_of(words: str) -> drawn.Experts:
    """The cell of words such as 128/8:768x2048:64."""
    experts, used, n, k, tokens = map(int, re.split("[/:x]", words))
    return drawn.Experts(tokens, experts, used, n, k)


def cells(args: argparse.Namespace) -> list[tuple[str, drawn.Experts, float | None]]:
    """Types and cells, and llama.cpp's microseconds."""
    names = args.types.split(",") if args.types else list(TIMED)
    if args.baseline:
        rows = [row for row in json.loads(args.baseline.read_text())["rows"] if row["type"].lower() in names]
        numbers = [[row[name] for name in "TEUNK"] for row in rows]
        return [
            (row["type"].lower(), drawn.Experts(*sizes), row["us"])
            for row, sizes in zip(rows, numbers, strict=True)
        ]
    chosen = [cell_of(words) for words in args.cells.split(",")] if args.cells else None
    return [
        (name, cell, None) for cell in chosen or drawn.experts(args.seed, args.draw, 256) for name in names
    ]


def time_all(args: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Measure all cells and print each line as soon as it is known."""
    print(f"--seed {args.seed}", flush=True)
    listed = cells(args)
    types = len({name for name, *_ in listed})  # which follow each other in a cell
    for number, (name, (tokens, *sizes), theirs) in enumerate(listed):
        shape = Shape(*sizes, number // types % 2 > 0)
        cell = Cell(shape, name, [weights(name, shape.experts, shape.n, shape.k, i) for i in range(SETS)])
        beside = theirs is None and not args.tiles
        rows = tile_rows(cell, tokens) if args.tiles else [cell.time(tokens, args.ids, "auto", peer=beside)]
        for row in rows:
            if "failed" in row:
                print(row["failed"][:300], flush=True)
                continue
            row["llama_us"] = theirs
            facts["rows"].append(row)
            print(line(row), flush=True)
        del cell
        device.cupy().get_default_memory_pool().free_all_blocks()
    print(*summary(facts["rows"]), sep="\n")


def line(row: dict[str, Any]) -> str:
    """A row as a line of the table."""
    return (
        f"{row['shape']:18} {row['type']:6} T={row['T']:<5} {row['ids']:7} {row['kernel']:18} "
        f"{row['us']:9.2f} us  floor {row['floor_us']:8.2f}  llama.cpp {row['llama_us'] or '-'}  "
        f"torch {row['torch_us'] or '-'} {row.get('cut', row.get('tile', ''))}"
    )


def summary(rows: list[dict[str, Any]]) -> Iterator[drawn.Share]:
    """Each type beside a peer, and beside its floor."""
    peers = {"llama_us": "llama.cpp", "torch_us": "torch on bfloat16", "floor_us": "the floor"}
    return drawn.summary(
        (f"{row['type']} beside {peer}", f"{row['shape']} T={row['T']}", row[name] / row["us"])
        for name, peer in peers.items()
        for row in rows
        if row[name]
    )


def tile_rows(cell: Cell, tokens: int) -> Iterator[dict[str, Any]]:
    """Rows of the grouped kernel with each tile, and of the one for few codes with each cut."""
    shares = {"e4m3": EXPERT_FLOAT_TILES, "int8": EXPERT_INTEGER_TILES}.get(cell.name, ())
    few = shares and tokens <= MOST_FEW_TOKENS
    for tile, parts in product(r7_small_m_codes.TILES, SPLITS) if few else ():
        yield cell.time(tokens, "even", "small_m_codes", cut=r7_small_m_codes.Cut(tile, parts))
    mean = tokens * cell.shape.used / cell.shape.experts
    for share in shares:
        yield cell.time(tokens, "even", "grouped_codes", tile=share.tile)
    if not shares and tokens * cell.shape.used <= MOST_LISTED:
        yield cell.time(tokens, "even", "gemv")
    for tile in () if shares else r5_grouped.TILES:
        if tile.columns <= 4 * max(mean, 4) and tile.columns * 10 > mean:
            yield cell.time(tokens, "even", "grouped", tile=tile)


def main() -> int:
    """Compile, check or time, as the options say; 1 if something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile", action="store_true", help="machine code into the cache; needs no GPU")
    parser.add_argument("--check", action="store_true", help="right or wrong, small products")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--tiles", action="store_true", help="time each tile of cuda:grouped, or of codes")
    parser.add_argument("--types", help=f"default: {','.join(TIMED)}")
    parser.add_argument("--cells", help="as 128/8:768x2048:64: used experts, N x K, tokens; not drawn ones")
    drawn.add_options(parser, 12)
    parser.add_argument("--ids", choices=ROUTINGS, default="even", help="experts of tokens (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile")
    parser.add_argument("--baseline", type=Path, help="llama.cpp's times, whose cells are measured")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    names = args.types.split(",") if args.types else list(TIMED)
    if names == ["all"]:
        names = [fmt.name for fmt in BLOCK_FORMATS]
    if args.compile:
        compile_all(names, args.jobs)
        return 0
    wrong = check(names) if args.check else 0
    if args.time or args.tiles:
        facts: dict[str, Any] = {"machine": machine(), "commit": commit(), "seed": args.seed, "rows": []}
        try:
            time_all(args, facts)
        finally:
            if args.json:
                write_whole(args.json, json.dumps(facts, indent=1) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
