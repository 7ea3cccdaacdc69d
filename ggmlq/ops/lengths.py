"""``Lengths``: the number of positions of each sequence of a cache, on the host and on a GPU.

On a GPU the numbers are an array that stays where it is, so kernels of a recorded graph read and write it.
The host knows them too, and refuses what has no room, until something changes them that it does not see: new
positions whose number is on the GPU, or a graph that is replayed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.devices import cuda_device, cuda_module, is_host, on_device_of
from ..errors import DeviceError

Numbers = NDArray[np.int64]


class Lengths:
    """The lengths of sequences on the host."""

    known: Numbers | None  # what the host knows

    def __init__(self, batch: int) -> None:
        self.known = np.zeros(batch, np.int64)
        self.batch = batch

    @property
    def shown(self) -> Any:
        """The lengths as users see them; here a copy."""
        return self.read().copy()

    @property
    def attended(self) -> Any:
        """The lengths as attention reads them."""
        return self.read()

    def read(self) -> Numbers:
        """The lengths, on the host."""
        assert self.known is not None
        return self.known

    def placed(self, more: Any, heads: int, queries: int, positions: int) -> Any:
        """Ids [B, HK, T] of rows [B · HK · positions] for new positions; -1 for those that there are not."""
        steps, starts = np.arange(queries), np.arange(self.batch * heads).reshape(-1, heads) * positions
        rows = (self.read()[:, None] + steps)[:, None] + starts[:, :, None]
        return np.where((steps < more[:, None])[:, None], rows, -1)

    def grow(self, more: Any) -> None:
        """Count new positions, whose rows are there."""
        self.known = self.read() + more

    def skip(self, count: int) -> None:
        """Count positions of every sequence whose rows were put without :meth:`placed`."""
        self.grow(count)

    def cut(self, most: Any) -> None:
        """Keep ``most`` positions, of all or of each its number."""
        self.known = np.minimum(self.read(), most)


class DeviceLengths(Lengths):
    """The lengths of sequences on a GPU."""

    def __init__(self, batch: int, xp: Any) -> None:
        super().__init__(batch)
        # Complete, as are keys and values, before another stream sees it.
        self._there = cuda_device().once("a KVCache is new", lambda: xp.zeros(batch, np.int64))
        self._number = self._there.device.id
        self._late = False  # the array is not what the host knows
        self._seen = False  # others read the array: users and graphs
        self._recorded = False  # graphs change it

    @property
    def shown(self) -> Any:
        self._seen = True
        return self._array()

    @property
    def attended(self) -> Any:
        """The host's where it knows them and all are equal: then no other positions are looked at."""
        known = self.known
        if known is not None and (known == known[0]).all() and not self._capturing:
            return known
        self._seen |= self._capturing
        return self._array()

    @property
    def _capturing(self) -> bool:
        return bool(cuda_device().capturing(self._number))

    def read(self) -> Numbers:
        """The lengths; if the host does not know them it waits for the GPU."""
        if self.known is not None:
            return self.known
        cuda_device().refuse_capture("lengths of a KVCache are read on the host")
        numbers: Numbers = self._there.get()
        if not self._recorded:
            self.known = numbers
        return numbers

    def placed(self, more: Any, heads: int, queries: int, positions: int) -> Any:
        lengths, numbers, same = self._array(), more, -1
        if is_host(more):
            same, numbers = (int(more[0]), lengths) if (more == more[0]).all() else (-1, self._copied(more))
        self._changes()
        self._late = self.known is not None
        module = cuda_module("attention.operands")
        return module.cache_rows(lengths, numbers, same, heads, queries, positions)

    def grow(self, more: Any) -> None:
        self._late = False
        if self.known is not None:
            self.known = self.known + more if is_host(more) else None

    def skip(self, count: int) -> None:
        """Count positions; the array follows later where nobody else reads it."""
        if self._seen or self.known is None or self._capturing:
            with on_device_of("advance of a KVCache", self._there):
                lengths = self._array()
                lengths += count
            self._changes()
        else:
            self._late = True
        if self.known is not None:
            self.known = self.known + count

    def cut(self, most: Any) -> None:
        lengths = self._array()
        there = self._copied(most) if is_host(most) and np.ndim(most) else most
        self._changes()
        cuda_device().cupy().minimum(lengths, there, out=lengths)
        if self.known is not None:
            self.known = np.minimum(self.known, most) if is_host(most) else None

    def _changes(self) -> None:
        """Give up what the host knows where a graph records the change."""
        if self._capturing:
            self.known, self._seen, self._recorded = None, True, True

    def _array(self) -> Any:
        """The array, with what the host knows."""
        if self._late and self.known is not None:
            cuda_device().refuse_capture("the GPU does not have the lengths of this KVCache yet")
            self._there[...] = self._copied(self.known)
            self._late = False
        return self._there

    def _copied(self, numbers: Any) -> Any:
        """Numbers of the host on the GPU."""
        if self._capturing:
            raise DeviceError(
                "a KVCache while a CUDA graph is recorded: numbers of positions that differ are on the host; "
                "the graph could not see others; pass them in an array on the device"
            )
        return cuda_device().cupy().asarray(numbers, np.int64)
