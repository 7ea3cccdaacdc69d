"""``Held``: the local copy of a remote file, of the same size but with holes, into which pieces are fetched.

Its files are opened once and mapped through these descriptors. So nothing changes for an open model if the
cache is emptied, or if new files are made there.

Beside the data lies a table with a checksum for each piece. A piece counts as fetched only if its bytes still
have the checksum in the table. So if the machine went down before the data was on its disk, or a process was
killed between the two writes, the piece is fetched again and not read as zeros. Processes may share the
files: all of them fetch the same bytes for a piece.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from ..base.progress import Progress
from ..base.system import read_at, write_at
from ..base.text import size as sized
from ..errors import GGMLQError, RemoteError
from ..gguf.source import Map, Source, map_of
from ..store.private import Folder

# --- the header, parsed while only the beginning of the file is there ------------------------
# The parser is the one for local files. It gets the length of the whole file and a map of its beginning. If
# it reads beyond the map, it is stopped, more bytes are fetched, and it starts again. Its result counts
# only if the whole header had been fetched.

FIRST, FACTOR = 1 << 16, 4  # bytes fetched first, and how many times more each time,
STEP = 1 << 22  # but no more than these at once: behind a header lie tensors that nobody asked for
MOST = 1 << 28  # bytes of a header

Read = TypeVar("Read")


class _Short(Exception):
    """Bytes behind the beginning were wanted."""

    def __init__(self, upto: int) -> None:
        super().__init__(upto)
        self.upto = upto


def first_bytes(held: Held) -> bytes:
    """The first bytes of a file, which show its kind."""
    held.need(0, FIRST)
    return held.read(0, min(FIRST, held.size))


def read_header(held: Held, kind: type[Source], shown: str, parse: Callable[[Any], Read]) -> Read:
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


# --- Held: the local copy --------------------------------------------------------------------

DATA, TABLE = "data", "table"  # names of the two
PIECE = 1 << 16  # bytes with one checksum; fetched whole
RUN = 1024  # pieces that one request fetches, at most


class Origin(Protocol):
    """The remote file that pieces are read from."""

    size: int | None

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from ``start`` to ``stop``, in parts."""


class Held:
    """The open copy of a remote file: data and table. ``shown``: the name of the file in messages."""

    def __init__(self, folder: Folder, size: int, origin: Origin, shown: str) -> None:
        self.path, self.size, self._origin, self._shown = str(folder.path / DATA), size, origin, shown
        self.pieces = -(-size // PIECE)
        self._seen = np.zeros(self.pieces, bool)  # checked by this process, or fetched by it
        self._lock = threading.Lock()
        self._data = self._opened(folder, DATA, size)
        try:
            self._table = self._opened(folder, TABLE, 4 * self.pieces)
        except BaseException:
            os.close(self._data)
            raise
        self._closing = weakref.finalize(self, _close, self._data, self._table)

    def _opened(self, folder: Folder, name: str, size: int) -> int:
        try:
            return folder.sized(name, size)
        except FileNotFoundError:  # the folder was removed since it was opened
            raise
        except OSError as error:
            self._refuse(error)

    def is_in(self, folder: Folder) -> bool:
        """True where the names in the folder lead to the files that are open here."""
        with contextlib.suppress(FileNotFoundError):
            return all(
                os.path.samestat(folder.facts(name), os.fstat(file))
                for name, file in ((DATA, self._data), (TABLE, self._table))
            )
        return False

    def map(self, length: int = 0) -> Map:
        """A map of all data, or of its first ``length`` bytes, holes included."""
        return map_of(self._data, self.path, length)

    def read(self, at: int, n: int) -> bytes:
        """``n`` bytes of the copy, holes included; nothing is fetched."""
        return self._read(self._data, at, n)

    def put_first(self, data: bytes) -> bool:
        """Store the first piece; False if a different one is stored already: the remote file has changed."""
        piece = data[: min(PIECE, self.size)]
        with self._lock:
            self._check(0, 1)
            if self._seen[0]:
                return self._read(self._data, 0, len(piece)) == piece
            self._keep(0, piece)
        return True

    def whole(self) -> bytes:
        """All bytes of the file, fetched where necessary."""
        self.need(0, self.size)
        return self.read(0, self.size)

    def need(self, start: int, stop: int, show: bool | None = None) -> None:
        """Fetch the bytes from ``start`` to ``stop`` that are not there yet."""
        first, last = start // PIECE, -(-min(stop, self.size) // PIECE)
        with self._lock:
            if first >= last or self._seen[first:last].all():
                return
            self._check(first, last)
            holes = list(self._holes(first, last))
            with Progress(sum(b - a for a, b in holes) * PIECE, f"fetching {self._shown}", show=show) as bar:
                for a, b in holes:
                    self._fetch(a, b, bar.advance)

    def _check(self, first: int, last: int) -> None:
        """Mark the pieces as seen that still have their checksum, among those not looked at yet."""
        table = np.frombuffer(self._read(self._table, 4 * first, 4 * (last - first)), "<u4")
        for i in (np.flatnonzero((table != 0) & ~self._seen[first:last]) + first).tolist():
            at = i * PIECE
            data = self._read(self._data, at, min(PIECE, self.size - at))
            self._seen[i] = _sum(data) == table[i - first]

    def _holes(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        missing = (np.flatnonzero(~self._seen[first:last]) + first).tolist()
        while missing:
            count = 1
            while count < min(len(missing), RUN) and missing[count] == missing[0] + count:
                count += 1
            yield missing[0], missing[0] + count
            del missing[:count]

    def _fetch(self, first: int, last: int, advance: Callable[[int], None]) -> None:
        """Fetch a run of pieces; each counts as there as soon as it is whole."""
        at, stop = first * PIECE, min(last * PIECE, self.size)
        left = bytearray()
        for part in self._origin.read(at, stop):
            if self._origin.size != self.size:
                raise RemoteError(
                    f"{self._shown}: it has {self._origin.size} bytes and had {self.size}; the file "
                    "changed; open it again"
                )
            left += part
            while len(left) >= PIECE or (left and at + len(left) == stop):
                self._keep(at, bytes(left[:PIECE]))
                at += min(PIECE, len(left))
                del left[:PIECE]
            advance(len(part))
        if at != stop:
            raise RemoteError(f"{self._shown}: of bytes up to {stop} there came {at}; open it again")

    def _keep(self, at: int, data: bytes) -> None:
        try:
            _write(self._data, at, data)
            _write(self._table, at // PIECE * 4, int(_sum(data)).to_bytes(4, "little"))
        except OSError as error:
            self._refuse(error)
        self._seen[at // PIECE] = True

    def _read(self, fd: int, at: int, n: int) -> bytes:
        try:
            return read_at(fd, n, at)
        except OSError as error:
            self._refuse(error)

    def _refuse(self, error: OSError) -> NoReturn:
        raise RemoteError(
            f"{self._shown}: {self.path}, where what is fetched is kept ({sized(self.size)} when all is "
            f"there): {error.strerror or error}; make room with `ggmlq cache --empty`, or put the cache "
            "elsewhere with GGMLQ_CACHE_DIR"
        ) from error

    def close(self) -> None:
        """Close both files; maps of them stay valid."""
        with self._lock:
            self._closing()


def _close(*files: int) -> None:
    for fd in files:
        os.close(fd)


def _sum(data: bytes) -> int:
    """The checksum of a piece; never 0, which stands for a hole."""
    return zlib.crc32(data) or 1


def _write(fd: int, at: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        n = write_at(fd, rest, at)
        rest, at = rest[n:], at + n
