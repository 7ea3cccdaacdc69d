"""Arguments of a kernel as the driver takes them: a table of addresses, each of one parameter's bytes.

CuPy makes an object of each argument of each launch, which takes longer than the launch itself. Here
a kernel keeps the room of earlier launches and writes into it. The driver copies the bytes while it
is called, but other threads may run meanwhile, so a launch takes the room for itself.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from .language import types

LETTERS = {  # of the module struct
    types.uint64: "Q", types.int64: "q", types.uint32: "I", types.int32: "i",
    types.float32: "f", types.float64: "d",
}  # fmt: skip


class Room(NamedTuple):
    """The bytes of one launch's arguments, and where the table of their addresses lies."""

    words: ctypes.Array[ctypes.c_char]
    addresses: ctypes.Array[ctypes.c_void_p]
    table: int


class Arguments:
    """The arguments of kernels with these parameters; arrays stand for their addresses.

    For a parameter that is an array to Numba, its sizes and strides go along.
    """

    def __init__(self, parameters: Sequence[Any], array: Any) -> None:
        self._array = array
        self._shaped = tuple(isinstance(kind, types.Array) for kind in parameters)
        self._plain = not any(self._shaped)
        letters = "".join(_letters(kind) for kind in parameters)
        sizes = [struct.calcsize("=" + letter) for letter in letters]
        self._offsets = [0, *accumulate(sizes)][:-1]
        self._layout = struct.Struct("=" + letters)
        self._spare: list[Room] = []

    def write(self, arguments: tuple[Any, ...]) -> Room:
        """Room with these arguments in it, the caller's until :meth:`give_back`."""
        array = self._array
        values: list[Any]
        if self._plain:
            values = [each.data.ptr if isinstance(each, array) else each for each in arguments]
        else:
            values = list(self._flat(arguments))
        try:
            room = self._spare.pop()
        except IndexError:
            room = self._made()
        self._layout.pack_into(room.words, 0, *values)
        return room

    def give_back(self, room: Room) -> None:
        """Let another launch have it."""
        self._spare.append(room)

    def _flat(self, arguments: tuple[Any, ...]) -> Iterator[Any]:
        for shaped, each in zip(self._shaped, arguments, strict=True):
            if shaped:
                yield from (0, 0, each.size, each.itemsize, each.data.ptr, *each.shape, *each.strides)
            else:
                yield each.data.ptr if isinstance(each, self._array) else each

    def _made(self) -> Room:
        words = ctypes.create_string_buffer(self._layout.size)
        start = ctypes.addressof(words)
        addresses = (ctypes.c_void_p * len(self._offsets))(*[start + offset for offset in self._offsets])
        return Room(words, addresses, ctypes.addressof(addresses))


def _letters(kind: Any) -> str:
    """An array is to Numba: owner, parent, elements, bytes of one, address, shape, strides."""
    return "q" * (5 + 2 * kind.ndim) if isinstance(kind, types.Array) else LETTERS[kind]
