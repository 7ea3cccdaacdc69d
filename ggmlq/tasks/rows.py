"""``Rows``: a tensor of an open file for a worker of a task: a path, a range of bytes, and their type.

Workers need not read the header of a file, which for a model of many parts would take longer than the work.
So that no worker reads another file under the same name, size and time of change come along and are compared;
for a file that is still fetched, the inode instead: its time changes, and a new file would have other holes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..errors import GGUFError, GGUFOSError, UnsupportedError
from ..formats import FORMATS
from ..gguf.source import Source, place

ELEMENTS = 1 << 23  # of a slice: seconds of work, and what a worker may have done in vain


@dataclass(frozen=True)
class Stretch:
    """A range of bytes of a file, with facts that tell this file from another one of that name."""

    path: str
    size: int  # of the file
    version: int  # ns, of its last change; its inode where more of it is fetched
    grows: bool
    offset: int
    nbytes: int

    def data(self) -> NDArray[np.uint8]:
        """The bytes, from the file as this process sees it."""
        try:
            source = Source(self.path)
        except OSError as error:
            raise GGUFOSError(
                f"{self.path}: {socket.gethostname()} cannot open it, and the process that asks can: "
                f"{error}; all workers must see the files of a model under the same paths",
                error,
            ) from error
        version = source.map.identity[1] if self.grows else source.map.changed
        if (source.size, version) != (self.size, self.version):
            kind = "inode" if self.grows else "time of change"
            raise GGUFError(
                f"{self.path}: it has {source.size} bytes here and {kind} {version}; the process that asks "
                f"sees {self.size} and {self.version}; all workers must see one file that stays as it is; do "
                "it again when nobody writes to it or removes it"
            )
        return source.data[self.offset : self.offset + self.nbytes]


@dataclass(frozen=True)
class Rows:
    """A tensor of an open file: blocks, or codes with their scales."""

    stretch: Stretch
    kind: str  # of the blocks or codes
    shape: tuple[int, ...]
    swapped: bool = False
    beside: tuple[Any, ...] | None = None  # tile, scales and zeros of codes: small, so they come along
    scale: Any = None  # the companion scale of blocks

    def array(self) -> QuantArray | ScaledArray:
        """The tensor as a view on the file."""
        raw = self.stretch.data()
        if self.beside is not None:
            tile, scales, zeros = self.beside
            return ScaledArray(raw.view(np.uint8).reshape(self.shape), scales, self.kind, tile, zeros)
        fmt = FORMATS[self.kind]
        row = fmt.row_bytes(self.shape[-1] if self.shape else 1)
        return QuantArray(fmt, self.shape, raw.reshape(*self.shape[:-1], row), self.swapped, self.scale)


def rows_of(x: QuantArray | ScaledArray) -> Rows:
    """The ``Rows`` of a tensor of an open file."""
    if isinstance(x, QuantArray):
        blocks = x.blocks
        swapped = blocks.dtype != x.format.dtype
        scale = None if x.scale is None else np.asarray(x.scale)
        return Rows(_stretch(x, blocks), x.format.name, x.shape, swapped, scale=scale)
    return Rows(_stretch(x, x.codes), x.code.name, x.shape, False, (x.tile, x.scales, x.zeros))


def _stretch(x: object, array: NDArray[Any]) -> Stretch:
    location = place(array)
    if location is None:
        raise UnsupportedError(
            f"{x!r} lies in memory; work is given to others by path and bytes; save it with gq.save first"
        )
    path, grows = location[0].path, location[0].grows
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        raise GGUFOSError(f"{path}: it was removed since it was opened; open it again", error) from error
    if (status.st_dev, status.st_ino) != location[0].identity:
        raise GGUFError(
            f"{path}: it was replaced since it was opened, and workers would see the new one; open it again"
        )
    version = status.st_ino if grows else status.st_mtime_ns
    return Stretch(path, status.st_size, version, grows, location[1], array.nbytes)


def slices(shape: tuple[int, ...], unit: int = 1) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of about ELEMENTS elements, in multiples of ``unit``, over all leading axes."""
    rows, columns = prod(shape[:-1]), shape[-1] if shape else 1
    if not rows * columns:
        return
    step = max(1, ELEMENTS // (columns * unit)) * unit
    for start in range(0, rows, step):
        yield start, min(start + step, rows)
