"""One matrix product, plain or of experts, as a ggml graph of one node, on a device of the user's build.

Before every run the result is filled with a NaN of our own: what a kernel does not write shows.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DeviceError, LibraryFailedError, UnsupportedError
from ..formats import Format
from ..formats.format import Bytes, Floats
from .devices import Handle
from .library import Library, address
from .symbols import INT, InitParams, P, Symbols, words

WEIGHTS, COMPUTE = 1, 2  # what a buffer is for: ggml_backend_buffer_usage
F32, I32 = 0, 26  # ggml's numbers of types
UNWRITTEN = 0x7FC0BEEF  # bits of a NaN that no arithmetic makes


@dataclass(frozen=True)
class Request:
    """What to multiply, and how often."""

    format: Format
    rows: int  # N
    columns: int  # K
    threads: int = 1
    repack: bool | str = False  # True: any layout of the device's own; or its name
    repeats: int = 1
    time_runs: int = 0
    experts: int = 0  # with ids: how many matrices there are

    def __str__(self) -> str:
        layout = f" {self.repack}" if isinstance(self.repack, str) else " repacked" if self.repack else ""
        of = f"{self.experts}, " if self.experts else ""
        name = "mul_mat_id" if self.experts else "mul_mat"
        return f"{name} of {self.format.name}{layout} weights [{of}{self.rows}, {self.columns}]"

    def weights(self, symbols: Any, context: int) -> int:
        """Their tensor."""
        if self.experts:
            made: int = symbols.ggml_new_tensor_3d(
                context, self.format.id, self.columns, self.rows, self.experts
            )
            return made
        return int(symbols.ggml_new_tensor_2d(context, self.format.id, self.columns, self.rows))


class Multiplier:
    """Multiplies on one device; its backend is made once."""

    def __init__(self, library: Library, handle: Handle) -> None:
        self.library = library
        self.handle = handle
        self.symbols: Symbols = library.symbols
        self.backend = self.symbols.ggml_backend_dev_init(handle.dev, None)
        if not self.backend:
            raise DeviceError(
                f"device {handle.device.name!r}: its backend did not start; "
                "often a driver is missing or the memory is full"
            )

    def run(
        self, x: Floats, raw: Bytes, request: Request, ids: Any = None
    ) -> tuple[Floats, list[float], str]:
        """All results [repeats, M, N], the seconds of the timed runs, where the weights lay.

        With ids int32 [T, U] x is [T, 1 or U, K], and results are [repeats, T, U, N].
        """
        self.library.check_type(request.format)
        self._set_threads(request.threads)
        s = self.symbols
        with ExitStack() as stack:
            w, node, place = self._placed(stack, request, x.shape, None if ids is None else ids.shape)
            s.ggml_backend_tensor_set(w, address(raw), 0, raw.nbytes)
            self._allocate(stack, node.context, self._kind, COMPUTE, f"activations {x.shape}")
            lead = x.shape[:1] if ids is None else ids.shape
            y = np.empty((request.repeats, *lead, request.rows), np.float32)
            graph = s.ggml_new_graph(node.context)
            s.ggml_build_forward_expand(graph, node.result)
            unwritten = np.full(y.shape[1:], UNWRITTEN, np.uint32)
            for result in y:
                s.ggml_backend_tensor_set(node.x, address(x), 0, x.nbytes)
                if ids is not None:
                    s.ggml_backend_tensor_set(node.ids, address(ids), 0, ids.nbytes)
                s.ggml_backend_tensor_set(node.result, address(unwritten), 0, unwritten.nbytes)
                self.compute(graph, request)
                s.ggml_backend_tensor_get(node.result, address(result), 0, result.nbytes)
            return y, list(self._times(graph, request)), place

    def _placed(
        self, stack: ExitStack, request: Request, x: tuple[int, ...], ids: tuple[int, ...] | None
    ) -> tuple[int, _Node, str]:
        """Weights in the first kind of buffer in which the device multiplies them."""
        s = self.symbols
        kinds = self._wanted_kinds(request) if request.repack else [self._kind]
        for kind in kinds:
            with ExitStack() as trial:
                context = self._context(trial)
                w = request.weights(s, context)
                self._allocate(trial, context, kind, WEIGHTS, str(request))
                node = _Node(s, self._context(trial), w, x, ids)
                if s.ggml_backend_dev_supports_op(self.handle.dev, node.result):
                    self._check_size(w, request)
                    stack.push(trial.pop_all())
                    return w, node, words(s.ggml_backend_buft_name(kind))
        layout = (
            "has no repacked layout for it; leave repack off"
            if request.repack is True
            else f"does not multiply it in {request.repack}; leave that out, or choose another type"
            if request.repack
            else "does not multiply it; choose another type or device"
        )
        raise UnsupportedError(f"{request}, x {x}: the device {self._name} {layout}")

    def _allocate(self, stack: ExitStack, context: int, kind: int, usage: int, what: str) -> None:
        buffer = self.symbols.ggml_backend_alloc_ctx_tensors_from_buft(context, kind)
        if not buffer:
            raise DeviceError(
                f"{what}: the device {self._name} could not allocate its buffer; try a smaller shape"
            )
        stack.callback(self.symbols.ggml_backend_buffer_free, buffer)
        self.symbols.ggml_backend_buffer_set_usage(buffer, usage)

    def _context(self, stack: ExitStack) -> int:
        """Room for a few tensors and a graph, without their data."""
        s = self.symbols
        room = 8 * s.ggml_tensor_overhead() + s.ggml_graph_overhead()
        context: int = s.ggml_init(InitParams(room, None, True))
        stack.callback(s.ggml_free, context)
        return context

    def _check_size(self, w: int, request: Request) -> None:
        ours = max(request.experts, 1) * request.rows * request.format.row_bytes(request.columns)
        theirs = self.symbols.ggml_nbytes(w)
        if ours != theirs:
            raise UnsupportedError(
                f"{request}: {theirs} bytes in the library, {ours} here; the library was built "
                "with another layout of blocks; use one of 2026"
            )

    def _wanted_kinds(self, request: Request) -> list[int]:
        """All layouts of the device's own, or the one that was named."""
        kinds = self._extra_kinds()
        if request.repack is True:
            return kinds
        names = [words(self.symbols.ggml_backend_buft_name(kind)) for kind in kinds]
        found = [
            kind
            for kind, name in zip(kinds, names, strict=True)
            if name.lower() == str(request.repack).lower()
        ]
        if not found:
            raise UnsupportedError(
                f"{request}: the device {self._name} has {', '.join(names) or 'no layouts of its own'} on "
                "this processor; name one of these, or leave it out"
            )
        return found

    def _extra_kinds(self) -> list[int]:
        """Buffer types beyond the default: repacked, AMX … (a list that ends in NULL)."""
        function = self.symbols.procedure(
            self.handle.reg, "ggml_backend_dev_get_extra_bufts", ctypes.POINTER(P), P
        )
        found = function(self.handle.dev) if function else None
        kinds: list[int] = []
        while found and found[len(kinds)]:
            kinds.append(found[len(kinds)])
        return kinds

    def _set_threads(self, threads: int) -> None:
        """Backends that have no threads offer no such function."""
        function = self.symbols.procedure(self.handle.reg, "ggml_backend_set_n_threads", None, P, INT)
        if function:
            function(self.backend, threads)

    def compute(self, graph: int, request: Request) -> None:
        """Run a graph; ``request`` is what an error speaks of."""
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
    def _kind(self) -> int:
        kind: int = self.symbols.ggml_backend_dev_buffer_type(self.handle.dev)
        return kind

    @property
    def _name(self) -> str:
        return self.handle.device.name


class _Node:
    """``mul_mat(w, x)`` in a context of its own: x [M, K] float32 and the result [M, N].

    Or ``mul_mat_id(w, x, ids)``: ids int32 [T, U], x [T, 1 or U, K], the result [T, U, N].
    """

    def __init__(
        self, symbols: Any, context: int, w: int, x: tuple[int, ...], ids: tuple[int, ...] | None
    ) -> None:
        self.context = context
        if ids is None:
            self.x: int = symbols.ggml_new_tensor_2d(context, F32, x[1], x[0])
            self.result: int = symbols.ggml_mul_mat(context, w, self.x)
            return
        self.x = symbols.ggml_new_tensor_3d(context, F32, *x[::-1])
        self.ids: int = symbols.ggml_new_tensor_2d(context, I32, *ids[::-1])
        self.result = symbols.ggml_mul_mat_id(context, w, self.x, self.ids)
