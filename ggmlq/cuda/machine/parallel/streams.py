"""The CUDA streams on which several GPUs work for one caller (``gq.parallel``), ordered by events.

The caller's stream is the current one of its device. Each other device works on its own current stream;
while the caller's records a CUDA graph, on a stream of SIDES, so that the graph holds all work. The host
waits for nothing: events order the streams, and only where data goes from one device to another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ....errors import DeviceError, DeviceMemoryError, GGMLQError
from .. import device

REQUEST = "product on several GPUs"


class Lane(NamedTuple):
    """A device and the stream that it works on."""

    number: int
    device: Any
    stream: Any


class Streams:
    """The lanes of a run, one for each device, and objects that live until it ends."""

    def __init__(self, home: int, numbers: Sequence[int]) -> None:
        cuda = device.cupy().cuda
        main = cuda.get_current_stream(home)
        self.home = home
        self.recorded = device.capturing(home)
        self.held: list[Any] = []
        self.crossed = False  # True once a device waits for another one
        self.lanes = {home: Lane(home, cuda.Device(home), main)}
        for number in numbers:
            if number not in self.lanes:
                stream = self._stream(cuda, main, number)
                self.lanes[number] = Lane(number, cuda.Device(number), stream)

    def _stream(self, cuda: Any, main: Any, number: int) -> Any:
        if not self.recorded or device.capturing(number):
            return cuda.get_current_stream(number)
        stream = SIDES.get((main.ptr, number))  # if it records a graph, then that of main
        if stream is None:
            with cuda.Device(number):
                stream = SIDES[main.ptr, number] = cuda.Stream(non_blocking=True)
        return stream

    def after(self, first: int, others: Sequence[int]) -> None:
        """Make the devices ``others`` wait until device ``first`` has come to this point."""
        waiting = [n for n in others if n != first]
        if not waiting:
            return
        self.crossed = True
        lane, cuda = self.lanes[first], device.cupy().cuda
        with lane.device:
            event = cuda.Event(disable_timing=True)
            event.record(lane.stream)
        self.held.append(event)
        for number in waiting:
            other = self.lanes[number]
            with other.device:
                other.stream.wait_event(event)

    def meet(self, numbers: Sequence[int]) -> None:
        """Make each of these devices wait for all of them."""
        distinct = list(dict.fromkeys(numbers))
        for number in distinct:
            self.after(number, distinct)

    def join(self) -> None:
        """Make the caller's stream wait for all others, if data went to or from them."""
        for number in self.lanes if self.crossed else ():
            self.after(number, [self.home])
        self.held.clear()


SIDES: dict[tuple[int, int], Any] = {}  # streams for recorded graphs, by the caller's stream and the device


class _UnderWay(threading.local):
    """The runs that this thread has started, by their devices."""

    def __init__(self) -> None:
        self.streams: dict[frozenset[int], Streams] = {}


UNDER_WAY = _UnderWay()


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Turn CUDA's errors into errors that name the device."""
    cp = device.cupy()
    try:
        yield
    except cp.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(
            f"{REQUEST}: {name} failed ({error}); if it is lost, so is its part of the weights; shard them "
            "again over devices that work, in a new process where CUDA says the same again"
        ) from error
    except MemoryError as error:
        if isinstance(error, GGMLQError):
            raise
        raise DeviceMemoryError(
            f"{REQUEST}: {name} is out of memory ({error}); results, copies of x and terms of sums lie there "
            "beside the weights; drop arrays, or multiply fewer rows at a time"
        ) from None
