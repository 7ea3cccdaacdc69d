"""Copies a whole model to a GPU: threads read the file into locked memory while the GPU fetches other parts.

    file -- threads read --> buffers of locked memory -- the GPU fetches --> tensors on the GPU

A portion is what fits one buffer. A thread takes a portion and a buffer, fills it, asks the
GPU to fetch it and puts the buffer back; the next thread with this buffer waits until the GPU has fetched it.
So file, memory and link are busy at the same time, and no thread waits for the others. The GPU's half is
ggmlq/cuda/driver/upload.py.
"""

from __future__ import annotations

import itertools
import queue
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from math import lcm
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.progress import Progress
from ..base.text import short, size
from ..base.threads import num_threads
from ..errors import DeviceMemoryError
from .header import aligned
from .source import Files, place

# --- portions: tensors of all sizes divided into what fills one buffer -----------------------

ALIGN = 256  # bytes: a GPU's copy engine works in runs of that size


class Piece(NamedTuple):
    """A run of bytes of one tensor."""

    tensor: int  # which one, counted from 0
    start: int  # in the tensor
    nbytes: int
    at: int  # in the buffer


Portion = list[Piece]  # what goes through a buffer at a time


def portions(sizes: Iterable[tuple[int, int]], room: int) -> list[Portion]:
    """Portions of at most ``room`` bytes that hold all bytes of the tensors, in order.

    ``sizes`` are pairs of the bytes of a tensor and of its block. Small tensors share a buffer; a large
    one is cut between blocks, at multiples of ``ALIGN``.
    """
    portions: list[Portion] = [[]]
    at = 0
    for tensor, (nbytes, block) in enumerate(sizes):
        step = lcm(block, ALIGN)
        assert step <= room
        start = 0
        while start < nbytes:
            at = aligned(at, ALIGN)
            n = nbytes - start if nbytes - start <= room - at else (room - at) // step * step
            if n > 0:
                portions[-1].append(Piece(tensor, start, n, at))
                start, at = start + n, at + n
            else:
                portions.append([])
                at = 0
    return [portion for portion in portions if portion]


# --- threads and buffers ---------------------------------------------------------------------

# Measured on an H200 with 16 cores (bench/bench_load.py): of the link's 53.6 GB/s, portions of 4 MiB
# reach 37 %, of 8 MiB 58, of 16 MiB 69 and of 32 MiB 66: a portion holds Python's lock, and with 16
# threads at it they wait for each other.
BUFFER_BYTES = 16 << 20
FETCHED = 4  # buffers beyond one a thread: what the GPU fetches meanwhile
MOST_THREADS = 16  # 3 to 10 GB/s each: together more than a link takes

Blocks = NDArray[Any]


class Buffer(Protocol):
    """Locked memory that a GPU fetches from."""

    data: NDArray[np.uint8]

    def wait(self) -> None:
        """Wait until the GPU has fetched all requested bytes of the buffer."""


class Link(Protocol):
    """The interface of the way to a GPU, for use in its ``with`` block."""

    device: str

    def use(self) -> None:
        """Called first by every thread that sends."""

    def empty(self, shape: tuple[int, ...]) -> Any:
        """An array of bytes on the GPU; DeviceMemoryError where it does not fit."""

    def buffer(self, nbytes: int) -> Buffer:
        """A buffer of locked memory."""

    def send(self, buffer: Any, at: int, nbytes: int, target: Any, start: int) -> None:
        """Let the GPU fetch bytes of a buffer into one of its arrays, from byte ``start`` on."""

    def sent(self, buffer: Any) -> None:
        """Mark the end of a buffer's requests, for which ``buffer.wait()`` then waits."""

    def finish(self) -> None:
        """Wait until all has been fetched."""

    def drop(self, arrays: list[Any]) -> None:
        """Wait, then empty the list and give its memory back."""

    def room(self) -> tuple[int, int]:
        """The free bytes and all bytes of the GPU's memory."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> None: ...


def load(
    request: str, tensors: Mapping[str, QuantArray], link: Link, show: bool | None = None
) -> dict[str, QuantArray]:
    """Copy arrays of an open file to a GPU; nothing stays there after an error or an interrupt."""
    blocks = [q.blocks.reshape(-1) for q in tensors.values()]
    plan = portions([(b.nbytes, b.itemsize) for b in blocks], BUFFER_BYTES)
    shapes = [(*q.shape[:-1], q.format.row_bytes(q.shape[-1] if q.shape else 1)) for q in tensors.values()]
    targets: list[Any] = []
    bar = Progress(sum(b.nbytes for b in blocks), f"to {link.device}", show=show)
    with link, Files() as files, bar:
        try:
            with _Crew(link, blocks, targets, files, len(plan)) as crew:
                for portion in plan:  # memory is found while the first portions are on their way
                    _allocate(link, shapes, targets, portion[-1].tensor + 1)
                    crew.begin(portion)
                _allocate(link, shapes, targets, len(shapes))
                for _ in plan:
                    bar.advance(crew.finished())
            link.finish()
        except DeviceMemoryError:
            failed = len(targets)
            link.drop(targets)
            raise DeviceMemoryError(_no_room(request, tensors, failed, link)) from None
        except BaseException:
            link.drop(targets)
            raise
    return {
        name: QuantArray(q.format, q.shape, target, scale=q._scale)
        for (name, q), target in zip(tensors.items(), targets, strict=True)
    }


def _allocate(link: Link, shapes: Sequence[tuple[int, ...]], targets: list[Any], count: int) -> None:
    """Arrays on the GPU for the first ``count`` tensors."""
    for shape in shapes[len(targets) : count]:
        targets.append(link.empty(shape))


def _no_room(request: str, tensors: Mapping[str, QuantArray], failed: int, link: Link) -> str:
    name, q = list(tensors.items())[failed]
    total = sum(q.nbytes for q in tensors.values())
    free, room = link.room()
    return (
        f"{request}: {len(tensors)} tensors need {size(total)}, {link.device} has {size(free)} of "
        f"{size(room)} free; all of them must fit, and the memory ended at {short(name)} "
        f'with {size(q.nbytes)}; take fewer, as with filter="blk.[0-9].*", or drop other arrays there first'
    )


class _Crew:
    """Threads that fill buffers and send them. Leaving the ``with`` block ends them."""

    def __init__(
        self, link: Link, blocks: Sequence[Blocks], targets: Sequence[Any], files: Files, count: int
    ) -> None:
        self._link, self._blocks, self._targets, self._files = link, blocks, targets, files
        self._most_threads = min(num_threads(), MOST_THREADS)
        self._most_buffers = min(self._most_threads + FETCHED, count)
        self._threads: list[threading.Thread] = []
        self._numbers = itertools.count()  # its next() is one step under Python's lock
        self._buffers: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Portion | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self._stopped = False

    def begin(self, portion: Portion) -> None:
        """Give a portion to a free thread; each of the first portions starts a thread."""
        self._ready.put(portion)
        if len(self._threads) < self._most_threads:
            name = f"ggmlq-load-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
            self._threads[-1].start()

    def finished(self) -> int:
        """Wait for any portion under way; gives its bytes, or raises the error of its thread."""
        result = self._done.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def __enter__(self) -> _Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = kind is not None
        for _ in self._threads:
            self._ready.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        try:
            self._link.use()
            while (portion := self._ready.get()) is not None and not self._stopped:
                self._carry(portion)
                self._done.put(sum(piece.nbytes for piece in portion))
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # they would keep a tensor for as long as the error
            self._done.put(error)

    def _carry(self, portion: Portion) -> None:
        # There are more buffers than threads, so one is always there or on its way.
        buffer = (
            self._link.buffer(BUFFER_BYTES)
            if next(self._numbers) < self._most_buffers
            else self._buffers.get()
        )
        buffer.wait()
        for tensor, start, nbytes, at in portion:
            fill(buffer.data[at : at + nbytes], self._blocks[tensor], start, self._files)
            self._link.send(buffer, at, nbytes, self._targets[tensor], start)
        self._link.sent(buffer)
        self._buffers.put(buffer)


def fill(target: NDArray[np.uint8], blocks: Blocks, start: int, files: Files) -> None:
    """Fill the target with the little-endian bytes of blocks, from byte ``start`` on."""
    part = blocks[start // blocks.itemsize : (start + len(target)) // blocks.itemsize]
    little = blocks.dtype.newbyteorder("<")
    if little != blocks.dtype:
        target.view(little)[...] = part
        return
    location = place(part)
    done = files.read(*location, target) if location else 0
    np.copyto(target[done:], part.view(np.uint8)[done:])
