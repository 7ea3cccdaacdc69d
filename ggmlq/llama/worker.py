"""The child process in which a user's library runs. It may crash, abort or hang there.

Requests come on stdin, answers leave on what was stdout. File descriptor 1 then means stderr, so
that a library that prints does not speak into the answers.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any

from ..errors import GGMLQError
from ..formats import FORMATS
from . import devices
from .files import locate
from .library import Library
from .product import Multiplier, Request
from .protocol import Arrays, receive, send

Answer = tuple[dict[str, Any], Arrays]


class Worker:
    """One method a request."""

    def __init__(self) -> None:
        self._library: Library | None = None
        self._multipliers: dict[str, Multiplier] = {}

    @property
    def library(self) -> Library:
        """The build, which the first request loads."""
        assert self._library is not None, "a request came before `load`"
        return self._library

    def load(self, message: dict[str, Any], arrays: Arrays) -> Answer:
        """The whole build, with its backends; what it is."""
        self._library = Library(locate(message["lib"]), whole=True)
        facts = {
            "path": str(self.library.path),
            "version": self.library.version,
            "types": sorted(self.library.types),
        }
        return facts, []

    def devices(self, message: dict[str, Any], arrays: Arrays) -> Answer:
        """What the backends of the build offer."""
        return {"devices": [h.device.facts() for h in devices.handles(self.library.symbols)]}, []

    def quantize(self, message: dict[str, Any], arrays: Arrays) -> Answer:
        """Rows of floats, perhaps an importance matrix, to bytes."""
        return {}, [self.library.quantize(arrays[0], FORMATS[message["format"]], *arrays[1:])]

    def dequantize(self, message: dict[str, Any], arrays: Arrays) -> Answer:
        """Bytes to floats."""
        return {}, [self.library.dequantize(arrays[0], FORMATS[message["format"]])]

    def mul_mat(self, message: dict[str, Any], arrays: Arrays) -> Answer:
        """Activations and weights to products, with their times."""
        handle = devices.find(self.library.symbols, message.pop("device"))
        name = handle.device.name
        if name not in self._multipliers:
            self._multipliers[name] = Multiplier(self.library, handle)
        request = Request(**{**message, "format": FORMATS[message["format"]]})
        y, seconds, buffer = self._multipliers[name].run(arrays[0], arrays[1], request)
        return {"seconds": seconds, "buffer": buffer}, [y]


def answer(method: Callable[[dict[str, Any], Arrays], Answer], message: Any, arrays: Arrays) -> Answer:
    """What the method says; an error becomes a message too."""
    try:
        return method(message, arrays)
    except GGMLQError as error:
        return {"error": type(error).__name__, "text": str(error)}, []
    except Exception:
        return {"error": "RuntimeError", "text": traceback.format_exc()}, []


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until the bridge closes its end."""
    worker = Worker()
    while True:
        try:
            message, arrays = receive(requests)
        except EOFError:
            return
        method = getattr(worker, message.pop("do"))
        send(answers, *answer(method, message, arrays))


def main() -> None:
    """Run as a process: see :class:`ggmlq.llama.bridge.Bridge`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the bridge, which ends us
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
