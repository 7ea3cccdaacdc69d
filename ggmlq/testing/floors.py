"""The roofs of a machine, CPU or GPU, and the least time that a product takes under them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ..dispatch.ladder import Rung
from . import roofs as of_cpu
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
    return Roofs(of_cpu.read_rate(nbytes), rates, of_cpu.copy_rate(nbytes))


@cache
def _rate(arithmetic: str) -> float:
    return of_cpu.product_rate(arithmetic)


@cache
def _of_gpu(cupy: Any) -> Roofs:
    peaks = timing.roofs(cupy, PEAK, PEAK, PEAK)
    products = {"": peaks["cublas_f16_TFLOPS"] * 1e12}
    return Roofs(timing.read_rate(cupy) * 1e9, products, peaks["copy_GBps"] * 1e9)
