"""The Hopper rungs of ``scaled_linear``, checked one by one and then timed, in under four minutes.

    python bench/hopper.py --compile          # without a GPU: machine code into build/hopper, some minutes
    python bench/hopper.py                    # on the card: check with guarded waits, check, time
    python bench/hopper.py --only check
    python bench/hopper.py --only time --rungs persistent,small_m --tiles --json hopper.json

Each rung is checked by a process of its own, whose waits give up (GGMLQ_GUARD_WAITS) and which is ended after
some seconds: a kernel that hangs costs that, and what is right is still timed. Results are held against
cuda:naive; x and w are normal data; x's scales lie in columns, as quantizers can leave them.

Times are those of a product in a CUDA graph of several: the median and the best of replays after a rest, and
with --sustained the median of replays after two seconds of them. Up to 64 rows weights are rotated over more
than 150 MB. Peers, in turns in one process: scaled_peers.py.
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
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from bench.on_card import Replays, in_processes
from ggmlq.base.writing import write_whole
from ggmlq.codes.tiling import tiling
from ggmlq.cuda.driver import device
from ggmlq.cuda.intrinsics import hopper
from ggmlq.cuda.kernels.codes8.operands import scale_gatherer
from ggmlq.cuda.kernels.codes8.small_m import SPLITS, TILES, SmallMTile, SmallMVariant
from ggmlq.cuda.kernels.codes8.tiles import (
    COLUMN_SCALE_TILES,
    FLOAT32_OUTPUT,
    FLOAT_TILES,
    INTEGER_TILES,
    MAX_SPLITS,
    SPLIT_TILES,
    BoxTile,
    OutputKind,
    Variant,
)
from ggmlq.cuda.ladder.scaled_linear import (
    r0_naive,
    r9_persistent,
    r10_small_m,
    r11_split_k,
)
from ggmlq.dispatch import ladder
from ggmlq.dispatch.checks import float_dtype
from ggmlq.dispatch.problems import ScaledLinear

ROOT = Path(__file__).parents[1]
os.environ.setdefault("GGMLQ_CACHE_DIR", str(ROOT / "build" / "hopper"))  # read when the first kernel is made
RUNGS = ("persistent", "small_m", "split_k")
FP8, BY_ROW = ("e4m3", (1, 128), (128, 128)), ("e4m3", (1, 128), (1, 128))
TENSORS, INT8 = ("e4m3", (None, None), (None, None)), ("int8", (1, None), (1, None))
CASES = {"fp8": FP8, "fp8 1x128": BY_ROW, "fp8 tensors": TENSORS, "int8": INT8}
CHECKS = [  # case, M, N, K, outputs
    ("fp8", 128, 128, 128, "float32"), ("fp8", 300, 520, 1280, "bfloat16"), ("fp8", 1, 576, 7168, "bfloat16"),
    ("fp8", 1000, 2112, 2048, "float32"), ("fp8", 4100, 1154, 3884, "bfloat16"),
    ("fp8 1x128", 257, 392, 896, "float32"), ("fp8 tensors", 70, 1000, 1040, "float32"),
    ("int8", 130, 270, 640, "float32"), ("int8", 3000, 1540, 2064, "float32"),
    ("int8", 33, 77, 3884, "bfloat16"), ("fp8", 64, 7168, 2048, "float32"),
    ("fp8", 33, 300, 9000, "bfloat16"),
    ("fp8", 8, 2112, 7168, "bfloat16"), ("int8", 64, 4096, 7168, "float32"),
]  # fmt: skip
LARGE = [(4096, 7168, 16384), (4096, 4096, 4096)]
SHAPES = [
    *LARGE, (4096, 4096, 7168), (4096, 7168, 2048), (4096, 2112, 7168), (4096, 24576, 1536),
    (4096, 32768, 512), (128, 2112, 7168), (128, 24576, 1536), (128, 32768, 512), (128, 7168, 16384),
    (128, 4096, 7168), (128, 7168, 2048),
]  # fmt: skip
INTEGERS = [(8192, 8192, 8192), (4096, 4096, 4096), (4096, 7168, 16384)]
FEW = [(7168, 2048), (4096, 7168), (24576, 1536), (2112, 7168)]
OTHERS = {
    "fp8": [BoxTile(128, 192, 5), BoxTile(128, 128, 6), BoxTile(128, 64, 8)],
    "int8": [BoxTile(256, 128, 4), BoxTile(128, 128, 6), BoxTile(128, 64, 8)],
}
NARROW_TILES = [SmallMTile(64, 8, 8, 2), SmallMTile(64, 16, 8, 2), SmallMTile(128, 64, 6, 1, 16)]
BANDWIDTH = 4456e9  # bytes a second that this project measured on an H200
OUTSIDE = "bfloat16"  # the outputs of timed products


def kernels() -> list[Any]:
    """All kernels of this program, the longest to compile first."""
    listing: list[Any] = []
    outs = (FLOAT32_OUTPUT, OutputKind(OUTSIDE))
    listing += [
        r9_persistent.kernel(Variant(wave.tile, "e4m3", "e4m3", out)) for wave in FLOAT_TILES for out in outs
    ]
    listing += [
        r9_persistent.kernel(Variant(wave.tile, "e4m3", "e4m3", outs[1], boxed=False)) for wave in FLOAT_TILES
    ]
    listing += [r9_persistent.kernel(Variant(COLUMN_SCALE_TILES[0].tile, "e4m3", "e4m3", column_scales=True))]
    for wave in INTEGER_TILES:
        listing += [
            r9_persistent.kernel(Variant(wave.tile, "s8", "s8", out, boxed))
            for out in outs
            for boxed in (True, False)
        ]
    if not hopper.GUARDED:
        listing += [r9_persistent.kernel(Variant(tile, "e4m3", "e4m3", outs[1])) for tile in OTHERS["fp8"]]
        listing += [r9_persistent.kernel(Variant(tile, "s8", "s8", outs[1])) for tile in OTHERS["int8"]]
        listing += [r10_small_m.kernel(SmallMVariant(tile, "e4m3", "e4m3", outs[1])) for tile in NARROW_TILES]
        listing += [r11_split_k.kernel(Variant(tile, "e4m3", "e4m3", outs[1], False)) for tile in SPLIT_TILES]
    for tile in TILES:
        listing += [
            r10_small_m.kernel(SmallMVariant(tile, a, a, out)) for a in ("e4m3", "s8") for out in outs
        ]
    listing += [r0_naive.kernel(gq.codes[c], gq.codes[c], False) for c in ("e4m3", "int8")]
    return [*dict.fromkeys(listing), scale_gatherer()]


def compiled(number: int) -> str:
    """The name of one kernel, after compiling it; other processes call this."""
    listed = kernels()
    if number < len(listed):
        listed[number].cubin((9, 0))
        return str(listed[number])
    return "-"


def compile_all(guarded: bool) -> None:
    """Compile all kernels into the cache; those with guarded waits are kernels of their own."""
    begun = time.perf_counter()
    os.environ["GGMLQ_GUARD_WAITS"] = str(int(guarded))
    with multiprocessing.get_context("spawn").Pool(min(16, os.cpu_count() or 1)) as pool:
        for name in pool.imap_unordered(compiled, range(len(kernels()))):
            print(f"{time.perf_counter() - begun:6.0f} s  {name}", flush=True)


def quantized(rows: int, k: int, code: str, tile: tuple[int | None, int | None], rng: Any) -> gq.ScaledArray:
    """Codes of normal data, each row of its own size as in a model; made by CuPy alone."""
    cp, over = device.cupy(), tiling(tile, rows, k)
    r, c = over.r, over.c
    down, across = over.shape
    floats = cp.zeros((down * r, across * c), cp.float32)
    floats[:rows, :k] = rng.standard_normal((rows, k), dtype=cp.float32)
    floats *= cp.exp(rng.standard_normal((len(floats), 1), dtype=cp.float32) / 2)
    tiles = floats.reshape(down, r, across, c)
    scales = cp.maximum(cp.abs(tiles).max((1, 3)), 1e-6) / np.float32(448 if code == "e4m3" else 127)
    tiles /= scales[:, None, :, None]
    if code == "e4m3":
        values = gq.codes[code].decode(np.arange(127, dtype=np.uint8)).astype(np.float32)
        middles = cp.asarray((values[1:] + values[:-1]) / 2)
        codes = cp.searchsorted(middles, cp.abs(floats).ravel()).astype(cp.uint8).reshape(floats.shape)
        codes |= cp.signbit(floats).astype(cp.uint8) << cp.uint8(7)
    else:
        codes = cp.rint(floats).astype(cp.int8)
    return gq.ScaledArray(cp.ascontiguousarray(codes[:rows, :k]), scales, code, tile)


def in_columns(s: gq.ScaledArray) -> gq.ScaledArray:
    """The array with its scales in columns, each padded to 16 bytes, as quantizers can leave them."""
    cp, (rows, columns) = device.cupy(), s.scales.shape
    table_columns = cp.zeros((columns, -(-rows // 4) * 4), cp.float32)
    table_columns[:, :rows] = s.scales.T
    return gq.ScaledArray(s.codes, table_columns.T[:rows], s.code, s.tile)


def operands(case: str, m: int, n: int, k: int, seed: int) -> tuple[gq.ScaledArray, gq.ScaledArray]:
    """The operands x and w of a product."""
    code, x_tile, w_tile = CASES[case]
    rng = device.cupy().random.RandomState(seed)
    return in_columns(quantized(m, k, code, x_tile, rng)), quantized(n, k, code, w_tile, rng)


def empty(m: int, n: int, kind: str) -> Any:
    """An array for outputs, filled with NaN."""
    cp = device.cupy()
    if kind == "bfloat16":
        return cp.full((m, n), 0x7FC0, cp.uint16).view(float_dtype("a product", "bfloat16"))
    return cp.full((m, n), cp.nan, kind)


def floats_of(y: Any) -> Any:
    """The values as float32, bfloat16 by its bits."""
    cp = device.cupy()
    if str(y.dtype) == "bfloat16":
        return (y.view(cp.uint16).astype(cp.uint32) << 16).view(cp.float32)
    return y.astype(cp.float32)


def wrong(y: Any, x: gq.ScaledArray, w: gq.ScaledArray) -> float:
    """The mean error by the mean value, on some rows, against the plainest kernel with the same rounding."""
    cp, count = device.cupy(), min(len(x), 64)
    rows = slice(len(x) - count, len(x))
    want = cp.empty((count, len(w)), cp.float32)
    rung("naive").launch(x[rows], w, want)
    if str(y.dtype) == "bfloat16":
        bits = want.view(cp.uint32)
        want = (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(cp.uint32).view(cp.float32)
    actual = floats_of(y[rows])
    assert not cp.isnan(floats_of(y)).any(), "outputs that were not written, or NaN"
    return float(cp.abs(actual - want).mean() / cp.abs(want).mean())


def rung(name: str) -> Any:
    """The rung of this name."""
    return next(
        candidate for candidate in ladder.rungs("scaled_linear", "cuda") if candidate.name == f"cuda:{name}"
    )


def check(name: str) -> None:
    """Run all cases that a rung takes: two runs give the same bits, close to the plainest kernel."""
    cp, served = device.cupy(), 0
    for i, (case, m, n, k, kind) in enumerate(CHECKS):
        x, w = operands(case, m, n, k, 100 + i)
        if rung(name).refuses(ScaledLinear.of(x, w)):
            continue
        y, again = empty(m, n, kind), empty(m, n, kind)
        rung(name).launch(x, w, y)
        cp.cuda.runtime.deviceSynchronize()
        rung(name).launch(x, w, again)
        same = bool((y.view(cp.uint8) == again.view(cp.uint8)).all())
        error, bound = wrong(y, x, w), 0.0 if case == "int8" else 2e-4 if kind == "float32" else 5e-4
        verdict = "right" if same and error <= bound else "WRONG" + ", two runs differ" * (not same)
        print(f"    {case:12} {m}x{n}x{k} to {kind:8} error {error:.2e}  {verdict}", flush=True)
        assert verdict == "right"
        served += 1
    assert served


class Table:
    """The figures so far, each printed as it comes."""

    def __init__(self, sustained: bool) -> None:
        self.sustained, self.figures = sustained, []

    def add(self, name: str, case: str, shape: tuple[int, int, int], works: list[Any], copies: int) -> None:
        m, n, k = shape
        times = Replays(works, copies).times(2.0 if self.sustained else 0.05, rest=0.3)
        rested, best = statistics.median(times[:12]), min(times)
        figure = {
            "rung": name,
            "case": case,
            "m": m,
            "n": n,
            "k": k,
            "us": rested * 1e6,
            "best us": best * 1e6,
        }
        text = f"{name:34} {case:6} {m}x{n}x{k:<6} {rested * 1e6:9.2f} us (best {best * 1e6:.2f})"
        text += f" {2e-12 * m * n * k / rested:7.0f} T/s (best {2e-12 * m * n * k / best:.0f})"
        if m <= 128:
            floor = (n * k + m * k + 2 * m * n) / BANDWIDTH
            text += f"  floor {floor * 1e6:.2f} us, {floor / rested:.0%}"
        if self.sustained:
            late = statistics.median(times[-len(times) // 4 :])
            text += f"  sustained {2e-12 * m * n * k / late:.0f}"
            figure["sustained us"] = late * 1e6
        self.figures.append(figure)
        print(text, flush=True)


def timed(table: Table, name: str, case: str, shape: tuple[int, int, int], **more: Any) -> None:
    """Check and time one rung at one shape."""
    m, n, k = shape
    count = max(1, -(-150_000_000 // (n * k))) if m <= 64 else 1
    sets = [operands(case, m, n, k, seed) for seed in range(count)]
    y = empty(m, n, OUTSIDE)
    label = " ".join([name, *(f"{what} {value}" for what, value in more.items())])
    try:
        rung(name).launch(*sets[0], y, **more)
        error = wrong(y, *sets[0])
        assert error <= 5e-4, error
        works = [partial(rung(name).launch, x, w, y, **more) for x, w in sets]
        table.add(label, case, shape, works, max(count, 20 if m <= 128 else 4))
    except Exception as failed:  # one that fails does not lose the others
        print(f"{label} {case} {shape}: {type(failed).__name__}: {str(failed)[:300]}", flush=True)


def narrow(table: Table, names: list[str], n: int, k: int, tiles: bool) -> None:
    """Measure products of up to 256 rows of x."""
    for m in (1, 8, 16, 32, 64, 128, 256):
        for name, most in (("small_m", 64), ("persistent", 256), ("split_k", 256)):
            if name in names and (m >= 64 or name == "small_m") and m <= most:
                timed(table, name, "fp8", (m, n, k))
    if tiles and "small_m" in names:
        for tile in (*TILES, *NARROW_TILES):
            for parts in SPLITS:
                if -(-n // tile.rows) * parts <= 3 * device.multiprocessors():
                    timed(table, "small_m", "fp8", (tile.columns, n, k), split=parts, tile=tile)
    if tiles and "split_k" in names:
        for tile in SPLIT_TILES:
            for parts in range(2, MAX_SPLITS + 1):
                if tile.tiles(128, n) * parts <= device.multiprocessors():
                    timed(table, "split_k", "fp8", (128, n, k), split=parts, tile=tile)


def time_all(names: list[str], tiles: bool, sustained: bool) -> list[dict[str, Any]]:
    """Measure the shapes of this table, the most important first."""
    table = Table(sustained)
    for shape in LARGE:
        if "persistent" in names:
            timed(table, "persistent", "fp8", shape)
    if "persistent" in names:
        for shape in INTEGERS:
            timed(table, "persistent", "int8", shape)
    for n, k in FEW:
        narrow(table, names, n, k, tiles)
    if "small_m" in names:
        timed(table, "small_m", "int8", (64, 7168, 2048))
    for shape in SHAPES[len(LARGE) :]:
        if "persistent" in names:
            timed(table, "persistent", "fp8", shape)
        if shape[0] <= 64 and "small_m" in names:
            timed(table, "small_m", "fp8", shape)
    if "persistent" in names:
        for case, shape in (("fp8", LARGE[0]), ("fp8", LARGE[1]), ("int8", INTEGERS[0])):
            for tile in OTHERS[case] if tiles else ():
                timed(table, "persistent", case, shape, tile=tile)
    return table.figures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--compile", action="store_true", help="only make the machine code; needs no GPU")
    parser.add_argument("--only", choices=["check", "time"])
    parser.add_argument("--check", metavar="RUNG", help="check one rung in this process")
    parser.add_argument("--rungs", default=",".join(RUNGS))
    parser.add_argument(
        "--unguarded", action="store_true", help="leave out the check with waits that give up"
    )
    parser.add_argument("--tiles", action="store_true", help="time other tiles, too")
    parser.add_argument("--sustained", action="store_true", help="replay each product for two seconds")
    parser.add_argument("--seconds", type=float, default=40, help="after which a check is ended")
    parser.add_argument("--json")
    options = parser.parse_args()
    names = options.rungs.split(",")
    if options.compile:
        for guarded in (False, True)[: 1 if options.unguarded else 2]:
            compile_all(guarded)
        return 0
    if options.check:
        check(options.check)
        return 0
    begun, passed = time.perf_counter(), names
    if options.only != "time":
        if not options.unguarded:
            passed = in_processes(__file__, passed, True, options.seconds)
        passed = in_processes(__file__, passed, False, options.seconds)
    if options.only != "check":
        figures = time_all(passed, options.tiles, options.sustained)
        if options.json:
            write_whole(options.json, json.dumps(figures, indent=1))
    print(
        f"{time.perf_counter() - begun:.0f} s in all; {len(passed)} of {len(names)} rungs are right",
        flush=True,
    )
    return 0 if len(passed) == len(names) else 1


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
