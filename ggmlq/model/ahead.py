"""``Ahead``: plans of products for all sizes of steps, made on the side while a model's weights are uploaded.

A plan serves all weights of a format and shape, and a layer or two has them all. What takes time is to choose
a kernel, to load it and to record its launches. Without this the first step of each size would wait for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..base.devices import cuda_device, cuda_module, place_of
from ..dispatch.ladder import contenders
from ..errors import GGMLQError
from ..ops.linear import linear, problem_of
from .replay import FEW, SIZES, Arena

KERNELS = 2, 4, 8, FEW  # the most rows of kernels for few, which are loaded so
ROWS = *KERNELS, *SIZES[FEW:]
MISSED = suppress(GGMLQError, RuntimeError, MemoryError)  # where it is needed, the call says why


class Ahead:
    """A thread that multiplies rows of all sizes with weights of each format and shape, on its own stream."""

    def __init__(self, device: str, invariant: bool) -> None:
        self._device, self._invariant = device, invariant
        self._queue, self._stopped = SimpleQueue[Any](), Event()
        self._thread = Thread(target=self._work, name="ggmlq: plans of products", daemon=True)
        self._thread.start()

    def add(self, weights: Iterable[QuantArray], few: bool = False) -> None:
        """Have plans made for weights, or for ``few`` rows of these, and what is prepared for these."""
        for q in weights:
            if q.ndim == 2 and q.format.block_size > 1:
                self._queue.put((q, ROWS[: len(KERNELS)] if few else ROWS))

    def end(self) -> None:
        """Say that there are no more weights."""
        self._queue.put(None)

    def stop(self) -> None:
        """End the thread after the product that it is at."""
        self._stopped.set()
        self.end()
        self._thread.join()

    def _work(self) -> None:
        gpu = cuda_device()
        xp = gpu.cupy()
        with gpu.named(self._device):
            arena, cuda_module("driver.launch").RECORDING.ahead = Arena(xp), True
            with arena.stream, xp.cuda.using_allocator(arena):
                firsts = dict[Any, QuantArray]()
                for q, sizes in iter(self._queue.get, None):
                    first = firsts.setdefault((q.format.name, q.shape), q)
                    if first is q:
                        self._multiply(q, sizes)
                    for make, _ in first.prepared_by():
                        if not self._stopped.is_set():
                            with MISSED:
                                q.prepared(make)
                arena.stream.synchronize()
            arena.drop()

    def _multiply(self, q: QuantArray, sizes: Iterable[int]) -> None:
        """Products of so many rows, of which nobody reads the results."""
        x = cuda_device().cupy().zeros((SIZES[-1], q.shape[1]), np.float32)
        for rows in sizes:
            timed = contenders(problem_of(x[:rows], q, place_of(x)))  # by the first step, not beside others
            if not (timed or self._stopped.is_set()):
                with MISSED:
                    before = len(q.prepared_by())
                    linear(x[:rows], q, invariant=self._invariant)
                    if len(q.prepared_by()) > before:  # then its launches were not recorded
                        linear(x[:rows], q, invariant=self._invariant)
