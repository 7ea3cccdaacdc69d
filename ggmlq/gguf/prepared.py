"""GGUF files that several processes write: header and full size first, tensors by workers, names at the end.

Each worker writes its own range of a temporary file that exists already. A worker that cannot open it is on a
machine that does not see this folder, and raises an error instead of making a file that nobody finds.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..base.unwinding import unwinding
from ..errors import GGUFNotFoundError, GGUFOSError
from . import target
from .atomic import Chunk, Staging
from .extents import Extent
from .header import aligned
from .source import checked_path
from .writer import _ALIGNMENT, _nbytes, _planned, refused


class Place(NamedTuple):
    """The place in a file for the bytes of a tensor, which other processes and machines write."""

    path: str  # of the temporary file
    size: int  # of the whole file
    offset: int
    host: str  # where the file was made

    def write(self, at: int, chunks: Iterator[Chunk]) -> None:
        """Write a part of the tensor, from byte ``at`` of the tensor on."""
        try:
            self._write(self.offset + at, chunks)
        except FileNotFoundError as error:
            raise GGUFNotFoundError(
                f"{self.path}: {socket.gethostname()} has no such file; {self.host} made it, and workers "
                "write their parts into it; all must see the folder of the new file under one path; or "
                "the work was given up meanwhile",
                error,
            ) from error
        except OSError as error:
            if isinstance(error, GGUFOSError):
                raise
            raise GGUFOSError(
                f"{self.path}: {socket.gethostname()} cannot write to it: {error.strerror or error}; check "
                "the space on the disk and the permissions of its folder",
                error,
            ) from error

    def _write(self, at: int, chunks: Iterator[Chunk]) -> None:
        fd = os.open(self.path, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
        try:
            size = os.fstat(fd).st_size
            if size != self.size:
                raise GGUFOSError(
                    f"{self.path}: it has {size} bytes here, {self.host} made it with {self.size}; the "
                    "file system shows machines different things; write to another one"
                )
            os.lseek(fd, at, os.SEEK_SET)
            for chunk in chunks:
                rest = memoryview(chunk.data if isinstance(chunk, Extent) else chunk)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            if socket.gethostname() != self.host:  # here whoever gives the file its name syncs all of it
                os.fsync(fd)
        finally:
            os.close(fd)


@contextmanager
def prepared(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    metadata: Any,
    *,
    byteorder: str = "little",
    split_max_tensors: Any = None,
) -> Iterator[tuple[list[str], dict[str, Place]]]:
    """A context with the future files and each tensor's place; without an error the files get their names."""
    final = checked_path("save(path, tensors)", path, "the path comes first; pass a str or an os.PathLike")
    request = f"save({final!r})"
    limits = None, split_max_tensors
    plans, _, laid = _planned(request, final, tensors, metadata, _ALIGNMENT, byteorder, limits)
    with refused(request), unwinding():
        target.check_room((part.path, _nbytes(part, laid)) for part in plans)
        with Staging([part.path for part in plans]) as staging:
            places: dict[str, Place] = {}
            for part in plans:
                head, size = b"".join(part.header), _nbytes(part, laid)
                temporary, at = os.path.abspath(staging.reserve(head, size)), len(head)
                for tensor in part.tensors:
                    places[tensor.name] = Place(temporary, size, at, socket.gethostname())
                    at += aligned(tensor.nbytes, laid.alignment)
            yield [part.path for part in plans], places
            staging.sync()
            staging.commit()
