"""The launch of a kernel on a stream, by the driver's own call, which allows dependent launches.

CuPy's launch knows nothing of kernels that may start while the one before still runs. The arguments are
words of eight bytes in memory of each thread's own; the driver copies them before it returns.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from ...base.slots import Rows, Slot
from ...errors import DeviceError
from . import device
from .calls import library

MOST = 544  # words of arguments that a kernel's 4352 bytes hold; an array of two axes takes nine
WORDS = [struct.Struct(f"<{count}Q") for count in range(MOST + 1)]
SHAPE = struct.Struct("<7I4xQQI4x")  # CUlaunchConfig: grid, block, shared memory, stream, attributes, count
EARLY = struct.pack("<I4xI60x", 6, 1)  # CUlaunchAttribute: programmatic stream serialization is allowed
TOGETHER = struct.pack("<I4xI60x", 2, 1)  # CUlaunchAttribute: all blocks at the same time (cooperative)
CLUSTER = struct.Struct("<I4x3I52x")  # CUlaunchAttribute: blocks of a cluster, in three directions
NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
ONES = ((1, 1, 1), (1, 1), (1,), ())  # axes that a grid or a block leaves out


class _Taping(threading.local):
    """The list of a thread to which launches are added, with all words as they are; None without one."""

    steps: list[Any] | None = None


TAPING = _Taping()


class _Memory(threading.local):
    """The memory that the driver reads of a launch, and its addresses."""

    def __init__(self) -> None:
        self.words = ctypes.create_string_buffer(8 * MOST)
        self.shape = ctypes.create_string_buffer(SHAPE.size)
        first = ctypes.addressof(self.words)
        self.pointers = (ctypes.c_void_p * MOST)(*(first + 8 * i for i in range(MOST)))
        self.places = tuple(ctypes.addressof(buffer) for buffer in (self.shape, self.pointers))


_MEMORY = _Memory()


@cache
def driver_launch() -> Callable[[int, int, int, int], int]:
    """The driver's function, which exists from CUDA 11.8 on."""
    function: Any = library().cuLaunchKernelEx
    function.argtypes, function.restype = [ctypes.c_void_p] * 4, ctypes.c_int
    return function  # type: ignore[no-any-return]


@cache
def attributes(early: bool, cluster: int, together: bool) -> tuple[int, int, Any]:
    """The attributes of a launch: their address, their number, and the owner of the memory."""
    packed = EARLY * early + (CLUSTER.pack(4, cluster, 1, 1) if cluster > 1 else b"")
    packed += TOGETHER * together
    memory = ctypes.create_string_buffer(packed, max(len(packed), 1))
    return ctypes.addressof(memory), len(packed) // len(EARLY), memory


def submit(
    function: int, grid: Sequence[int], block: Sequence[int], words: Sequence[int], shared: int,
    stream: int, early: bool, cluster: int = 1, together: bool = False,
) -> None:  # fmt: skip
    """Launch a loaded function. ``early``: it may start before its predecessor has ended.

    ``cluster``: neighbouring blocks that run together and see each other's shared memory.
    ``together``: all blocks run at the same time.
    """
    memory = _MEMORY
    shape_at, pointers_at = memory.places
    attributes_at, count, _ = attributes(early, cluster, together)
    WORDS[len(words)].pack_into(memory.words, 0, *words)
    SHAPE.pack_into(
        memory.shape,
        0,
        *grid,
        *ONES[len(grid)],
        *block,
        *ONES[len(block)],
        shared,
        stream,
        attributes_at,
        count,
    )
    places = shape_at, function, pointers_at, 0
    if status := driver_launch()(*places):
        launch_again(status, places, grid, block, shared)
    if TAPING.steps is not None:
        TAPING.steps.append(
            LoadedLaunch(function, grid, block, tuple(words), shared, early, cluster, together)
        )


def launch_again(
    status: int, places: tuple[int, int, int, int], grid: Sequence[int], block: Sequence[int], shared: int
) -> None:
    """Launch once more in a thread that has not used the GPU yet; any other status is an error.

    ``places``: the operands of the driver's function: addresses of the shape and of the arguments.
    """
    if status == NO_CONTEXT:
        device.present().cuda.runtime.free(0)  # which makes the context current
        status = driver_launch()(*places)
    if status:
        raise DeviceError(
            f"launch of {tuple(grid)} blocks of {tuple(block)} threads with {shared} bytes of shared memory: "
            f"{device.present().cuda.driver.CUDADriverError(status)}; what ran before it may have failed"
        )


# Prepared launches: all that a product tells the driver lies in one piece of memory, packed once.
#
#     words    [shape of the first launch, 7 words][its arguments] [shape of the second] …
#
# A launch from Python spends its time on turning arguments into words, most of which are the same in every
# call. Here they are written once. An address that only a call knows is a slot (base/slots.py). A call copies
# the words to a room that no other call uses, where the addresses of all words are written beside them
# already; there it fills in the slots and the stream. So any number of threads may use prepared launches.
# Those for another number of rows, or for other weights, are one more copy of the words: a few differ.

SHAPE_WORDS, STREAM = SHAPE.size // 8, 4  # words of a shape; the one of them that is the stream
ROOM = 512  # words of a room, at least


class LoadedLaunch(NamedTuple):
    """A loaded function with its grid, and its arguments as words; some are slots, or follow from rows."""

    function: int
    grid: Sequence[int]
    block: Sequence[int]
    words: Sequence[Any]
    shared: int
    early: bool
    cluster: int
    together: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of 32 bits with which its shape begins: grid, block, shared memory."""
        grid, block = self.grid, self.block
        return (*grid, *ONES[len(grid)], *block, *ONES[len(block)], self.shared)

    def shape(self) -> bytes:
        """The shape as the driver reads it."""
        attributes_at, count, _ = attributes(self.early, self.cluster, self.together)
        return SHAPE.pack(*self.sizes, 0, attributes_at, count)

    def following(self) -> Iterator[Follower]:
        """The words that follow from rows: first those of the shape, then arguments, behind each other."""
        sizes = (*self.sizes, 0)
        for i in range(0, len(sizes), 2):
            if any(type(size) is Rows for size in sizes[i : i + 2]):
                yield Follower(i // 2, _word_of(*sizes[i : i + 2]))
        for i, word in enumerate(self.words):
            if type(word) is Rows:
                yield Follower(SHAPE_WORDS + i, word.of)


class Follower(NamedTuple):
    """A word that follows from the rows of a product: its place, and the function for it."""

    place: int
    of: Callable[[int], int]


def _word_of(low: int, high: int) -> Callable[[int], int]:
    """The function for a word of two numbers, one of which follows from rows, or both."""
    low_of, high_of = (size.of if type(size) is Rows else _always(size) for size in (low, high))
    return lambda rows: low_of(rows) | high_of(rows) << 32


def _always(number: int) -> Callable[[int], int]:
    return lambda rows: number


class _Room:
    """Memory for words of prepared launches, and beside it the addresses of all its words."""

    def __init__(self, size: int) -> None:
        self.words = (ctypes.c_uint64 * size)()
        first = ctypes.addressof(self.words)
        self.pointers = (ctypes.c_void_p * size)(*range(first, first + 8 * size, 8))
        self.view = memoryview(self.words).cast("B").cast("Q")
        self.size, self.places = size, (first, ctypes.addressof(self.pointers))


_ROOMS: list[_Room] = []  # those that no thread uses


class PreparedLaunches:
    """Launches with slots for the addresses of a call; empty grids are left out."""

    def __init__(self, launches: Iterable[LoadedLaunch]) -> None:
        packed, self.followers = bytearray(), list[Follower]()
        self.slots: list[tuple[int, int, int]] = []  # place, number, offset
        self.launches: list[tuple[int, int, int, LoadedLaunch]] = []  # bytes to its shape and its arguments
        for launch in launches:
            if 0 not in launch.grid:
                at, words = len(packed) // 8, launch.words
                self.launches.append((8 * at, launch.function, 8 * (at + SHAPE_WORDS), launch))
                self.followers += (Follower(at + place, of) for place, of in launch.following())
                for i, word in enumerate(words, at + SHAPE_WORDS):
                    if type(word) is Slot:
                        self.slots.append((i, word.number, word.offset))
                packed += launch.shape()
                packed += struct.pack(
                    f"<{len(words)}Q", *(0 if type(word) is Slot else word for word in words)
                )
        self.words = memoryview(packed).cast("Q")
        self._streams = [at // 8 + STREAM for at, *_ in self.launches]
        self._driver = driver_launch()

    def copy(self, slots: list[tuple[int, int, int]]) -> PreparedLaunches:
        """The same launches with these slots and words of their own, which may be written."""
        other = PreparedLaunches.__new__(PreparedLaunches)
        other.launches, other.followers, other.slots = self.launches, self.followers, slots
        other.words = memoryview(bytearray(self.words)).cast("Q")
        other._streams, other._driver = self._streams, self._driver
        return other

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Launch all on a stream of the device that they were prepared for."""
        count = len(self.words)
        try:
            room = _ROOMS.pop()
        except IndexError:  # other threads use them all
            room = _Room(max(ROOM, count))
        if count > room.size:
            room = _Room(count)
        words = room.words
        room.view[:count] = self.words
        for i, number, offset in self.slots:
            words[i] = addresses[number] + offset
        for i in self._streams:
            words[i] = stream
        first, pointers = room.places
        for shape_at, function, arguments_at, launch in self.launches:
            places = first + shape_at, function, pointers + arguments_at, 0
            if status := self._driver(*places):
                shape = SHAPE.unpack_from(words, shape_at)
                grid, block = shape[: len(launch.grid)], shape[3 : 3 + len(launch.block)]
                launch_again(status, places, grid, block, shape[6])
        if TAPING.steps is not None:
            TAPING.steps += self._as_launched(words)
        _ROOMS.append(room)

    def _as_launched(self, words: Any) -> Iterator[LoadedLaunch]:
        """The launches with the words that they had."""
        for shape_at, _, arguments_at, launch in self.launches:
            at, shape = arguments_at // 8, SHAPE.unpack_from(words, shape_at)
            values = tuple(words[at : at + len(launch.words)])
            yield launch._replace(grid=shape[:3], block=shape[3:6], words=values, shared=shape[6])
