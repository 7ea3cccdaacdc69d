"""Parses the header of a remote file while only the file's beginning has been fetched.

The parser is the one for local files. It gets the length of the whole file and a map of its beginning. If it
reads beyond the map, it is stopped, more bytes are fetched, and it starts again. Its result counts only if
the whole header had been fetched.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import GGMLQError, RemoteError
from ..gguf.source import Source
from .held import Held

FIRST, FACTOR = 1 << 16, 4  # bytes fetched first, and how many times more each time,
STEP = 1 << 22  # but no more than these at once: behind a header lie tensors that nobody asked for
MOST = 1 << 28  # bytes of a header

Read = TypeVar("Read")


class _Short(Exception):
    """Bytes behind the beginning were wanted."""

    def __init__(self, upto: int) -> None:
        super().__init__(upto)
        self.upto = upto


def first(held: Held) -> bytes:
    """The first bytes of a file, which show its kind."""
    held.need(0, FIRST)
    return held.read(0, min(FIRST, held.size))


def header(held: Held, kind: type[Source], shown: str, parse: Callable[[Any], Read]) -> Read:
    """The result of ``parse`` on the beginning of the file, which is fetched as far as needed."""
    there = min(FIRST, held.size)
    while True:
        held.need(0, there)
        upto = 0
        try:
            result = parse(_prefix(kind, held, shown, there))
            if result.data <= there or there == held.size:  # type: ignore[attr-defined]
                return result
        except _Short as short:
            upto = short.upto
        except GGMLQError:
            raise
        except (struct.error, ValueError, IndexError):  # of a map that ends too early
            if there == held.size:
                raise
        if there >= MOST:
            raise RemoteError(
                f"{shown}: its header has more than {MOST} bytes, or says so; the file is damaged; fetch "
                "it, and look with `ggmlq validate`"
            )
        more = min(there * FACTOR, there + STEP)
        there = min(max(more, -(-upto // FIRST) * FIRST), max(more, MOST), held.size)


def _prefix(kind: type[Source], held: Held, shown: str, there: int) -> Source:
    """A source of the whole length whose map ends early."""

    class Prefix(kind):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(shown, held.map(there))
            self.size = held.size

        def need(self, at: int, n: int, what: str) -> None:
            super().need(at, n, what)
            if at + n > there:
                raise _Short(at + n)

    return Prefix()
