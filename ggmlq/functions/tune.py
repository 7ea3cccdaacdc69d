"""Measure configurations of the block product on this machine, and keep the fastest as a table.

Each configuration runs once unmeasured, which compiles it, then a few times; its time is the least.
Operands are new for each number of rows, several pairs where they are small, so that weights come
from memory as they do in a model and not from a cache.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..base.devices import cuda_device, cuda_module, on_device_of
from ..base.progress import Progress
from ..base.writing import write_whole
from ..dispatch.problems import ScaledLinear
from ..errors import ConfigError, DeviceError
from ..store.private import Refused
from . import block, configs
from .configs import Config, Table
from .operands import Product, length, product

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
TRIED: dict[str, dict[str, Sequence[int]]] = {
    "cpu": {
        "BLOCK_SIZE_M": (16, 64, 128), "BLOCK_SIZE_N": (64, 128, 256), "BLOCK_SIZE_K": (64, 128),
        "GROUP_SIZE_M": (1, 8, 32), "num_warps": (4,), "num_stages": (3,),
    },
    "cuda": {
        "BLOCK_SIZE_M": (16, 32, 64, 128), "BLOCK_SIZE_N": (32, 64, 128), "BLOCK_SIZE_K": (64, 128),
        "GROUP_SIZE_M": (1, 16, 32), "num_warps": (4, 8), "num_stages": (2, 3, 4),
    },
}  # fmt: skip
CACHED = 64 << 20  # bytes of weights that may stay in a cache between two runs


def tune(
    N: int, K: int, block_n: int = 128, block_k: int = 128, *, Ms: Iterable[int] = ROWS,
    device: str | None = None, tried: Iterable[Mapping[str, int]] | None = None, seconds: float = 0.05,
    save: bool = True, progress: bool | None = None,
) -> Table:  # fmt: skip
    """Find the fastest configuration of ``w8a8_block_fp8_matmul`` for weights [N, K], and write the table.

    Parameters
    ----------
    N, K, block_n, block_k : int
        Shape of the weights and of their blocks.
    Ms : iterable of int
        Numbers of rows of activations.
    device : str, optional
        ``"cpu"`` or ``"cuda"``; by default a GPU if there is one.
    tried : iterable of configurations, optional
        Configurations to compare; by default those of usual tile sizes.
    seconds : float
        How long each is measured, after it is compiled.
    save : bool
        Write the file that :func:`get_w8a8_block_fp8_configs` finds, in ``$GGMLQ_CONFIGS_DIR`` or in
        ``configs`` within the cache folder. Entries for other numbers of rows in it stay.
    progress : bool, optional
        Show a bar: by default on a terminal, when it takes long.

    Returns the table, M → configuration, in ascending order.
    """
    request = f"tune({N}, {K}, {block_n}, {block_k})"
    blocks = length(request, "block_n", block_n), length(request, "block_k", block_k)
    shape = length(request, "N", N), length(request, "K", K)
    rows = sorted({length(request, "Ms", m) for m in Ms})
    device = configs.here() if device is None else device
    if device.partition(":")[0] not in TRIED:
        raise DeviceError(f'{request}: device={device!r}; kernels run on "cpu" and "cuda"; pass one of these')
    candidates = _candidates(request, tried, blocks, device)
    path = _path(request, shape, blocks, device) if save else None
    bar = Progress(len(rows) * len(candidates), "tune", unit="run", show=progress)
    table: Table = {}
    try:
        for m in rows:
            table[m] = _fastest(request, m, shape, blocks, device, candidates, seconds, bar.advance)
            if path is not None:  # at once, so that an interrupt loses no measured entry
                table = _written(request, path, table, blocks)
    finally:
        bar.close()
    return table


def _candidates(
    request: str, tried: Iterable[Mapping[str, int]] | None, blocks: tuple[int, int], device: str
) -> list[Config]:
    if tried is None:
        axes = TRIED[device.partition(":")[0]]
        every = (dict(zip(axes, sizes, strict=True)) for sizes in itertools.product(*axes.values()))
        candidates = [
            configs.checked(request, c, blocks) for c in every if blocks[1] % c["BLOCK_SIZE_K"] == 0
        ]
    else:
        candidates = [configs.checked(request, config, blocks) for config in tried]
    if not candidates:
        raise ConfigError(
            f"{request}: there is nothing to compare; BLOCK_SIZE_K is a power of two that divides "
            f"{blocks[1]}; "
            "pass tried=[…], or another block_k"
        )
    return candidates


def _fastest(
    request: str, m: int, shape: tuple[int, int], blocks: tuple[int, int], device: str,
    candidates: list[Config], seconds: float, advance: Callable[[int], None],
) -> Config:  # fmt: skip
    """The configuration with the least time for m rows."""
    kernel, pairs = block.tuned(device), _operands(request, m, shape, blocks, device)
    problem, times, refused = ScaledLinear.of(pairs[0].x, pairs[0].w), [], ""
    with on_device_of(request, pairs[0].w.codes):
        for config in candidates:
            reason = kernel.refuses(problem, config)
            if reason is None:
                times.append((_time(kernel, pairs, config, seconds), config))
            refused = reason or refused
            advance(1)
    if not times:
        raise ConfigError(
            f"{request}: no configuration can run with M={m}: {refused}; pass others as tried=[…]"
        )
    return min(times, key=lambda entry: entry[0])[1]


def _operands(
    request: str, m: int, shape: tuple[int, int], blocks: tuple[int, int], device: str
) -> list[Product]:
    """Random codes and scales; so many pairs that one's weights leave the cache before they come again."""
    (n, k), (bn, bk) = shape, blocks
    pairs, random = [], np.random.default_rng()
    for _ in range(min(16, max(1, CACHED // (n * k)))):
        a, b = (random.integers(0, 120, (rows, k), np.uint8) for rows in (m, n))
        a_s, b_s = (random.random((rows, -(-k // bk)), np.float32) for rows in (m, -(-n // bn)))
        parts: list[Any] = [a, b, a_s, b_s]
        if device != "cpu":
            parts = [cuda_device().upload(part, device) for part in parts]
        a, b, a_s, b_s = parts
        pairs.append(product(request, a, b, a_s, b_s, blocks, block.NAMES))
    return pairs


def _time(kernel: Any, pairs: list[Product], config: Config, seconds: float) -> float:
    """The least seconds of a run; the device is waited for."""
    on_gpu = pairs[0].w.device != "cpu"
    block.run(kernel, pairs[0], config)
    clock = _gpu_clock if on_gpu else _clock
    best, end, turn = float("inf"), time.perf_counter() + seconds, itertools.cycle(pairs)
    while best == float("inf") or time.perf_counter() < end:
        best = min(best, clock(partial(block.run, kernel, next(turn), config)))
    return best


def _clock(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _gpu_clock(work: Callable[[], Any]) -> float:
    """Between two events on the current stream."""
    cuda = cuda_module("machine.device").cupy().cuda
    start, stop = cuda.Event(), cuda.Event()
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return float(cuda.get_elapsed_time(start, stop)) / 1e3


def _path(request: str, shape: tuple[int, int], blocks: tuple[int, int], device: str) -> Path:
    """The path of the table, in a folder that is there before anything is measured."""
    try:
        folder = configs.own_folder(check=True, new=True)
    except Refused as error:
        raise ConfigError(
            f"{request}: {error}; tables are kept there; set GGMLQ_CONFIGS_DIR, or pass save=False"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{request}: the folder {configs.own_folder()} cannot be made ({error.strerror}); tables are "
            "kept "
            "there; set GGMLQ_CONFIGS_DIR to another, or pass save=False"
        ) from error
    if folder is None:
        raise ConfigError(
            f"{request}: there is no folder for tables, GGMLQ_CACHE_DIR switches the cache off; set "
            "GGMLQ_CONFIGS_DIR, or pass save=False"
        )
    if not os.access(folder, os.W_OK):
        raise ConfigError(
            f"{request}: the folder {folder} cannot be written to; tables are kept there; set "
            "GGMLQ_CONFIGS_DIR to another, or pass save=False"
        )
    path = folder / configs.file_name(*shape, blocks, configs.device_name(device))
    if path.exists():
        configs.parsed(path, blocks)  # an error of a damaged one comes before anything is measured
    return path


def _written(request: str, path: Path, table: Table, blocks: tuple[int, int]) -> Table:
    """Write the table, with the entries that the file had before, and return it; the file appears whole."""
    before = configs.parsed(path, blocks) if path.exists() else {}
    whole = dict(sorted((before | table).items()))
    text = json.dumps({str(m): config for m, config in whole.items()}, indent=4) + "\n"
    try:
        write_whole(path, text)
    except OSError as error:
        raise ConfigError(
            f"{request}: {path} cannot be written ({error.strerror}); the table is {whole}; set "
            "GGMLQ_CONFIGS_DIR to another folder"
        ) from error
    return whole
