"""A prepared launch: its arguments lie in memory of their own, and each call fills in a few addresses.

A launch from Python spends its time on turning arguments into words, most of which are the same in every
call. Here they are written once. An address that only a call knows is a slot (base/slots.py); ``launch``
gets all such addresses and writes them to their places. One thread at a time may use such a launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ...base.slots import Slot
from . import submit

STREAM = 32  # offset of the stream in the shape of a launch


class PreparedLaunch:
    """A kernel with its grid and its arguments, made by :meth:`Kernel.prepare`."""

    def __init__(
        self, function: int, grid: Sequence[int], block: Sequence[int], words: Sequence[Any], shared: int,
        early: bool, cluster: int, together: bool,
    ) -> None:  # fmt: skip
        self._empty = 0 in grid
        count = len(words)
        self._words = (ctypes.c_uint64 * count)(*(0 if type(word) is Slot else word for word in words))
        first = ctypes.addressof(self._words)
        self._pointers = (ctypes.c_void_p * count)(*(first + 8 * i for i in range(count)))
        self._slots = [(i, word.number, word.offset) for i, word in enumerate(words) if type(word) is Slot]
        attributes_at, attribute_count, self._owner = submit.attributes(early, cluster, together)
        self._shape = ctypes.create_string_buffer(
            submit.SHAPE.pack(
                *grid,
                *submit.ONES[len(grid)],
                *block,
                *submit.ONES[len(block)],
                shared,
                0,
                attributes_at,
                attribute_count,
            )
        )
        self._stream = ctypes.c_uint64.from_buffer(self._shape, STREAM)
        self._at = ctypes.addressof(self._shape), function, ctypes.addressof(self._pointers), 0
        self._facts = grid, block, shared
        self._driver = submit.driver_launch()

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Launch on a stream of the device that it was prepared for. Empty grids do nothing."""
        if self._empty:
            return
        words = self._words
        for i, number, offset in self._slots:
            words[i] = addresses[number] + offset
        self._stream.value = stream
        if status := self._driver(*self._at):
            submit.launch_again(status, self._at, *self._facts)
