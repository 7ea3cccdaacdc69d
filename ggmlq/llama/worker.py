"""The main program of the bridge's child process, in which a user's library runs and may crash or hang.

Requests come through the pipe that was stdin, answers leave through the one that was stdout.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any

from ..base.system import LINUX, end_group, hidden, wake_when_orphaned
from ..errors import GGMLQError
from ..formats import FORMATS
from . import devices, graph
from .files import locate
from .graph import RecordedGraph
from .library import Library, libraries
from .product import Multiplier, Request
from .protocol import Arrays, Stream, receive, send
from .structs import Tensors

Answer = tuple[dict[str, Any], Arrays]


class Worker:
    """Answers the requests of a bridge; the ``do`` of a request names the method."""

    def __init__(self) -> None:
        self._library: Library | None = None
        self._multipliers: dict[str, Multiplier] = {}
        self._tensors: Tensors | None = None

    @property
    def library(self) -> Library:
        """The build, which the first request loads."""
        assert self._library is not None, "a request came before `load`"
        return self._library

    def load(self, message: dict[str, Any], arrays: Arrays) -> Answer:
        """Load the whole build with its backends; its path, version and types."""
        self._library = Library(locate(message["lib"]), whole=True)
        library = self.library
        if message["server"]:
            devices.connect(library.symbols, message["server"], message["patience"])
        return {"path": str(library.path), "version": library.version, "types": sorted(library.types),
                "libraries": self._libraries()}, []  # fmt: skip

    def _libraries(self) -> list[str]:
        return [str(path) for path in libraries(self.library.symbols.build)]

    def devices(self, message: dict[str, Any], arrays: Arrays) -> Answer:
        """The devices that the backends of the build offer."""
        handles = [handle.device.facts() for handle in devices.handles(self.library.symbols)]
        return {"devices": handles, "libraries": self._libraries()}, []  # some are loaded only now

    def quantize(self, message: dict[str, Any], arrays: Arrays) -> Answer:
        """Rows of floats, perhaps an importance matrix, to bytes."""
        return {}, [self.library.quantize(arrays[0], FORMATS[message["format"]], *arrays[1:])]

    def dequantize(self, message: dict[str, Any], arrays: Arrays) -> Answer:
        """Decode bytes of a type to floats."""
        return {}, [self.library.dequantize(arrays[0], FORMATS[message["format"]])]

    def mul_mat(self, message: dict[str, Any], arrays: Arrays) -> Answer:
        """Multiply activations with weights, perhaps by ids of experts; the answer has results and times."""
        multiplier = self._multiplier(message.pop("device"))
        parts = {"format": FORMATS[message["format"]], "lead": tuple(message["lead"])}
        results = multiplier.run(arrays[0], arrays[1], Request(**{**message, **parts}), *arrays[2:])
        facts = {"seconds": results.seconds, "buffer": results.buffer, "forced": results.forced}
        return {**facts, "strays": [asdict(stray) for stray in results.strays]}, [results.y]

    def node(self, message: dict[str, Any], arrays: Arrays) -> Answer:
        """Compute the node of a small graph; the answer has its sources and its results.

        With no repeats it is not computed: the answer tells whether the device says that it would be.
        """
        multiplier = self._multiplier(message["device"])
        self._tensors = self._tensors or Tensors(self.library.symbols)
        kind = RecordedGraph if "nodes" in message else graph.Graph
        if not message["repeats"]:
            taken = graph.is_taken(multiplier, self._tensors, message, kind)
            return {"taken": taken, "op": graph.op_of(multiplier, self._tensors, message, kind)}, []
        how = graph.Settings(message["threads"], message["repeats"], tuple(message["pool"]))
        return graph.run_program(multiplier, self._tensors, message, list(arrays), how, kind)

    def takes(self, message: dict[str, Any], arrays: Arrays) -> Answer:
        """Tell for each triple of shapes (x, weights, ids) whether the device multiplies it in a layout."""
        multiplier, fmt = self._multiplier(message["device"]), FORMATS[message["format"]]
        answers = []
        for x, (*lead, n, k), ids in message["shapes"]:
            request = Request(fmt, n, k, repack=message["repack"], lead=tuple(lead))
            answers.append(multiplier.takes(tuple(x), request, ids and tuple(ids)))
        return {"takes": answers}, []

    def _multiplier(self, device: str) -> Multiplier:
        handle = devices.find(self.library.symbols, device)
        name = handle.device.name
        if name not in self._multipliers:
            self._multipliers[name] = Multiplier(self.library, handle)
        return self._multipliers[name]


def answer(method: Callable[[dict[str, Any], Arrays], Answer], message: Any, arrays: Arrays) -> Answer:
    """The answer of the method; an error becomes a message too."""
    try:
        return method(message, arrays)
    except GGMLQError as error:
        return {"error": type(error).__name__, "text": str(error)}, []
    except Exception:
        return {"error": "RuntimeError", "text": traceback.format_exc()}, []


def serve(requests: Stream, answers: Stream) -> None:
    """Answer requests until the bridge is gone."""
    worker = Worker()
    inbox: SimpleQueue[tuple[int, dict[str, Any], Arrays]] = SimpleQueue()
    threading.Thread(target=listen, args=(requests, inbox), daemon=True).start()
    while True:
        number, message, arrays = inbox.get()
        method = getattr(worker, message.pop("do"))
        send(answers, number, *answer(method, message, arrays))


def listen(requests: Stream, inbox: SimpleQueue[tuple[int, dict[str, Any], Arrays]]) -> None:
    """Put requests into the inbox. Where they end, the bridge is gone: then end all, even a busy library."""
    try:
        while True:
            inbox.put(receive(requests))
    except EOFError:
        pass
    except BaseException:
        traceback.print_exc()
    end_group()


def take_pipes() -> tuple[Stream, Stream]:
    """The pipes of requests and answers, under descriptors that no library uses by accident.

    0 then is empty, and 1 means stderr: a library that prints does not speak into the answers.
    """
    requests, answers = (os.fdopen(hidden(number), mode, 0) for number, mode in ((0, "rb"), (1, "wb")))
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return requests, answers  # type: ignore[return-value]  # they are raw files


def share_cxx_runtime() -> None:
    """Have one libstdc++ serve every library: NumPy brought the system's, and a build may hold its own.

    With two of them, a process has one copy of some data (unique symbols, such as the numbers of a locale's
    parts) and two copies of the rest, and libllama dies at the first number that it prints. A library takes
    the names that are global before it is loaded.
    """
    if LINUX:
        with suppress(OSError):  # not loaded: then there is nothing to share
            ctypes.CDLL("libstdc++.so.6", mode=ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD)


def main() -> None:
    """Run as a process: see :class:`ggmlq.llama.bridge.Bridge`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the bridge, which ends us
    wake_when_orphaned()
    share_cxx_runtime()
    serve(*take_pipes())


if __name__ == "__main__":
    main()
