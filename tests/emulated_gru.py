"""A card of NumPy that runs GRUs: rungs' own launches, kernels by emulated_ptx.py."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
from emulated_gpu import ptx_of
from emulated_ptx import Machine, Memory
from fake_cupy import DeviceArray, on_device, put_gpu

from ggmlq.base import devices
from ggmlq.base.slots import Slot
from ggmlq.cuda.driver import device, recorded
from ggmlq.cuda.driver.launch import Kernel, Launch
from ggmlq.dispatch.card import Card


class Array(DeviceArray):
    """An array that every kernel may touch."""

    __module__ = "cupy"

    @property
    def data(self):
        return SimpleNamespace(device_id=0, ptr=self.ctypes.data)


class Pinned(np.ndarray):
    """Memory of the host that kernels may touch."""

    @property
    def ptr(self):
        return self.ctypes.data


class Stream(nullcontext):
    """A stream that records launches, and waits beside them."""

    ptr = 98

    def __init__(self, state):
        super().__init__(self)
        self.state = state

    def is_capturing(self):
        return self.state.recording is not None

    def wait_event(self, event):
        self.state.launches.append(("side waits", event.at))

    def begin_capture(self):
        self.state.recording = []

    def end_capture(self):
        recorded, self.state.recording = self.state.recording, None
        return SimpleNamespace(launch=lambda stream: [each() for each in recorded])


class Event:
    """An event that remembers its stream."""

    at = None

    def record(self, stream):
        self.at = stream.ptr


def put_emulated(monkeypatch, multiprocessors=132, capability=(9, 0)):
    """A card that runs a FixedGRU."""
    state = put_gpu(monkeypatch, capability)
    state.memory, state.launches = Memory(), []
    card = Card("an emulated card", capability, multiprocessors, 227 << 10)

    def made(function):
        def make(*given, **more):
            found = on_device(np.ascontiguousarray(function(*given, **more)), kind=Array)
            state.memory.add(found)
            return found

        return make

    for name in ("empty", "zeros", "full", "ascontiguousarray", "asarray", "concatenate", "stack"):
        setattr(state.cupy, name, made(getattr(np, name)))
    state.cupy.empty = made(lambda shape, kind: np.full(shape, 77, kind))  # poisoned
    monkeypatch.setattr(device, "current", lambda: 0)
    monkeypatch.setattr(device, "card_of", lambda index: card)
    monkeypatch.setattr(device, "card", lambda: card)
    monkeypatch.setattr(device, "capability", lambda: capability)
    monkeypatch.setattr(device, "refuse_capture", lambda what: None)
    monkeypatch.setattr(devices, "cuda_device", lambda: device)

    driver = device.driver()
    driver.array, driver.empty = Array, state.cupy.empty
    state.recording = None
    state.cupy.cuda.Stream = lambda non_blocking: Stream(state)
    state.cupy.cuda.Event = lambda disable_timing: Event()
    state.stream.wait_event = lambda event: state.launches.append(("main waits", event.at))
    monkeypatch.setattr(recorded, "_FREE", {})

    def pinned(size):
        found = np.full(size, 99, np.uint8).view(Pinned)
        state.memory.add(found)
        return found

    state.cupy.cuda.alloc_pinned_memory = pinned
    monkeypatch.setattr(Kernel, "load", lambda kernel: None)

    class Prepared(list):
        """Functions that launch, in the place of prepared launches."""

        def launch(self, addresses, stream):
            for each in self:
                each(addresses, stream)

    def loaded(step):
        def launch(addresses, stream):
            filled = [
                addresses[each.number] + each.offset if type(each) is Slot else each
                for each in step.arguments
            ]
            call(step.kernel, step.grid, step.block, *filled, cluster=step.cluster, stream=stream)

        return launch

    def call(kernel, grid, block, *arguments, cluster=1, max_blocks=0, stream=0):
        assert block == (kernel.threads,)
        words = kernel._flat(arguments)
        state.launches.append((kernel.name, grid, stream))
        machine = Machine(ptx_of(kernel, capability), state.memory, kernel.threads, kernel.shared)
        run = partial(machine, grid, *words, cluster=cluster, together=kernel.together)
        if state.recording is not None:
            state.recording.append(run)
        else:
            run()

    monkeypatch.setattr(Kernel, "__call__", call)
    monkeypatch.setattr(Launch, "loaded", loaded)
    monkeypatch.setattr(recorded, "PreparedLaunches", Prepared)
    return state
