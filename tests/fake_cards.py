"""As much of CuPy as work on several GPUs needs, made of NumPy, and a judge of its order.

Everything happens at once, and every stream counts what it did and knows how far it has seen the others, by
events. Whoever reads what was written elsewhere and not waited for, writes where others may still read, gives
memory back that another stream may still use, or works outside of a graph that is being recorded, is told on.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np


class World:
    """The devices and streams of one test."""

    def __init__(self, count=2):
        self.count, self.device, self.faults, self.links = count, 0, [], set()
        self.numbers = itertools.count(1)
        self.current = {n: Stream(self, n, 0) for n in range(count)}
        self.allocator = "pool"

    def stream(self):
        return self.current[self.device]

    def fault(self, text):
        self.faults.append(text)


class Device:
    def __init__(self, world, number):
        self.world, self.id, self.mem_info = world, number, (0, 0)
        self.before = []

    def __enter__(self):
        self.before.append(self.world.device)
        self.world.device = self.id
        return self

    def __exit__(self, *error):
        self.world.device = self.before.pop()


class Stream:
    def __init__(self, world, number=None, ptr=None, non_blocking=False):
        self.world, self.device_id = world, world.device if number is None else number
        self.number = next(world.numbers)
        self.ptr = self.number if ptr is None else ptr
        self.seen, self.done, self.capture = {}, 0, None
        self.before = []

    def __enter__(self):
        assert self.device_id == self.world.device, "CuPy wants the stream's device first"
        self.before.append(self.world.current[self.device_id])
        self.world.current[self.device_id] = self
        return self

    def __exit__(self, *error):
        self.world.current[self.device_id] = self.before.pop()

    def step(self):
        """One more piece of work."""
        if self.world.recording is not None and self.capture is None:
            self.world.fault(f"work on stream {self.number} outside of the graph")
        self.done += 1
        self.seen[self.number] = self.done
        return self.number, self.done

    def knows(self, stamp):
        return self.seen.get(stamp[0], 0) >= stamp[1]

    def wait_event(self, event):
        assert self.device_id == self.world.device, "of the null stream the device decides"
        for number, done in event.seen.items():
            self.seen[number] = max(self.seen.get(number, 0), done)
        if event.capture is not None:
            assert self.ptr, "the default stream cannot be recorded"
            self.capture = event.capture
            self.world.recording.add(self)

    def is_capturing(self):
        return self.capture is not None

    def begin_capture(self):
        self.capture = object()
        self.world.recording = {self}

    def end_capture(self):
        for stream in self.world.recording:
            if not self.knows((stream.number, stream.done)):
                self.world.fault(f"stream {stream.number} was not joined")
            stream.capture = None
        self.world.recording = None

    def synchronize(self):
        assert self.capture is None, "a graph is being recorded"


World.recording = None


class Event:
    def __init__(self, world):
        self.world, self.device = world, world.device

    def record(self, stream):
        assert self.device == stream.device_id == self.world.device
        self.seen, self.capture = dict(stream.seen), stream.capture


class Buffer:
    """Memory, of the stream that it was asked for on."""

    def __init__(self, world):
        self.world, self.arena, self.device = world, world.stream(), world.device
        self.uses = []  # from, to, whether it was written, and by whom
        if world.allocator != "pool":
            world.fault("memory of another device's allocator")

    def use(self, array, writes):
        """Some bytes, by the current stream: after whoever wrote there and, to write, after whoever read."""
        stream, (first, end) = self.world.stream(), np.lib.array_utils.byte_bounds(array)
        for a, b, wrote, stamp in self.uses:
            if a < end and first < b and (wrote or writes) and not stream.knows(stamp):
                self.world.fault(
                    f"stream {stream.number} {'writes' if writes else 'reads'} too early: {stamp}"
                )
        self.uses.append((first, end, writes, stream.step()))

    def last(self):
        return self.uses[-1][-1]

    def __del__(self):
        for *_, stamp in self.uses:
            if not self.arena.knows(stamp):
                self.world.fault(f"memory of stream {self.arena.number} is given back while {stamp} uses it")


class Array(np.ndarray):
    """An array on one of the devices."""

    __module__ = "cupy"

    def __array_finalize__(self, source):
        self.buffer, self.near = getattr(source, "buffer", None), None

    @property
    def device(self):
        return Device(self.buffer.world, self.buffer.device)

    @property
    def data(self):
        return SimpleNamespace(device_id=self.buffer.device, ptr=self.ctypes.data, array=self,
                               copy_from_device_async=self.copy_from)  # fmt: skip

    def copy_from(self, source, nbytes, stream):
        assert stream is self.buffer.world.stream()
        source.array.buffer.use(source.array, False)
        self.buffer.use(self, True)
        raw, other = (a.view(np.ndarray).reshape(-1).view(np.uint8) for a in (self, source.array))
        assert self.flags.c_contiguous
        assert source.array.flags.c_contiguous
        assert raw.size == nbytes
        raw[:] = other[:nbytes]

    def get(self):
        return np.array(self)

    def __setitem__(self, key, value):
        if isinstance(value, Array):
            value.buffer.use(value, False)
        self.buffer.use(self[key], True)
        self.view(np.ndarray)[key] = np.asarray(value)

    def astype(self, dtype, order=None, copy=True):
        return (
            self
            if not copy and self.dtype == dtype
            else made(self.buffer.world, plain(self).astype(dtype), self)
        )

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        world = self.buffer.world
        for each in inputs:
            if isinstance(each, Array):
                assert world.device in (each.buffer.device, each.near), "an array of another device"
                each.buffer.use(each, False)
        result = getattr(ufunc, method)(*map(plain, inputs), **options)
        if out is None:
            return made(world, result)
        out[0][...] = result
        return out[0]


def plain(x):
    return x.view(np.ndarray) if isinstance(x, Array) else x


def made(world, values, *sources):
    for source in sources:
        source.buffer.use(source, False)
    found = np.array(values).view(Array)
    found.buffer = Buffer(world)
    found.buffer.use(found, True)
    return found


def put_cards(monkeypatch, count=2, linked=False):
    """GPUs 0 and 1 are there: the World that they are of, with ``cupy``."""
    from ggmlq.cuda.driver import device
    from ggmlq.cuda.driver.parallel import nccl
    from ggmlq.cuda.driver.parallel import team as streams
    from ggmlq.parallel import team

    world = World(count)

    def empty(shape, dtype=np.float32):
        found = np.full(shape, 0x7F, dtype).view(Array)
        found.buffer = Buffer(world)
        return found

    def together(array):
        return array if array.flags.c_contiguous else made(world, np.ascontiguousarray(plain(array)), array)

    def where(mask, a, b):
        return made(
            world,
            np.where(plain(mask), plain(a), plain(b)),
            *(x for x in (mask, a, b) if isinstance(x, Array)),
        )

    @contextmanager
    def using_allocator(allocator):
        before, world.allocator = world.allocator, allocator
        try:
            yield
        finally:
            world.allocator = before

    class CUDARuntimeError(RuntimeError):
        status = 704

    def enable(other):
        if (world.device, other) in world.links:
            raise CUDARuntimeError("already enabled")
        world.links.add((world.device, other))

    def of(shape, dtype, memory):
        owner, number = memory
        assert (number, owner.buffer.device) in world.links
        found = owner.view(Array)
        found.near = number
        return found

    cuda = SimpleNamespace(
        Device=lambda n=None: Device(world, world.device if n is None else int(n)),
        Stream=lambda non_blocking=False: Stream(world),
        Event=lambda disable_timing=True: Event(world),
        get_current_stream=lambda n=None: world.current[world.device if n is None else n],
        get_allocator=lambda: world.allocator,
        using_allocator=using_allocator,
        UnownedMemory=lambda at, nbytes, owner, number: (owner, number),
        MemoryPointer=lambda memory, offset: memory,
        runtime=SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            getDeviceCount=lambda: count,
            deviceCanAccessPeer=lambda a, b: int(linked),
            deviceEnablePeerAccess=enable,
        ),
    )
    world.cupy = SimpleNamespace(
        cuda=cuda, empty=empty, ascontiguousarray=together, where=where, exp=np.exp, ndarray=of,
        get_default_memory_pool=lambda: SimpleNamespace(malloc="pool"),
    )  # fmt: skip
    driver = SimpleNamespace(device=lambda: world.device, stream=cuda.get_current_stream)
    monkeypatch.setattr(device, "driver", lambda: driver)
    monkeypatch.setattr(device, "cupy", lambda: world.cupy)
    monkeypatch.setattr(device, "recording", lambda asked, keep: _kept(world))
    monkeypatch.setattr(nccl, "library", lambda: world.nccl)
    world.nccl, world.kept = None, 0
    team.team_of.cache_clear()
    monkeypatch.setattr(streams, "SIDES", {})
    return world


@contextmanager
def _kept(world):
    """Memory that a graph's replays use again."""
    world.kept += 1
    yield
