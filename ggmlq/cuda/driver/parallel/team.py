"""A team of several GPUs that work for one caller of ``gq.parallel``: copies between them, sums by copies.

Memory belongs to the stream that it was allocated on. A copy runs on the stream of the device that is not
the caller's, after an event of the caller's stream; the arrays that it reads or writes are held until that
stream has been waited for.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from ....arrays.scaled import ScaledArray
from ....codes.scaling import laid_out
from ....errors import DeviceError, DeviceMemoryError, GGMLQError
from .. import device
from . import nccl

# The CUDA streams on which several GPUs work for one caller (``gq.parallel``), ordered by events.
#
# The caller's stream is the current one of its device. Each other device works on its own current stream;
# while the caller's records a CUDA graph, on a stream of SIDES, so that the graph holds all work. The host
# waits for nothing: events order the streams, and only where data goes from one device to another.

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


ALREADY = 704  # cudaErrorPeerAccessAlreadyEnabled


def link(numbers: Sequence[int]) -> bool:
    """Let GPUs read each other's memory; False where the machine denies it: copies go through the host."""
    cuda, whole = device.cupy().cuda, True
    for one, other in itertools.permutations(set(numbers), 2):
        if not cuda.runtime.deviceCanAccessPeer(one, other):
            whole = False
            continue
        with cuda.Device(one):
            try:
                cuda.runtime.deviceEnablePeerAccess(other)
            except cuda.runtime.CUDARuntimeError as error:
                if error.status != ALREADY:
                    raise
    return whole


class CudaTeam:
    """Some GPUs, in order; one may be named twice."""

    def __init__(self, devices: tuple[str, ...], sums: str | None) -> None:
        self.devices = devices
        self.numbers = [int(name.partition(":")[2]) for name in devices]
        task = f"shard(q, {list(devices)}, sums={sums!r})"
        self.alone = len(set(self.numbers)) == 1
        twice = len(set(self.numbers)) < len(self.numbers)
        if sums == "nccl" and twice:
            raise DeviceError(
                f"{task}: NCCL takes each GPU once; name different ones, or leave sums out: parts on one "
                "GPU are added there"
            )
        if sums == "nccl":
            nccl.needed(task)
        with named_errors(" and ".join(devices)):
            self.linked = link(self.numbers)
        able = sums == "nccl" or (
            sums is None and not self.reads
        )  # two linked GPUs are faster by reading each other's memory
        able = able and not twice and nccl.library() is not None
        self._nccl = nccl.Communicators(self.numbers) if able else None

    @property
    def sums(self) -> str:
        """The way in which sums are made, in words."""
        if self.alone:
            return "additions on one GPU, in order"
        if self._nccl is not None:
            return f"NCCL {nccl.version()}"
        why = "" if nccl.library() is not None else "; NCCL is not installed"
        what = "additions over the link" if self.reads else "copies and additions"
        return f"{what}, in the order of the devices{why}"

    @property
    def reads(self) -> bool:
        """True where each of two GPUs adds both results by reading the other's memory."""
        return self.linked and len(self.numbers) == 2

    @contextmanager
    def run(self, home: str, keep: list[Any]) -> Iterator[CudaRun]:
        """A context of work for a caller on ``home``; within a run of the same devices, a part of it."""
        number = int(home.partition(":")[2])
        numbers = frozenset(self.numbers)
        under_way = UNDER_WAY.streams
        streams = under_way.get(numbers)
        if streams is not None:
            if number not in streams.lanes:
                raise DeviceError(
                    f"{REQUEST}: x is on {home}, the run under way (gq.parallel.together) is of "
                    f"{', '.join(self.devices)}; pass x= to together, so that its device takes part"
                )
            yield CudaRun(self, streams, number, keep, False)
            return
        with named_errors(home):
            streams = under_way[numbers] = Streams(number, self.numbers)
        try:
            yield CudaRun(self, streams, number, keep, True)
        finally:
            del under_way[numbers]
            with named_errors(home):
                streams.join()

    def add(self, arrays: Sequence[Any], streams: Streams) -> bool:
        """Sum arrays by NCCL, in place; False, and nothing done, where sums are not NCCL's."""
        if self._nccl is None:
            return False
        self._nccl.sum(REQUEST, arrays, [streams.lanes[number] for number in self.numbers])
        return True


class CudaRun:
    """Work of a team for a caller on one device; ggmlq/parallel/team.py documents each verb."""

    def __init__(self, team: CudaTeam, streams: Streams, home: int, keep: list[Any], fresh: bool) -> None:
        self.team, self.streams, self.number, self.keep = team, streams, home, keep
        self.home = f"cuda:{home}"
        self._waited_for = fresh and streams.recorded  # other streams enter the graph by waiting

    def fork(self) -> None:
        if self._waited_for:
            with named_errors(self.home):
                self.streams.after(self.number, list(self.streams.lanes))

    @contextmanager
    def on(self, position: int) -> Iterator[None]:
        with self._lane(self.team.numbers[position]):
            yield

    @contextmanager
    def at_home(self) -> Iterator[None]:
        with self._lane(self.number):
            yield

    @contextmanager
    def _lane(self, number: int) -> Iterator[Lane]:
        """A device, its stream, and its memory: torch's allocator serves the caller's device alone."""
        cp, lane = device.cupy(), self.streams.lanes[number]
        with ExitStack() as stack:
            stack.enter_context(named_errors(f"cuda:{number}"))
            stack.enter_context(lane.device)
            if number != self.streams.home:
                stack.enter_context(lane.stream)
                if hasattr(cp.cuda.get_allocator(), "kept_for_graphs"):
                    stack.enter_context(cp.cuda.using_allocator(cp.get_default_memory_pool().malloc))
            if self.streams.recorded:
                stack.enter_context(device.recording(REQUEST, self.keep))
            yield lane

    def room(self, position: int, shape: tuple[int, ...], dtype: Any) -> Any:
        if self.team.numbers[position] == self.number:
            return None
        self._waited_for = True  # others write to it when its former use has ended
        with self._lane(self.number):
            return device.cupy().empty(shape, dtype)

    def give(self, arrays: Sequence[Any]) -> list[Any]:
        numbers, sources = self.team.numbers, {}
        with self._lane(self.number):
            for array, number in zip(arrays, numbers, strict=True):
                if number != self.number and id(array) not in sources:
                    sources[id(array)] = self._ready(array)
        self.streams.held += [*arrays, *sources.values()]
        with named_errors(self.home):
            self.streams.after(self.number, numbers)
        sent: dict[tuple[int, int], Any] = {}
        received = []
        for array, number in zip(arrays, numbers, strict=True):
            if number == self.number:
                received.append(array)
                continue
            key = id(array), number
            if key not in sent:
                sent[key] = self._sent(array, sources[id(array)], number)
            received.append(sent[key])
        return received

    def _ready(self, array: Any) -> Any:
        """The arrays to copy: plain ones whose elements lie together."""
        together = device.cupy().ascontiguousarray
        parts = array.parts() if isinstance(array, ScaledArray) else (array,)
        return [together(part) for part in parts]

    def _sent(self, array: Any, sources: Sequence[Any], number: int) -> Any:
        cp = device.cupy()
        with self._lane(number) as lane:
            copies = [copied(cp.empty(source.shape, source.dtype), source, lane) for source in sources]
            if not isinstance(array, ScaledArray):
                return copies[0]
            codes, *scale_parts = copies
            scales = [
                laid_out(cp, like, part) for like, part in zip(array.parts()[1:], scale_parts, strict=True)
            ]
            self.streams.held += copies
            return ScaledArray(codes, scales[0], array.code, array.tile, *scales[1:])

    def take(self, position: int, part: Any, room: Any) -> Any:
        number = self.team.numbers[position]
        if number == self.number:
            return part
        with self._lane(number) as lane:
            source = device.cupy().ascontiguousarray(part)
            copied(room, source, lane)
        self.streams.held += [part, source, room]
        with named_errors(f"cuda:{number}"):
            self.streams.after(number, [self.number])
        return room

    def sum(self, parts: Sequence[Any]) -> list[Any]:
        self.streams.held += parts
        if len(parts) == 1 or self.team.add(parts, self.streams):
            return list(parts)
        if self.team.alone:
            with self.on(0):
                total = parts[0]
                for part in parts[1:]:
                    total += part
            return [total] * len(parts)
        return self._by_reads(parts) if self.team.reads else self._by_copies(parts)

    def _by_reads(self, parts: Sequence[Any]) -> list[Any]:
        """Sums of two GPUs: as many bytes over the link as with shares, but both ways at the same time and in
        one step.
        """
        numbers, totals = self.team.numbers, []
        self.streams.meet(numbers)
        for number in numbers:
            with self._lane(number):
                first, second = (
                    part if there == number else as_of(part, number)
                    for part, there in zip(parts, numbers, strict=True)
                )
                totals.append(first + second)
        self.streams.meet(numbers)
        return totals

    def _by_copies(self, parts: Sequence[Any]) -> list[Any]:
        """Sums of several GPUs: each fetches a share of all terms, adds them in order, and copies the sums to
        all.

        Every element is added in the order of the devices, wherever that happens, and is then on every
        device.
        """
        cp, numbers, count = device.cupy(), self.team.numbers, len(parts)
        flat = [part.reshape(-1) for part in parts]
        size = flat[0].size
        shares = [slice(size * i // count, size * (i + 1) // count) for i in range(count)]
        self.streams.meet(numbers)
        for owner, share in enumerate(shares):
            with self._lane(numbers[owner]) as lane:
                terms = [
                    flat[p][share]
                    if p == owner
                    else copied(cp.empty(share.stop - share.start, flat[p].dtype), flat[p][share], lane)
                    for p in range(count)
                ]
                total = terms[0] + terms[1]
                for term in terms[2:]:
                    total += term
                self.streams.held += [*terms, total]
                for other in flat:
                    copied(other[share], total, lane)
        self.streams.meet(numbers)
        return list(parts)


def copied(target: Any, source: Any, lane: Lane) -> Any:
    """Copy contiguous memory to memory of another device, or of the same, on a lane's stream."""
    if source.nbytes:
        target.data.copy_from_device_async(source.data, source.nbytes, lane.stream)
    return target


def as_of(array: Any, number: int) -> Any:
    """An array of another GPU as if it belonged to GPU ``number``, for kernels that read it over the link."""
    cp = device.cupy()
    memory = cp.cuda.UnownedMemory(array.data.ptr, array.nbytes, array, number)
    return cp.ndarray(array.shape, array.dtype, cp.cuda.MemoryPointer(memory, 0))
