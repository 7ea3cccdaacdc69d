"""The roofs of a machine, CPU or GPU, and the least time that a product takes under them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ..base.threads import num_threads, share
from ..cpu.amx import permission
from ..cpu.machine.kernels import kernel
from ..cpu.machine.peaks import LINE, NEAR, products
from ..cpu.machine.target import target
from ..cpu.machine.workers import share_kernel
from ..dispatch.ladder import Rung
from . import timing

PEAK = 4096  # rows and columns of the library's product
NEAREST = {"f16": "f32", "bf16x": "bf16", "bf16s": "bf16", "q8": "q8", "ggml-mmvq": "q8"}


@dataclass(frozen=True)
class Roofs:
    """The peak rates of a machine: bytes and operations a second."""

    read: float
    products: dict[str, float]  # by arithmetic; "" for all that have none of their own
    copy: float = 0.0  # bytes read and written in a copy; 0: not measured

    def floors(self, rung: Rung, nbytes: float, operations: float) -> tuple[float, float]:
        """The least seconds of a product: those of its memory, and those of its arithmetic."""
        kind = NEAREST.get(rung.arithmetic, rung.arithmetic)
        rate = self.products.get(kind) or self.products.get("") or self.products["f32"]
        return nbytes / self.read, operations / rate


def roofs_of(arrays: Any, nbytes: int) -> Roofs:
    """The roofs of a device, measured once. ``arrays``: NumPy or CuPy; a CPU reads ``nbytes`` repeatedly."""
    return _of_cpu(nbytes) if arrays is np else _of_gpu(arrays)


@lru_cache(32)
def _of_cpu(nbytes: int) -> Roofs:
    rates = {name: _rate(name) for name in ("f32", "q8", "bf16")}
    return Roofs(read_rate(nbytes), rates, copy_rate(nbytes))


@cache
def _rate(arithmetic: str) -> float:
    return product_rate(arithmetic)


@cache
def _of_gpu(cupy: Any) -> Roofs:
    peaks = timing.roofs(cupy, PEAK, PEAK, PEAK)
    products = {"": peaks["cublas_f16_TFLOPS"] * 1e12}
    return Roofs(timing.read_rate(cupy) * 1e9, products, peaks["copy_GBps"] * 1e9)


# --- peak rates of a CPU: memory read and copied, products in registers -------------------------

ROUNDS = 20_000  # steps of an index: about 0.1 ms
RUNS, SECONDS = 5, 0.25  # both at least: the fastest counts, for others use the machine too
GRAIN = 1 << 8  # lines that a thread reads at once


def read_rate(nbytes: int) -> float:
    """Bytes a second of reads, by all threads, of a region that is read again and again."""
    memory, result = np.ones(max(nbytes // LINE, GRAIN) * LINE, np.uint8), np.zeros(1, np.int64)
    lines = len(memory) // LINE
    arguments = (memory.ctypes.data, 0, result.ctypes.data)
    seconds = _fastest(lambda: share_kernel(kernel("machine.peaks.memory_reader"), arguments, lines, GRAIN))
    return len(memory) / seconds


def copy_rate(nbytes: int) -> float:
    """Bytes a second that all threads read and write in a copy, both counted, over and over again."""
    source, copy = np.ones(max(nbytes, GRAIN * LINE), np.uint8), np.zeros(max(nbytes, GRAIN * LINE), np.uint8)

    def part(first: int, stop: int) -> None:
        copy[first:stop] = source[first:stop]

    return 2 * len(source) / _fastest(lambda: share(part, len(source)))


def product_rate(arithmetic: str) -> float:
    """Operations a second of all threads' products in an arithmetic: two for each product."""
    if arithmetic == "bf16" and permission.refused() is None:
        work, each = kernel("amx.instructions.multiplier"), 4 * 16 * 16 * 32
    else:
        floats = arithmetic != "q8"
        work, each = kernel("machine.peaks.multiplier", target(), floats), products(target(), floats)
    memory, result = np.zeros(2 * NEAR, np.uint8), np.zeros(2 * NEAR, np.uint8)
    arguments = (-(-memory.ctypes.data // LINE) * LINE, ROUNDS, -(-result.ctypes.data // LINE) * LINE)
    parts = 4 * num_threads()
    return 2 * each * ROUNDS * parts / _fastest(lambda: share_kernel(work, arguments, parts))


def _fastest(work: Callable[[], None]) -> float:
    """Seconds of the fastest of some runs, after one that compiles."""
    work()
    times: list[float] = []
    while len(times) < RUNS or sum(times) < SECONDS:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
