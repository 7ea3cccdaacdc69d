"""Arrays that lie in the map of a file, as ranges of that file, so that the system copies file to file.

Written from the memory map, each page would first have to be mapped: that costs as much as the
copy itself. Where the range cannot be copied (another file system, no Linux) the map is written.
"""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import NamedTuple

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
        """Append to a file what the system is able to copy; how many bytes that were."""
        fd = self._fd(extent.map)
        done = 0
        with contextlib.suppress(OSError):  # what is refused here, a full disk too, the write tries again
            while fd is not None and done < len(extent.data):
                n = os.copy_file_range(fd, target, len(extent.data) - done, extent.offset + done)
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
        """The file, if it still has its name and the system copies ranges."""
        if not hasattr(os, "copy_file_range"):
            return None
        try:
            fd = os.open(source.path, os.O_RDONLY)
        except OSError:
            return None
        self._stack.callback(os.close, fd)
        found = os.fstat(fd)
        return fd if (found.st_dev, found.st_ino) == source.identity else None

    def __enter__(self) -> Files:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
