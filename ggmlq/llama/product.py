"""``Multiplier``: computes a matrix product on a device of a user's libggml, as a graph of one node.

The product is plain, in batches or of experts. Before every run the result and the memory around the operands
are filled with NaNs of our own. So elements that a kernel does not write show, and bytes that it writes
beside the result.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DeviceError, LibraryFailedError, UnsupportedError
from ..formats import Format
from ..formats.format import Bytes, Floats
from .devices import Handle, extra_kinds, handles
from .guards import F32, GUARD, UNWRITTEN, Arena, Stray
from .library import INT, SIZE, InitParams, Library, P, Symbols, address, words

WEIGHTS, COMPUTE = 1, 2  # uses of a buffer: ggml_backend_buffer_usage
I32 = 26  # ggml's number of the type
TENSORS = 16  # of a context for a product, guards among them


@dataclass(frozen=True)
class Request:
    """A product that the library computes, and the number of runs."""

    format: Format
    rows: int  # N
    columns: int  # K
    threads: int = 1
    repack: bool | str = False  # True: any layout of the device's own; or its name
    repeats: int = 1
    time_runs: int = 0
    lead: tuple[int, ...] = ()  # axes of the weights before [N, K]: experts, or batches

    def __str__(self) -> str:
        layout = f" {self.repack}" if isinstance(self.repack, str) else " repacked" if self.repack else ""
        shape = [*self.lead, self.rows, self.columns]
        return f"mul_mat of {self.format.name}{layout} weights {shape}"

    def weights(self, symbols: Any, context: int) -> int:
        """The tensor of the weights."""
        return _tensor(symbols, context, self.format.id, (*self.lead, self.rows, self.columns))


@dataclass(frozen=True)
class Results:
    """The results of one request."""

    y: Floats  # [repeats, ..., N]
    seconds: list[float]  # of the timed runs
    buffer: str  # name of the memory that held the weights
    forced: bool  # the device refuses this x in that layout; llama.cpp multiplies all the same
    strays: list[Stray]


class Multiplier:
    """Multiplies on one device; its backend is made once."""

    def __init__(self, library: Library, handle: Handle) -> None:
        self.library = library
        self.handle = handle
        self.symbols: Symbols = library.symbols
        self._asked = [handle.dev]  # devices that must take an operation
        if handle.device.backend.startswith("RPC"):  # it says yes to all, and the server dies of a no
            self._asked += [one.dev for one in handles(self.symbols) if one.device.backend == "CPU"]
        self.backend = self.symbols.ggml_backend_dev_init(handle.dev, None)
        if not self.backend:
            raise DeviceError(
                f"device {handle.device.name!r}: its backend did not start; "
                "often a driver is missing or the memory is full"
            )

    def run(self, x: Floats, raw: Bytes, request: Request, ids: Any = None) -> Results:
        """The results of the product, run as often as the request says.

        With ids int32 [T, U] x is [T, 1 or U, K], and results are [repeats, T, U, N]. Without, x is [M, K] or
        [.., M, K], as many leading axes as ggml has, and results have the same.
        """
        self.library.check_type(request.format)
        self.set_threads(request.threads)
        s = self.symbols
        with ExitStack() as stack:
            w, node, place, forced = self._placed(stack, request, x.shape, None if ids is None else ids.shape)
            s.ggml_backend_tensor_set(w.tensor, address(raw), 0, raw.nbytes)
            operands = {"x": x} if ids is None else {"ids": ids, "x": x}
            tensors = {**{name: getattr(node, name) for name in operands}, "y": node.y}
            what = f"activations {x.shape}"
            arena = Arena(stack, s, node.context, self.buffer_kind, COMPUTE, tensors, what)
            y = np.empty((request.repeats, *(x if ids is None else ids[..., None]).shape[:-1], request.rows),
                         np.float32)  # fmt: skip
            graph = s.ggml_new_graph(node.context)
            s.ggml_build_forward_expand(graph, node.y)
            unwritten = np.full(y.shape[1:], UNWRITTEN, np.uint32)
            for result in y:
                w.fill()
                arena.fill({**operands, "y": unwritten})
                self.compute(graph, request)
                s.ggml_backend_tensor_get(node.y, address(result), 0, result.nbytes)
                arena.look(operands)
                w.look(raw)
            seconds = list(self._times(graph, request))
            return Results(y, seconds, place, forced, [*arena.strays, *w.strays])

    def takes(self, x: tuple[int, ...], request: Request, ids: tuple[int, ...] | None) -> bool:
        """True where the device multiplies such operands in that layout."""
        self.library.check_type(request.format)
        with ExitStack() as stack, suppress(UnsupportedError):
            self._placed(stack, request, x, ids)
            return True
        return False

    def _placed(
        self, stack: ExitStack, request: Request, x: tuple[int, ...], ids: tuple[int, ...] | None
    ) -> tuple[_Weights, _Node, str, bool]:
        """Weights in the first kind of buffer in which the device multiplies them.

        llama.cpp asks a device about a repacked layout once, when it loads weights, with activations of as
        many matrices as the weights have. Later it multiplies whatever comes: so do we, and report it.
        """
        s = self.symbols
        kinds = self._layout_kinds(request) if request.repack else [self.buffer_kind]
        for kind in kinds:
            with ExitStack() as trial:
                w = _Weights(self, trial, request, kind)
                node = _Node(s, self.context(trial), w.tensor, x, ids)
                takes = self.takes_op(node.y)
                at_load = (*request.lead, *x[-2:])
                if not takes and request.repack and ids is None and x != at_load:
                    plain = _Node(s, self.context(trial), w.tensor, at_load, None)
                    forced = self.takes_op(plain.y)
                else:
                    forced = False
                if takes or forced:
                    self._check_size(w.tensor, request)
                    stack.push(trial.pop_all())
                    return w, node, words(s.ggml_backend_buft_name(kind)), bool(forced)
        layout = (
            "has no repacked layout for it; leave repack off"
            if request.repack is True
            else f"does not multiply it in {request.repack}; leave that out, or choose another type"
            if request.repack
            else "does not multiply it; choose another type or device"
        )
        raise UnsupportedError(f"{request}, x {x}: the device {self._name} {layout}")

    def context(self, stack: ExitStack, tensors: int = TENSORS) -> int:
        """A new ggml context with room for some tensors and a graph, without their data."""
        s = self.symbols
        room = tensors * s.ggml_tensor_overhead() + s.ggml_graph_overhead()
        context: int = s.ggml_init(InitParams(room, None, True))
        stack.callback(s.ggml_free, context)
        return context

    def _check_size(self, w: int, request: Request) -> None:
        ours = math.prod(request.lead) * request.rows * request.format.row_bytes(request.columns)
        theirs = self.symbols.ggml_nbytes(w)
        if ours != theirs:
            raise UnsupportedError(
                f"{request}: {theirs} bytes in the library, {ours} here; the library was built "
                "with another layout of blocks; use one of 2026"
            )

    def _layout_kinds(self, request: Request) -> list[int]:
        """Kinds of buffers of the device's repacked layouts: all, or the one that was named."""
        kinds = extra_kinds(self.symbols, self.handle.reg, self.handle.dev)
        if request.repack is True:
            return kinds
        names = [words(self.symbols.ggml_backend_buft_name(kind)) for kind in kinds]
        matches = [
            kind
            for kind, name in zip(kinds, names, strict=True)
            if name.lower() == str(request.repack).lower()
        ]
        if not matches:
            raise UnsupportedError(
                f"{request}: the device {self._name} has {', '.join(names) or 'no layouts of its own'} on "
                "this processor; name one of these, or leave it out"
            )
        return matches

    def takes_op(self, tensor: int) -> bool:
        """True where the device says that it computes a node."""
        return all(self.symbols.ggml_backend_dev_supports_op(dev, tensor) for dev in self._asked)

    def set_threads(self, threads: int) -> None:
        """Set the number of threads, where the backend has such a function."""
        function = self.symbols.procedure(self.handle.reg, "ggml_backend_set_n_threads", None, P, INT)
        if function:
            function(self.backend, threads)

    def compute(self, graph: int, request: Request | str) -> None:
        """Run a graph; errors name ``request``."""
        status = self.symbols.ggml_backend_graph_compute(self.backend, graph)
        self.symbols.ggml_backend_synchronize(self.backend)
        if status != 0:
            raise LibraryFailedError(
                f"{request}: ggml_backend_graph_compute on {self._name} returned status {status}, "
                "0 is success; try another shape or device"
            )

    def _times(self, graph: int, request: Request) -> Iterator[float]:
        for _ in range(request.time_runs):
            start = time.perf_counter()
            self.compute(graph, request)
            yield time.perf_counter() - start

    @property
    def buffer_kind(self) -> int:
        """The device's default kind of memory."""
        kind: int = self.symbols.ggml_backend_dev_buffer_type(self.handle.dev)
        return kind

    @property
    def _name(self) -> str:
        return self.handle.device.name


class _Weights:
    """The weights of a request in memory of one kind; in the device's default one with guards around them."""

    def __init__(self, m: Multiplier, stack: ExitStack, request: Request, kind: int) -> None:
        s = m.symbols
        context = m.context(stack)
        self.tensor = request.weights(s, context)
        self._arena: Arena | None = None
        if not request.repack:
            self._arena = Arena(stack, s, context, kind, WEIGHTS, {"w": self.tensor}, str(request))
            return
        buffer = s.ggml_backend_alloc_ctx_tensors_from_buft(context, kind)
        if not buffer:
            raise DeviceError(f"{request}: the device could not allocate its buffer; try a smaller shape")
        stack.callback(s.ggml_backend_buffer_free, buffer)
        s.ggml_backend_buffer_set_usage(buffer, WEIGHTS)

    def fill(self) -> None:
        """Fill the weights' memory with guards."""
        if self._arena is not None:
            self._arena.fill({})

    def look(self, raw: Bytes) -> None:
        """Note bytes that a kernel changed in or around the weights; repacked ones cannot be read."""
        if self._arena is not None:
            self._arena.look({"w": raw})

    @property
    def strays(self) -> list[Stray]:
        """Everything noted so far."""
        return [] if self._arena is None else self._arena.strays


class _Node:
    """``mul_mat(w, x)`` in a context of its own: x [.., M, K] float32 and the result y [.., M, N].

    Or ``mul_mat_id(w, x, ids)``: ids int32 [T, U], x [T, 1 or U, K], y [T, U, N].
    """

    def __init__(
        self, symbols: Any, context: int, w: int, x: tuple[int, ...], ids: tuple[int, ...] | None
    ) -> None:
        self.context = context
        self.x = _tensor(symbols, context, F32, x)
        if ids is None:
            self.y: int = symbols.ggml_mul_mat(context, w, self.x)
            return
        self.ids = _tensor(symbols, context, I32, ids)
        self.y = symbols.ggml_mul_mat_id(context, w, self.x, self.ids)


def _tensor(symbols: Any, context: int, kind: int, shape: tuple[int, ...]) -> int:
    """A tensor of that shape, in NumPy's order of axes."""
    axes = [*reversed(shape), 1, 1, 1][:4]
    return int(symbols.ggml_new_tensor_4d(context, kind, *axes))


# --- a graph on a CPU with work memory of ours, and guard bytes behind it -------------------------
#
# Kernels take what they need for a while from one piece of memory, whose size ggml plans before. A plan that
# is too small shows nowhere else: what lies behind is overwritten, and the process may die much later.

BEHIND = 1 << 20  # bytes of the guard


class Plan(ctypes.Structure):
    """ggml's plan of a computation: the size of its work memory, the memory, and what we leave as it is."""

    _fields_ = [("work_size", SIZE), ("work_data", P), ("rest", ctypes.c_uint8 * 112)]


def compute(m: Multiplier, graph: int, threads: int, what: str) -> Stray | None:
    """Run a graph; what was written behind the work memory, where the device is a CPU that shows it."""
    s = m.symbols
    if m.handle.device.backend != "CPU" or not s.has("ggml_graph_plan"):
        m.compute(graph, what)
        return None
    plan: Plan = _typed(s).ggml_graph_plan(graph, threads, None)
    size = int(plan.work_size)
    words = np.full(-(-size // 4) + BEHIND // 4, GUARD, np.uint32)
    memory = words.view(np.uint8)
    plan.work_data = memory.ctypes.data
    before = memory[size:].copy()
    status = s.ggml_graph_compute(graph, ctypes.byref(plan))
    if status != 0:
        raise LibraryFailedError(
            f"{what}: ggml_graph_compute returned status {status}, 0 is success; try another shape"
        )
    changed = np.flatnonzero(memory[size:] != before)
    if not changed.size:
        return None
    return Stray("behind the work memory", len(changed), int(changed[0]), int(changed[-1]))


ROUNDS, LONGEST = 1000, 0.3  # computations of a pool, one right behind the other, and seconds of them


class Pool:
    """A pool of threads that outlives a graph, as programs keep one, and whose number of threads changes.

    Threads that still leave one graph meet those that begin the next: so graphs follow each other at once.
    """

    def __init__(self, m: Multiplier, stack: ExitStack, counts: Sequence[int]) -> None:
        # Threads that share a core wait for each other for milliseconds.
        cores = os.cpu_count() or 1
        self._symbols, self._counts = m.symbols, [min(count, cores) for count in counts]
        s = m.symbols
        if m.handle.device.backend != "CPU" or not s.has("ggml_threadpool_new"):
            raise UnsupportedError(
                "ggml_threadpool_new: the device has no pool of threads; try a CPU of 2025"
            )
        facts = ctypes.create_string_buffer(1 << 14)  # more than the parameters take in any year
        s.ggml_threadpool_params_init.restype, s.ggml_threadpool_params_init.argtypes = None, [P, INT]
        s.ggml_threadpool_new.restype, s.ggml_threadpool_new.argtypes = P, [P]
        s.ggml_threadpool_free.restype, s.ggml_threadpool_free.argtypes = None, [P]
        s.ggml_threadpool_params_init(facts, max(self._counts))
        self._pool = s.ggml_threadpool_new(facts)
        stack.callback(s.ggml_threadpool_free, self._pool)

    def compute(self, graph: int) -> None:
        """Run a graph many times, with one number of threads after the other."""
        s = _typed(self._symbols)
        plans = [s.ggml_graph_plan(graph, count, self._pool) for count in self._counts]
        memory = np.empty(max(plan.work_size for plan in plans) + 64, np.uint8)
        for plan in plans:
            plan.work_data = memory.ctypes.data
        start = time.monotonic()
        for i in range(ROUNDS):
            s.ggml_graph_compute(graph, ctypes.byref(plans[i % len(plans)]))
            if time.monotonic() - start > LONGEST:
                break


def _typed(symbols: Symbols) -> Symbols:
    """The symbols, those of a plan with their types."""
    symbols.ggml_graph_plan.restype, symbols.ggml_graph_plan.argtypes = Plan, [P, INT, P]
    symbols.ggml_graph_compute.restype, symbols.ggml_graph_compute.argtypes = INT, [P, P]
    return symbols
