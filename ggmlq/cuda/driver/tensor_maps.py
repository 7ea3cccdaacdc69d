"""Maps of matrices for Hopper's copy engine: made by the driver on the host, stored in memory of the device.

A map is 128 bytes: the address of a matrix, its shape, and the box that one copy moves. Its bytes follow
from its key alone, so a map stays right whoever owns that memory later: a graph may be replayed, an array
may come back at the same address. A new map is copied on a stream of its own, which is waited for. That
works while a CUDA graph is recorded, too, for the copy is in no graph.

Slots of 128 bytes lie in allocations that are never freed. After MOST new maps the slots of those not used
since as many before, and that no graph may hold, are reused, once the device has finished all its work.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from ...dispatch.card import Card
from ...errors import DeviceError, MissingDependencyError, UnsupportedError
from . import device
from .calls import library

SIZE, SLAB, MOST = 128, 4096, 1 << 16  # bytes of a map; maps of an allocation; maps before slots are reused
LEAST = 12000  # the driver: CUDA 12.0
# Types of elements: the driver's number, and their bytes.
KINDS = {"uint8": (0, 1), "uint64": (4, 8), "float16": (6, 2), "float32": (7, 4), "bfloat16": (9, 2)}
SWIZZLE_128, PROMOTE_256, RELAXED = 3, 3, 2
ADDRESSES = 0x7F0000000010, 0x6AAAAAAAAAA0  # any two
ROW = 128  # bytes of a swizzled box's rows
UNSIGNED, LONG = ctypes.c_uint32, ctypes.c_uint64


class Box(NamedTuple):
    """A matrix, and the part of it that one copy moves."""

    address: int
    rows: int
    columns: int
    pitch: int  # bytes from row to row
    kind: str  # in KINDS
    box_rows: int
    box_columns: int
    swizzled: bool = True


def refuses(address: int, pitch: int) -> bool:
    """True where a matrix, or its rows, begin at addresses that the copy engine cannot take."""
    return bool(address % 16 or pitch % 16 or pitch >= 1 << 40)


def missing(card: Card | None) -> str | None:
    """The reason why the present driver makes no maps for a card, or None; also without a card."""
    if card is None or not card.here:
        return None
    try:
        able = device.driver_version() >= LEAST and hasattr(library(), "cuTensorMapEncodeTiled")
    except (MissingDependencyError, DeviceError, OSError):
        return None  # no GPU: the launch reports it
    if able:
        return None
    return "needs a driver for CUDA 12.0 or later, for maps of the copy engine"


def encoded(box: Box) -> bytes:
    """The 128 bytes of a map, made by the driver."""
    number, size = KINDS[box.kind]
    memory = ctypes.create_string_buffer(2 * SIZE)
    at = -(-ctypes.addressof(memory) // 64) * 64
    shape, pitch = (LONG * 2)(box.columns, box.rows), (LONG * 1)(box.pitch)
    moved, strides = (UNSIGNED * 2)(box.box_columns, box.box_rows), (UNSIGNED * 2)(1, 1)
    encode: Any = library().cuTensorMapEncodeTiled
    status = encode(
        ctypes.c_void_p(at), number, UNSIGNED(2), ctypes.c_void_p(box.address), shape, pitch, moved, strides,
        0, SWIZZLE_128 if box.swizzled else 0, PROMOTE_256, 0,
    )  # fmt: skip
    if status:
        raise DeviceError(
            f"{box}: the driver makes no map of it (error {status}); addresses and pitches are "
            f"multiples of 16 bytes, boxes at most 256 by 256 with swizzled rows of {ROW} bytes (this box: "
            f"{box.box_columns * size}); name a kernel that needs none, such as cuda:widen or cuda:mma_int8"
        )
    return ctypes.string_at(at, SIZE)


@lru_cache(1 << 12)
def words_behind_address(box: Box) -> tuple[int, ...] | None:
    """The words of a matrix's map behind the first, which is its address: a kernel takes both as parameters.

    So a launch writes the address of its matrix, and the driver is asked once for a shape. None where the
    driver's maps are not made so.
    """
    first, *words = _words(box._replace(address=ADDRESSES[0]))
    second, *same = _words(box._replace(address=ADDRESSES[1]))
    return tuple(words) if (first, second) == ADDRESSES and words == same else None


def _words(box: Box) -> tuple[int, ...]:
    return struct.unpack(f"<{SIZE // 8}Q", encoded(box))


class _Slots:
    """Maps in memory of one device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[Box, int] = {}
        self._before: dict[Box, int] = {}  # maps that were not used since ``_places`` was empty
        self._held: dict[Box, int] = {}  # maps that a graph may use
        self._free: list[int] = []
        self._slabs: list[Any] = []
        self._stream: Any = None

    def place(self, box: Box, index: int) -> int:
        """The address of the map of a matrix."""
        captured = device.capturing(index)
        address = self._held.get(box) or (None if captured else self._places.get(box))
        if address is None:
            with self._lock:
                address = self._places.pop(box, 0) or self._before.pop(box, 0) or self._new_map(box, captured)
                (self._held if captured else self._places)[box] = address
        return address

    def _new_map(self, box: Box, captured: bool) -> int:
        words = encoded(box)
        mode = ctypes.c_int(RELAXED)
        _checked(library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
        try:
            if not self._free:
                self._make_room(captured)
            at = self._free.pop()
            status = library().cuMemcpyHtoDAsync_v2(LONG(at), words, ctypes.c_size_t(SIZE), self._copier())
            self._stream.synchronize()
            _checked(status)
        finally:
            _checked(library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
        return at

    def _make_room(self, captured: bool) -> None:
        if len(self._places) >= MOST and not captured:
            device.wait()
            self._free = list(self._before.values())
            self._before, self._places = self._places, {}
        if not self._free:
            slab = device.cupy().cuda.Memory(SIZE * SLAB)
            self._slabs.append(slab)
            self._free = [slab.ptr + SIZE * i for i in reversed(range(SLAB))]

    def _copier(self) -> Any:
        if self._stream is None:
            self._stream = device.cupy().cuda.Stream(non_blocking=True)
        return ctypes.c_void_p(self._stream.ptr)


def _checked(status: int) -> None:
    if status:
        raise UnsupportedError(
            f"a map for the copy engine: the driver refuses to copy it to the device (error {status}); "
            "run the same product once before the capture of a CUDA graph begins"
        )


@cache
def _slots(index: int) -> _Slots:
    return _Slots()


def map_address(box: Box) -> int:
    """The address of the map of a matrix, on CuPy's current device."""
    index = device.current()
    return _slots(index).place(box, index)


def map_array(box: Box) -> Any:
    """A map in memory of its own; who keeps it as long as the matrix may keep its address, too."""
    return device.upload(np.frombuffer(encoded(box), np.uint8), f"cuda:{device.current()}")
