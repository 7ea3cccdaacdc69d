"""A card that remembers what its driver is told of launches: arrays of NumPy, our own plans, no GPU."""

from __future__ import annotations

import ctypes
import sys
import threading
from types import SimpleNamespace

import numpy as np
from fake_cupy import DeviceArray, on_device, put_gpu

import ggmlq as gq
from ggmlq.base import devices
from ggmlq.cuda.driver import device, launch, submit, tensor_maps
from ggmlq.cuda.driver.launch import Kernel
from ggmlq.dispatch import ladder
from ggmlq.dispatch.card import Card
from ggmlq.formats import FORMATS
from ggmlq.ops import plan
from ggmlq.ops.epilogue import Wishes
from ggmlq.ops.linear import multiply as product

CALL, N, K = Kernel.__call__, 384, 1024
H200 = Card("NVIDIA H200", (9, 0), 132, 227 << 10)


def put_card(monkeypatch):
    """Pretend to have an H200, on which kernels do nothing."""
    for op in ("linear", "scaled_linear", "expert_linear"):
        ladder.rungs(op, "cuda")  # imported before: they take device.cupy by its name
    state, card = put_gpu(monkeypatch), H200

    def made(function):
        return lambda *given, **more: function(*given, **more).view(DeviceArray)

    for word in ("empty", "zeros", "zeros_like", "ascontiguousarray", "concatenate"):
        setattr(state.cupy, word, made(getattr(np, word)))
    state.cupy.cuda.device = SimpleNamespace(get_cublas_handle=lambda: 0)
    driver = device.driver()
    gpu = SimpleNamespace(**vars(driver), array=DeviceArray, empty=state.cupy.empty)
    gpu.card = lambda index: card
    monkeypatch.setitem(sys.modules, "cupy", state.cupy)
    monkeypatch.setattr(device, "_usable", [state.cupy])
    monkeypatch.setattr(device, "driver", lambda: gpu)
    monkeypatch.setattr(device, "card", lambda: card)
    monkeypatch.setattr(device, "card_of", lambda index: card)
    monkeypatch.setattr(device, "cublas", lambda: SimpleNamespace(gemmEx=lambda *given: None))
    monkeypatch.setattr(device, "_cublas_problem", lambda: None)  # an answer may be remembered from before
    monkeypatch.setattr(device, "_attribute", lambda which, index: card.shared)
    monkeypatch.setattr(device, "driver_version", lambda: 13000)
    monkeypatch.setattr(device, "multiprocessors", lambda: card.multiprocessors)
    monkeypatch.setattr(tensor_maps, "map_array", lambda box: on_device(np.zeros(128, np.uint8)))
    monkeypatch.setattr(devices, "cuda_device", lambda: device)
    monkeypatch.setattr(plan, "TEMPLATES", plan.Templates())  # those of a test hold its driver's functions


def put_driver(monkeypatch):
    """An H200 that remembers launches: grid, block, shared memory, stream, all words of the arguments."""
    put_card(monkeypatch)
    state = SimpleNamespace(launches=[], memory=[], stream=device.driver().stream(0), lock=threading.Lock())
    kernels = []

    def load(kernel, index):
        with state.lock:
            kernels.append(kernel)
            return SimpleNamespace(ptr=len(kernels)), kernel.shared, kernel.early

    def driver(shape_at, function, pointers_at, extra):
        facts = submit.SHAPE.unpack(ctypes.string_at(shape_at, submit.SHAPE.size))
        kernel = kernels[function - 1]
        count = sum(map(launch._word_count, kernel.parameters))
        words = [
            int.from_bytes(ctypes.string_at(at, 8), "little")
            for at in (ctypes.c_void_p * count).from_address(pointers_at)
        ]
        state.launches.append((threading.get_ident(), kernel.name, facts[:8], words))
        return 0

    def alloc(size):
        state.memory.append(np.empty(size + 256, np.uint8))
        return SimpleNamespace(ptr=state.memory[-1].ctypes.data)

    monkeypatch.setattr(Kernel, "__call__", CALL)
    monkeypatch.setattr(Kernel, "_load", load)
    monkeypatch.setattr(submit, "driver_launch", lambda: driver)
    device.cupy().cuda.alloc = alloc
    gpu = device.driver()
    gpu.array = lambda shape, dtype: on_device(np.zeros(shape, dtype))
    gpu.share = np.may_share_memory
    for module in (devices, plan):
        monkeypatch.setattr(module, "cuda_driver", lambda: gpu)
    ladder.forget_choices()
    return state


def multiply(x, q, out, kernel="auto", kind="f", bias=None):
    """A product of CuPy's floats, or of the bits of bfloat16 (``kind`` "H"), to ``out``."""
    if kind == "H":
        assert of_bits(x, q, out, kernel, bias)
    else:
        assert gq.linear(x, q, kernel=kernel, out=out, bias=bias) is out


def of_bits(x, q, out, kernel="auto", bias=None, residual=None):
    """True if a kernel has multiplied the bits of bfloat16; False, and nothing done, where there is none."""
    return product(q, x, Wishes(out, bias, residual, kernel=kernel), lies=True) is not None


def aligned(shape):
    """Floats on the device at a multiple of 16 bytes, as CuPy's are."""
    size = int(np.prod(shape))
    memory = on_device(np.zeros(size + 4, np.float32))
    first = -memory.data.ptr % 16 // 4
    return memory[first : first + size].reshape(shape)


def weights(name):
    fmt = FORMATS[name]
    raw = np.zeros((N, K // fmt.block_size * fmt.dtype.itemsize), np.uint8)
    return gq.QuantArray(fmt, (N, K), on_device(raw))


def said(state, known):
    """What the driver was given since, with addresses by name: the rest must be the same in each call."""
    found = [
        (name, facts, [next((n for n, at, end in known if at <= w < end), w) for w in words])
        for _, name, facts, words in state.launches
    ]
    state.launches.clear()
    assert found
    return [
        (name, facts, ["between" if type(w) is int and w >= 1 << 32 else w for w in words])
        for name, facts, words in found
    ]


def ends(**arrays):
    return [(name, array.data.ptr, array.data.ptr + array.nbytes) for name, array in arrays.items()]
