"""Quantizers of scaled arrays on a GPU: bytes read and written a second, arrays rotated beyond the cache.

    python bench/bench_scaled_quantizers.py [--json FILE] [--all] [--rounds 12]

Input, codes and scales are different memory in each call of a round, so that they come from memory and go
there; a round is one CUDA graph. Before it is timed the codes are filled with other bytes, and after it a few
rows of each result are held to the rule in NumPy. A copy of the device's own stands beside: it is the roof.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import ggmlq as gq
from bench.replays import Time, replayed
from ggmlq.base.writing import write_whole
from ggmlq.codes import CODES, scaling
from ggmlq.codes.scaling import Rule
from ggmlq.codes.tiling import Tile, tiling
from ggmlq.testing.machine import commit, machine

ROTATED = 400e6  # bytes of all arrays of a round, several times what the cache holds
SHAPES = ((4096, 7168), (4096, 16384))
TILES: tuple[Tile, ...] = ((1, 128), (128, 128))
OTHERS: tuple[Tile, ...] = ((1, None), (None, None), (1, 32), (64, 64), (1, 1024), (3, 40))
DTYPES = ("bfloat16", "float16", "float32")
PEER = 1054  # GB/s of the Triton kernel for 1×128 on an H200


def main() -> None:
    """Measure, print a table, write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures and what they were measured on")
    parser.add_argument("--all", action="store_true", help="other tiles and codes too")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--turns", type=int, help="rows that a warp of 16-bit floats has at a time: 1 or 2")
    parser.add_argument("--pieces", type=int, help="pieces of a thread for blocks: 4 or 8")
    args = parser.parse_args()
    cupy = _cupy()
    _try(args.turns, args.pieces)
    figures: list[dict[str, Any]] = [{"what": "copy", **copied(cupy, args.rounds)}]
    _say(figures[-1])
    for shape, tile, dtype, code, scale, order in cases(args.all):
        rule = Rule(CODES[code], scale, np.float32(1e-10), "half_even", code == "uint8", order)
        what = f"{dtype} {list(shape)} to {code}, {tile}, scales {scale} in {order}"
        figures.append({"what": what, **measured(cupy, shape, tile, dtype, rule, args.rounds)})
        _say(figures[-1])
    if args.all:
        for dtype in ("float16", "float32"):
            figures.append(
                {"what": f"e4m3 {list(SHAPES[0])} to {dtype}", **decoded(cupy, dtype, args.rounds)}
            )
            _say(figures[-1])
    print(f"(the Triton kernel of the document for 1x128: {PEER} GB/s)")
    if args.json:
        about = {"commit": commit(), "ggmlq": machine()}
        write_whole(args.json, json.dumps({**about, "GB/s": figures}, indent=1) + "\n")


def _try(turns: int | None, pieces: int | None) -> None:
    """Set numbers that choose other kernels than the library does, to see which is faster."""
    from ggmlq.cuda.kernels.quantize_scaled import _kernels

    if turns:
        _kernels.ROWS_AT_ONCE |= {"float16": turns, "bfloat16": turns}
    if pieces:
        _kernels.MAX_LOADS = pieces


def cases(everything: bool) -> Any:
    """The cases: shape, tile, dtype, code, type and order of the scales."""
    for shape in SHAPES:
        for tile in TILES:
            for dtype in DTYPES:
                for order in ("rows", "columns"):
                    yield shape, tile, dtype, "e4m3", "float32", order
    if everything:
        for tile in (*TILES, *OTHERS):
            for code, scale in (
                ("e4m3", "float32"),
                ("e4m3", "e8m0"),
                ("int8", "float32"),
                ("uint8", "float32"),
            ):
                yield SHAPES[0], tile, "bfloat16", code, scale, "rows"


def measured(cupy: Any, shape: tuple[int, int], tile: Tile, dtype: str, rule: Rule, rounds: int) -> Any:
    """GB/s and microseconds of a call, from a graph of calls on different memory."""
    from ggmlq.cuda.kernels import quantize_scaled

    over = tiling(tile, *shape)
    results = [quantize_scaled.room_for(over, rule)]
    one = shape[0] * shape[1] * (4 if dtype == "float32" else 2)
    size = one + sum(part.nbytes for part in results[0] if part is not None)
    count = max(2, int(ROTATED // size) + 1)
    results += [quantize_scaled.room_for(over, rule) for _ in range(count - 1)]
    arrays = [floats(cupy, shape, dtype) for _ in range(count)]

    def call(i: int) -> Callable[[], object]:
        return lambda: quantize_scaled.quantize_into(arrays[i], over, rule, results[i])

    def poison() -> None:
        for result in results:
            result.codes.view(np.uint8).fill(0x5A)

    def judge() -> None:
        for x, result in zip(arrays, results, strict=True):
            check(x, over, rule, result)

    time = replayed(cupy, [call(i) for i in range(count)], poison, judge, rounds)
    return _rate(size, time)


def decoded(cupy: Any, dtype: str, rounds: int) -> Any:
    """GB/s of decoding, with scales for 1x128; results are new memory in each call."""
    many = [gq.quantize_scaled(floats(cupy, SHAPES[0], "float32"), "e4m3") for _ in range(6)]
    outputs: list[Any] = []

    def call(s: gq.ScaledArray) -> Callable[[], object]:
        return lambda: outputs.append(s.dequantize(dtype))

    size = many[0].nbytes + many[0].codes.size * np.dtype(dtype).itemsize
    return _rate(size, replayed(cupy, [call(s) for s in many], int, int, rounds))


def floats(cupy: Any, shape: tuple[int, int], dtype: str) -> Any:
    """Normal numbers; bfloat16 where CuPy knows it by ml_dtypes."""
    x = cupy.random.standard_normal(shape, dtype=cupy.float32)
    return x if dtype == "float32" else x.astype(np.dtype(dtype))


def check(x: Any, over: Any, rule: Rule, got: Any) -> None:
    """The first tiles of rows, against the rule in NumPy; the whole where there is but one."""
    rows = over.r if over.r < over.rows else over.rows
    part = tiling((over.r, over.c), rows, over.columns)
    want = scaling.quantize(x[:rows].get(), part, rule)
    assert np.array_equal(got.codes[:rows].get(), want.codes)
    assert np.array_equal(got.scales[: part.shape[0]].get(), want.scales)


def copied(cupy: Any, rounds: int) -> Any:
    """GB/s and microseconds of a copy of float32 [8192, 14336]."""
    pairs = [[cupy.empty((8192, 14336), np.float32) for _ in range(2)] for _ in range(2)]
    work = [lambda a=a, b=b: cupy.copyto(a, b) for a, b in pairs]
    return _rate(2 * pairs[0][0].nbytes, replayed(cupy, work, int, int, rounds))


def _rate(size: int, time: Time) -> dict[str, float]:
    return {"GB/s": round(1e-3 * size / time.us), "us": round(time.us, 1), "host_us": round(time.host, 1)}


def _say(figure: dict[str, Any]) -> None:
    print(f"{figure['GB/s']:6} GB/s {figure['us']:8.1f} us   {figure['what']}", flush=True)


def _cupy() -> Any:
    import ml_dtypes  # noqa: F401  # so that NumPy knows bfloat16 by its name

    from ggmlq.cuda.driver import device

    return device.cupy()


def bench_small() -> None:
    """The smoke test of this file; it needs a GPU."""
    try:
        cupy = _cupy()
    except gq.errors.GGMLQError as error:
        pytest.skip(str(error))
    rule = Rule(CODES["e4m3"], "float32", np.float32(1e-10), "half_even", False)
    assert measured(cupy, (64, 256), (1, 128), "bfloat16", rule, 1)["GB/s"] >= 0


if __name__ == "__main__":
    main()
