"""The memory of products that a CUDA graph records: one pool for each graph.

Products of a stream run one after the other, in replays too. So the memory between two kernels of one
product serves the next product, as it does outside of graphs, and a hundred recorded products take the memory
of the largest. Nobody else gets that memory while the graph exists. The driver raises a signal when the graph
is destroyed: a semaphore, for a function of Python must not run on the driver's thread. Then the next
recording, or the next preparation of weights, gives the memory back to the allocator that it came from.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

from . import driver_calls
from .driver_calls import ADDRESS, INTEGER, WORD

SEMAPHORE = 64  # bytes, at least
UNSIGNED = ctypes.c_uint32
NO_WAIT, MOVE = UNSIGNED(1), UNSIGNED(1)  # flags of the driver for an object of a graph

_LOCK = threading.Lock()
# By the number of what is recorded and the device, until their graphs are destroyed.
_OF_CAPTURES: dict[tuple[int, int], GraphMemory] = {}
_SIGNALS: dict[int, Any] = {}  # semaphores that the driver still holds, by their addresses


class GraphMemory:
    """The pool of a graph's memory on a device."""

    def __init__(self, pool: Any, device: Any, signal: int) -> None:
        self.pool, self.device, self._signal, self._is_over = pool, device, signal, False

    def allocate(self, size: int) -> Any:
        """Memory for the products of the graph."""
        return self.pool.malloc(size)

    def look(self) -> bool:
        """True while the graph exists, or an array lies in its memory; else the memory is given back."""
        if self.pool is not None and (self._is_over or _raised(self._signal)):
            self._is_over = True
            with self.device:  # a pool of CuPy speaks of the current device alone
                self.pool.free_all_blocks()  # one that is dropped keeps its free blocks for good
                if not self.pool.used_bytes():
                    self.pool = None
        return self.pool is not None


def allocator(stream: int, device: Any, allocate: Any, keep: list[Any], make_pool: Any) -> Any:
    """An allocator for a stream that records a graph, of memory that lasts as long: of the graph's pool.

    Where the driver cannot tell a graph's end, ``keep`` holds each piece of memory that ``allocate`` gives.
    """
    give_back()
    try:
        number, graph = _capture(stream)
        with _LOCK:
            memory = _OF_CAPTURES.get((number, device.id))
            if memory is None:
                memory = GraphMemory(make_pool(), device, _signal_of(graph))
                _OF_CAPTURES[number, device.id] = memory
        return memory.allocate
    except (OSError, AttributeError, driver_calls.CUDADriverError):

        def allocate_and_keep(size: int) -> Any:
            keep.append(allocate(size))
            return keep[-1]

        return allocate_and_keep


def give_back() -> None:
    """Give back the memory of graphs that were destroyed."""
    with _LOCK:
        for place, memory in list(_OF_CAPTURES.items()):
            if not memory.look():
                del _OF_CAPTURES[place]


def _capture(stream: int) -> tuple[int, Any]:
    """The number of what a stream records, and the graph."""
    status, number, graph = INTEGER(), WORD(), ADDRESS()
    driver_calls.call(
        "cuStreamGetCaptureInfo_v2", ADDRESS(stream), ctypes.byref(status), ctypes.byref(number),
        ctypes.byref(graph), None, None,
    )  # fmt: skip
    return number.value, graph


@cache
def _semaphores() -> Any:
    """The library with the functions of semaphores."""
    return ctypes.CDLL(None)


def _signal_of(graph: Any) -> int:
    """The address of a semaphore that the driver raises when a graph and all that was made of it are gone."""
    library, buffer = _semaphores(), ctypes.create_string_buffer(SEMAPHORE)
    address, holder = ctypes.addressof(buffer), ADDRESS()
    library.sem_init(ADDRESS(address), 0, 0)
    post = ctypes.cast(library.sem_post, ADDRESS)
    driver_calls.call(
        "cuUserObjectCreate", ctypes.byref(holder), ADDRESS(address), post, UNSIGNED(1), NO_WAIT
    )
    _SIGNALS[address] = buffer
    driver_calls.call("cuGraphRetainUserObject", graph, holder, UNSIGNED(1), MOVE)
    return address


def _raised(signal: int) -> bool:
    """True once, where a semaphore was raised."""
    if signal not in _SIGNALS or _semaphores().sem_trywait(ADDRESS(signal)):
        return False
    _SIGNALS.pop(signal, None)
    return True
