"""Measures the peak rates of a CPU: memory read and copied, and products in registers by arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ..base.threads import num_threads, share
from ..cpu.amx import permission
from ..cpu.machine.kernels import kernel
from ..cpu.machine.peaks import LINE, NEAR, products
from ..cpu.machine.target import target
from ..cpu.machine.workers import share_kernel

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
