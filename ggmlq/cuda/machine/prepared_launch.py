"""A launch that is prepared: its words lie in memory of their own, and a call fills in a few addresses.

What costs time in a launch from Python is to bring arguments into words, of which most are the same in every
call. Here they are written once. An address that only a call knows is a :class:`Hole`; ``launch`` is given
all such addresses and writes them where they belong. One thread at a time may use such a launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from . import submit

STREAM = 32  # where in the shape of a launch its stream stands


class AddressSlot:
    """An address that a call brings, by its place among them, and some bytes behind it."""

    __slots__ = ("offset", "which")

    def __init__(self, which: int, offset: int = 0) -> None:
        self.which, self.offset = which, offset

    def __add__(self, more: int) -> AddressSlot:
        return AddressSlot(self.which, self.offset + more)


class PreparedLaunch:
    """A kernel with its grid and its arguments; :meth:`Kernel.ready` makes it."""

    def __init__(
        self, function: int, grid: Sequence[int], block: Sequence[int], words: Sequence[Any], shared: int,
        early: bool, cluster: int, together: bool,
    ) -> None:  # fmt: skip
        self._empty = 0 in grid
        count = len(words)
        self._words = (ctypes.c_uint64 * count)(*(0 if type(each) is AddressSlot else each for each in words))
        first = ctypes.addressof(self._words)
        self._pointers = (ctypes.c_void_p * count)(*(first + 8 * i for i in range(count)))
        self._holes = [
            (i, each.which, each.offset) for i, each in enumerate(words) if type(each) is AddressSlot
        ]
        more, told, self._owner = submit.attributes(early, cluster, together)
        self._shape = ctypes.create_string_buffer(
            submit.SHAPE.pack(
                *grid, *submit.ONES[len(grid)], *block, *submit.ONES[len(block)], shared, 0, more, told
            )
        )
        self._stream = ctypes.c_uint64.from_buffer(self._shape, STREAM)
        self._at = ctypes.addressof(self._shape), function, ctypes.addressof(self._pointers)
        self._facts = grid, block, shared

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Onto a stream of the device that it was prepared for. Empty grids do nothing."""
        if self._empty:
            return
        words = self._words
        for i, which, offset in self._holes:
            words[i] = addresses[which] + offset
        self._stream.value = stream
        submit.launch_at(*self._at, *self._facts)
