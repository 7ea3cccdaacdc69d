"""Tensors of an open file as ranges of that file, so that the system copies them file to file.

Written from the memory map, each page would first have to be mapped: that costs as much as the
copy itself. Where the range cannot be copied (another file system, no Linux) the map is written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .file import GGUFFile, Part
from .inputs import SLAB_BYTES


class Extent(NamedTuple):
    """Bytes of a file, and the same bytes in memory."""

    fd: int
    offset: int
    data: memoryview

    def copy_to(self, fd: int) -> int:
        """Append to a file what the system is able to copy; how many bytes that were."""
        done = 0
        with contextlib.suppress(OSError):  # what is refused here, a full disk too, the write tries again
            while done < len(self.data):
                n = os.copy_file_range(self.fd, fd, len(self.data) - done, self.offset + done)
                if not n:
                    break
                done += n
        return done


class Extents:
    """Opens the files of a model once more, for as long as it is saved."""

    def __init__(self, arrays: Mapping[str, Any], byteorder: str) -> None:
        self._stack = contextlib.ExitStack()
        self._places: dict[str, tuple[Part, int]] = {}
        if isinstance(arrays, GGUFFile) and arrays.byteorder == byteorder and hasattr(os, "copy_file_range"):
            for part in arrays.parts:
                fd = self._reopened(part)
                if fd is not None:
                    self._places |= dict.fromkeys(part.header.tensors, (part, fd))

    def _reopened(self, part: Part) -> int | None:
        """The file behind the map, if it still has its name."""
        try:
            fd = os.open(part.source.path, os.O_RDONLY)
        except OSError:
            return None
        self._stack.callback(os.close, fd)
        found = os.fstat(fd)
        return fd if (found.st_dev, found.st_ino) == part.source.identity else None

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def of(self, name: str) -> Iterator[Extent]:
        """The slabs of a tensor."""
        part, fd = self._places[name]
        info = part.header.tensors[name]
        start, end = part.header.data + info.offset, part.header.data + info.offset + info.nbytes
        data = memoryview(part.source.map)
        for at in range(start, end, SLAB_BYTES):
            yield Extent(fd, at, data[at : min(at + SLAB_BYTES, end)])

    def __enter__(self) -> Extents:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
