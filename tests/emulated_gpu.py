"""A Hopper card made of NumPy: rungs' own ``launch`` runs, kernels by emulated_ptx.py."""

from __future__ import annotations

import sys
from functools import cache
from itertools import chain
from math import prod

import numpy as np
import quick_typing  # noqa: F401
from emulated_ptx import Machine, Memory, with_tables
from fake_cupy import DeviceArray, on_device, put_gpu

from ggmlq.cuda.driver import device, served, tensor_maps
from ggmlq.cuda.driver.launch import Kernel
from ggmlq.dispatch.card import Card
from ggmlq.dispatch.epilogue import Epilogue
from ggmlq.ops.gated_linear import ACTIVATIONS


@cache
def ptx_of(kernel, capability=(9, 0)):
    """The package's where it has any of these sources, else kept as machine code is: Numba takes its time."""
    text = served.STORE.packaged(kernel.origin, served.PTX) if capability >= (9, 0) else None
    if text is not None:
        return text.decode()
    machine = f"ptx-{served.machine_of(capability)}"
    text = served.STORE.load(kernel.origin, machine)
    if text is None:
        text = kernel.ptx(capability).encode()
        served.STORE.save(kernel.origin, machine, text)
    assert_no_doubles(kernel, text.decode())
    return text.decode()


def assert_no_doubles(kernel, text):
    """No float of 64 bits, which are slow on a GPU and round differently; a GRU's states are quantized so."""
    if "float64" not in kernel.name and not kernel.name.startswith("gru begins"):
        assert ".f64" not in text, kernel


def put_emulated(monkeypatch, multiprocessors=2):
    """A card that runs products of scaled arrays; ``memory`` must know ``out``."""
    state = put_gpu(monkeypatch)
    state.memory, state.tables = Memory(), {}
    card = Card("an emulated card", (9, 0), multiprocessors, 227 << 10)

    def made(function):
        def make(*given, **more):
            found = function(*given, **more).view(DeviceArray)
            state.memory.add(found)
            return found

        return make

    for name in ("empty", "zeros", "zeros_like", "ascontiguousarray", "repeat"):
        setattr(state.cupy, name, made(getattr(np, name)))
    state.cupy.asarray = lambda array: array if isinstance(array, DeviceArray) else on_device(array)
    for name, module in list(sys.modules.items()):
        if name.startswith("ggmlq.cuda.") and hasattr(module, "cupy"):
            monkeypatch.setattr(module, "cupy", lambda: state.cupy)
    monkeypatch.setattr(device, "current", lambda: 0)
    monkeypatch.setattr(device, "card_of", lambda index: card)
    monkeypatch.setattr(device, "_attribute", lambda which, index: 227 << 10)  # of shared memory, all or most
    monkeypatch.setattr(device, "refuse_capture", lambda what: None)
    monkeypatch.setattr(tensor_maps, "missing", lambda card: None)
    monkeypatch.setattr(tensor_maps, "map_address", state.memory.map)

    def call(kernel, grid, block, *arguments, cluster=1, max_blocks=0, together=False):
        for each in chain.from_iterable(a if type(a) is tuple else (a,) for a in arguments):
            if type(each) is not int:
                state.memory.add(each)
        words = kernel._flat(arguments)  # arrays as the compiler passes them
        machine = Machine(
            with_tables(ptx_of(kernel), state.memory, state.tables),
            state.memory,
            kernel.threads,
            kernel.shared,
            block[0],
        )
        assert prod(block) == kernel.threads
        machine(grid, *words, cluster=cluster, together=together)

    monkeypatch.setattr(Kernel, "__call__", call)
    return state


def launched(state, rung, x, w, out, **more):
    """A rung's product of arrays that are "on the device"."""
    for s in (x, w):
        state.memory.add(s.codes)
        state.memory.add(s.scales)
    state.memory.add(out)
    rung.launch(x, w, out, **more)
    return out


def addends(shape, memory, rng):
    """An epilogue with a bias and a residual, of kinds that are drawn; their sum, and that of their sizes."""
    parts, total, sizes = {}, 0, 0
    for name, size in (("bias", shape[-1:]), ("residual", shape)):
        values, kind = rng.standard_normal(size, np.float32), rng.choice(["f", "e", "H"])
        held = (values.view(np.uint32) >> 16).astype(np.uint16) if kind == "H" else values.astype(kind)
        memory.add(parts.setdefault(name, on_device(held)))
        values = (held.astype(np.uint32) << 16).view(np.float32) if kind == "H" else held.astype(np.float32)
        total, sizes = total + values, sizes + np.abs(values)
    return Epilogue(**parts), total, sizes


def addends_or_gate(shape, memory, rng, gates):
    """An epilogue that is drawn, of a bias and a residual or a gate; the factor, and what is added.

    ``gates``: whether it may be a gate.
    """
    if not gates or rng.integers(2):
        end, added, _ = addends(shape, memory, rng)
        return end, 1, added
    sums, name = 4 * rng.standard_normal(shape, np.float32), str(rng.choice(["silu", "gelu"]))
    held = on_device(sums)
    memory.add(held)
    act = ACTIVATIONS["gelu_tanh" if name == "gelu" else name]
    with np.errstate(over="ignore"):
        factor = act(np, sums.copy(), np.ones_like(sums))
    return Epilogue(residual=held, gate=name), factor, 0
