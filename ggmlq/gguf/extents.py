"""Ranges of files behind memory-mapped arrays, so that a save or a load lets the system move their bytes.

The system copies from file to file or into memory. Through the memory map, each page would first have to be
mapped, and that may cost as much as the copy itself. Bytes that the system cannot copy (another file system,
no Linux, a file that was replaced) are left, and the caller takes them from the map.
"""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .source import Map


class Extent(NamedTuple):
    """Bytes of a mapped file, and the same bytes in memory."""

    map: Map
    offset: int
    data: memoryview


class Files:
    """The files behind maps, opened once more for as long as something is copied from them."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._fds: dict[str, int | None] = {}

    def copy(self, extent: Extent, target: int) -> int:
        """Append an extent to a file as far as the system can copy it; the number of bytes copied."""
        fd = self._fd(extent.map) if hasattr(os, "copy_file_range") else None
        done = 0
        with contextlib.suppress(OSError):  # what is refused here, a full disk too, the write tries again
            while fd is not None and done < len(extent.data):
                n = os.copy_file_range(fd, target, len(extent.data) - done, extent.offset + done)
                if not n:
                    break
                done += n
        return done

    def read(self, source: Map, offset: int, target: NDArray[np.uint8]) -> int:
        """Fill memory from a file as far as the system can read it; the number of bytes. For any thread."""
        fd = self._fd(source) if hasattr(os, "preadv") else None
        done = 0
        with contextlib.suppress(OSError):
            while fd is not None and done < len(target):
                n = os.preadv(fd, [target[done:].data], offset + done)
                if not n:
                    break
                done += n
        return done

    def _fd(self, source: Map) -> int | None:
        key = f"{source.identity} {source.path}"
        if key not in self._fds:
            self._fds[key] = self._reopened(source)
        return self._fds[key]

    def _reopened(self, source: Map) -> int | None:
        """The file, if it still has its name."""
        try:
            fd = os.open(source.path, os.O_RDONLY)
        except OSError:
            return None
        self._stack.callback(os.close, fd)
        status = os.fstat(fd)
        return fd if (status.st_dev, status.st_ino) == source.identity else None

    def __enter__(self) -> Files:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
