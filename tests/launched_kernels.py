"""Which kernels products launch on a card that is not there: rungs run on NumPy arrays."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
from fake_cupy import DeviceArray, on_device, put_gpu

import ggmlq as gq
from ggmlq.base import devices
from ggmlq.cuda.machine import device, tensor_maps
from ggmlq.cuda.machine.launch import Kernel
from ggmlq.dispatch import ladder
from ggmlq.dispatch.card import Card
from ggmlq.dispatch.problems import ExpertLinear, Linear

CARDS = {
    "NVIDIA H200": Card("NVIDIA H200", (9, 0), 132, 227 << 10),
    "T4": Card("Tesla T4", (7, 5), 40, 64 << 10),
    "B200": Card("NVIDIA B200", (10, 0), 148, 227 << 10),
}
SMALL = 256, 512  # N and K of what is launched; which rung, larger ones say
EXPERTS = 16


def put_card(monkeypatch, name):
    """Pretend to have a card, and gather the kernels that it would launch."""
    for op in ("linear", "scaled_linear", "expert_linear"):
        ladder.rungs(op, "cuda")  # imported before: they take device.cupy by its name
    state, card, found = put_gpu(monkeypatch, CARDS[name].capability), CARDS[name], []

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
    monkeypatch.setattr(Kernel, "__call__", lambda kernel, *given, **more: found.append(kernel))
    return card, found


def rungs_of(fmt, m, card):
    """Rungs that "auto" takes for some shapes of weights."""
    shapes = ((4096, 4096), (4096, 14336), (14336, 4096), (128256, 8192), (1024, 2048))
    return {
        ladder.choose(Linear(fmt, m, n, k, device="cuda", card=card)).name: None
        for n, k in shapes
    }  # fmt: skip


def launch(fmt, m, card, found):
    """Kernels of a product of m rows, weights from the file onward, and their decoding."""
    n, k = SMALL
    raw = on_device(np.zeros((n, k // fmt.block_size * fmt.dtype.itemsize), np.uint8))
    x, out = on_device(np.zeros((m, k), np.float32)), on_device(np.zeros((m, n), np.float32))
    for name in rungs_of(fmt, m, card):
        rung = next(each for each in gq.kernels(device="cuda") if each.name == name)
        q = gq.QuantArray(fmt, (n, k), raw)
        rung.launch(x, q, out)
        rung.launch(x, q, out)  # with strips, if it made some
    return list(dict.fromkeys(found))


def launch_experts(fmt, tokens, used, card, found):
    """Kernels of a product of tokens with experts, weights from the file onward; and the rung."""
    n, k = SMALL
    size = k // fmt.block_size * fmt.dtype.itemsize
    q = gq.QuantArray(fmt, (EXPERTS, n, k), on_device(np.zeros((EXPERTS, n, size), np.uint8)))
    x = on_device(np.zeros((tokens, k), np.float32))
    ids, out = (on_device(np.zeros((tokens, used, *more), kind)) for more, kind in (((), int), ((n,), "f4")))
    problem = ExpertLinear(fmt, tokens, used, EXPERTS, n, k, device="cuda", card=card)
    rung = ladder.choose(problem)
    for _ in range(2):  # with strips, if it made some
        rung.launch(x, q, ids, out)
    return list(dict.fromkeys(found)), rung.name
