"""As much of CuPy as ggmlq looks at, made of NumPy, and a GPU that remembers what is asked of it."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np

from ggmlq.dispatch.card import Card


class Device(nullcontext):
    """A number and a ``with`` block."""

    mem_info = (0, 0)

    def __init__(self, number):
        super().__init__()
        self.id = number


class DeviceArray(np.ndarray):
    """An array that says it is CuPy's."""

    __module__ = "cupy"
    number = 0

    def __array_finalize__(self, source):
        self.number = getattr(source, "number", 0)

    @property
    def device(self):
        return Device(self.number)

    @property
    def data(self):
        return SimpleNamespace(device_id=self.number, ptr=self.ctypes.data)

    def get(self, stream=None):
        return np.array(self)


def on_device(array, number=0, kind=DeviceArray):
    """A copy of an array in the guise of one on a GPU."""
    found = np.array(array).view(kind)
    found.number = number
    return found


def encoded(box):
    """A map as no driver makes it: the address of the matrix, and then the other facts in their order."""
    facts = [*box]
    facts[4] = tensor_map_kinds().index(box.kind)
    return np.array(facts + [0] * (16 - len(facts)), np.uint64).tobytes()


def decoded(words):
    """The box of such a map."""
    from ggmlq.cuda.driver.tensor_maps import Box

    facts = [*words[:8]]
    facts[4] = tensor_map_kinds()[facts[4]]
    return Box(*facts)


def tensor_map_kinds():
    from ggmlq.cuda.driver.tensor_maps import KINDS

    return list(KINDS)


def put_gpu(monkeypatch, capability=(9, 0)):
    """GPU 0 is there: ``waits`` counts, ``capturing`` says whether its stream records a graph."""
    from ggmlq.cuda.driver import device, tensor_maps

    state = SimpleNamespace(capturing=False, waits=0, device_waits=0, allocator=len)

    def wait(what):
        if state.capturing:
            raise RuntimeError("a graph is being recorded")
        setattr(state, what, getattr(state, what) + 1)

    @contextmanager
    def using_allocator(allocator):
        before, state.allocator = state.allocator, allocator
        try:
            yield
        finally:
            state.allocator = before

    state.stream = SimpleNamespace(
        ptr=99, is_capturing=lambda: state.capturing, synchronize=lambda: wait("waits")
    )
    card = Card("a card", capability, 132, 227 << 10)
    driver = SimpleNamespace(device=lambda: 0, stream=lambda index: state.stream, card=lambda index: card)
    runtime = SimpleNamespace(deviceSynchronize=lambda: wait("device_waits"), getDeviceCount=lambda: 1)
    cuda = SimpleNamespace(
        get_allocator=lambda: state.allocator, using_allocator=using_allocator, runtime=runtime, Device=Device
    )
    state.cupy = SimpleNamespace(cuda=cuda, asarray=on_device, ascontiguousarray=lambda array: array)
    monkeypatch.setattr(device, "driver", lambda: driver)
    monkeypatch.setattr(device, "cupy", lambda: state.cupy)
    monkeypatch.setattr(tensor_maps, "encoded", encoded)
    monkeypatch.setattr(device, "card", lambda: card)
    return state
