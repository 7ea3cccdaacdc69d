"""The model of costs against a run: unit costs from small ones, a larger one predicted and measured."""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import ggmlq as gq

from ._scale_model import BITS, Rates, opening, requantizing, surveying


def run() -> tuple[Rates, list[list[str]]]:
    """Unit costs from small runs; a larger one predicted from them and measured."""
    gq.set_num_threads(1)
    cores = min(2, len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory(prefix="ggmlq-scale-", ignore_cleanup_errors=True) as folder:
        _prepare(folder)
        with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
            rates = _rates(folder, cores)
            return rates, _comparison(folder, rates, pool, cores)


def checkpoint(folder: str, files: int, tensors: int, shape: tuple[int, int]) -> tuple[str, int]:
    """FP8 matrices with scales in several files with an index; their folder, and the number of elements."""
    os.makedirs(folder)
    rng, weights = np.random.default_rng(0), {}
    scales = np.ones((-(-shape[0] // 128), -(-shape[1] // 128)), np.float32)
    for number in range(files):
        name = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        codes = rng.integers(0, 100, shape, np.uint8)
        names = [f"model.layers.{number}.mlp.experts.{i}.up_proj.weight" for i in range(tensors)]
        gq.save(f"{folder}/{name}", {n: gq.ScaledArray(codes, scales, "e4m3", (128, 128)) for n in names})
        weights |= {key: name for n in names for key in (n, n + "_scale_inv")}
    Path(folder, "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    return folder, files * tensors * shape[0] * shape[1]


def half(path: str, tensors: int, shape: tuple[int, int]) -> tuple[str, int]:
    """A GGUF file of f16 matrices, and the number of elements."""
    x = np.random.default_rng(0).standard_normal(shape, np.float32).astype(np.float16)
    gq.save(path, {f"blk.{i}.ffn_up.weight": x for i in range(tensors)}, {"general.architecture": "llama"})
    return path, tensors * x.size


def seconds(work: Callable[[], Any], times: int = 3) -> float:
    """The shortest time of some runs."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def _prepare(folder: str) -> None:
    """Compile and import everything before the clock starts: that is no cost of size."""
    checkpoint(f"{folder}/warm", 2, 12, (256, 1024))
    half(f"{folder}/warm.gguf", 6, (1024, 4096))
    _warm_up(folder, None)


def _warm_up(folder: str, executor: Executor | None) -> None:
    for _ in range(2):
        gq.survey(f"{folder}/warm", executor=executor, progress=False)
        gq.convert.quantize(f"{folder}/warm.gguf", f"{folder}/warm2.gguf", "q4_K", executor=executor)


def _rates(folder: str, cores: int) -> Rates:
    few, _ = checkpoint(f"{folder}/few", 8, 10, (1, 32))
    many, _ = checkpoint(f"{folder}/many", 8, 400, (1, 32))
    a, b = (seconds(lambda path=path: gq.open(path).close()) for path in (few, many))
    open_tensor = (b - a) / (8 * 390 * 2)
    flat, elements = checkpoint(f"{folder}/flat", 1, 4, (2048, 4096))
    walk = seconds(lambda: gq.survey(flat, types=[], progress=False))
    trial = seconds(lambda: gq.survey(flat, progress=False))
    source, halves = half(f"{folder}/half.gguf", 4, (1024, 4096))
    encode = seconds(lambda: gq.convert.quantize(source, f"{folder}/out.gguf", "q4_K"))
    write = seconds(lambda: _write(f"{folder}/bytes", 256 << 20), 2)
    start = seconds(lambda: _start_workers(few, cores), 1)
    return Rates(
        max(a / 8 - 20 * open_tensor, 0.0), open_tensor, elements / walk, max(trial - walk, 0.0) / 4,
        halves / encode, start, (256 << 20) / write,
    )  # fmt: skip


def _write(path: str, nbytes: int) -> None:
    with open(path, "wb") as file:
        for _ in range(nbytes >> 24):
            file.write(bytes(1 << 24))
        file.flush()
        os.fsync(file.fileno())
    os.unlink(path)


def _start_workers(path: str, cores: int) -> None:
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        gq.survey(f"{path}/model-00001-of-00008.safetensors", types=[], executor=pool, progress=False)


def _comparison(folder: str, rates: Rates, pool: Executor, cores: int) -> list[list[str]]:
    """Predicted and measured times at another shape, of more files; workers run already."""
    path, elements = checkpoint(f"{folder}/large", 12, 4, (1536, 3072))
    wide, _ = checkpoint(f"{folder}/wide", 40, 100, (1, 32))
    source, halves = half(f"{folder}/large.gguf", 6, (1536, 6144))
    _warm_up(folder, pool)
    ready = Rates(**{**asdict(rates), "start": 0.0})
    out = f"{folder}/o.gguf"
    rows = [("open, 40 files of 200 tensors", opening(ready, 40, 8000), lambda: gq.open(wide).close())]
    for workers, executor in ((1, None), (cores, pool)):
        rows.append((
            f"survey, {elements / 1e6:.0f} M FP8 weights in 12 files, {workers} at work",
            surveying(ready, elements, 48, workers),
            lambda executor=executor: gq.survey(path, executor=executor, progress=False),
        ))  # fmt: skip
        rows.append((
            f"requantize {halves / 1e6:.0f} M weights from f16 to q4_K, {workers} at work",
            requantizing(ready, halves, halves * BITS / 8, workers, rates.write),
            lambda executor=executor: gq.convert.quantize(source, out, "q4_K", executor=executor),
        ))  # fmt: skip
    measured = [(title, predicted, seconds(work, 2)) for title, predicted, work in rows]
    return [[title, f"{p:.2f} s", f"{m:.2f} s", f"{m / p:.2f}"] for title, p, m in measured]
