"""The launch of a kernel on a stream, by the driver's own call, which allows dependent launches.

CuPy's launch knows nothing of kernels that may start while the one before still runs. The arguments are
words of eight bytes in memory of each thread's own; the driver copies them before it returns.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ...base.slots import Slot
from ...errors import DeviceError
from . import device
from .driver_calls import library

MOST = 544  # words of arguments that a kernel's 4352 bytes hold; an array of two axes takes nine
WORDS = [struct.Struct(f"<{count}Q") for count in range(MOST + 1)]
SHAPE = struct.Struct("<7I4xQQI4x")  # CUlaunchConfig: grid, block, shared memory, stream, attributes, count
EARLY = struct.pack("<I4xI60x", 6, 1)  # CUlaunchAttribute: programmatic stream serialization is allowed
TOGETHER = struct.pack("<I4xI60x", 2, 1)  # CUlaunchAttribute: all blocks at the same time (cooperative)
CLUSTER = struct.Struct("<I4x3I52x")  # CUlaunchAttribute: blocks of a cluster, in three directions
NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
ONES = ((1, 1, 1), (1, 1), (1,), ())  # axes that a grid or a block leaves out


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


# A prepared launch: its arguments lie in memory of their own, and each call fills in a few addresses.
#
# A launch from Python spends its time on turning arguments into words, most of which are the same in every
# call. Here they are written once. An address that only a call knows is a slot (base/slots.py); ``launch``
# gets all such addresses and writes them to their places. One thread at a time may use such a launch.

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
        attributes_at, attribute_count, self._owner = attributes(early, cluster, together)
        self._shape = ctypes.create_string_buffer(
            SHAPE.pack(
                *grid,
                *ONES[len(grid)],
                *block,
                *ONES[len(block)],
                shared,
                0,
                attributes_at,
                attribute_count,
            )
        )
        self._stream = ctypes.c_uint64.from_buffer(self._shape, STREAM)
        self._at = ctypes.addressof(self._shape), function, ctypes.addressof(self._pointers), 0
        self._facts = grid, block, shared
        self._driver = driver_launch()

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Launch on a stream of the device that it was prepared for. Empty grids do nothing."""
        if self._empty:
            return
        words = self._words
        for i, number, offset in self._slots:
            words[i] = addresses[number] + offset
        self._stream.value = stream
        if status := self._driver(*self._at):
            launch_again(status, self._at, *self._facts)
