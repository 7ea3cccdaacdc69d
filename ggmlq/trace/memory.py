"""The memory that both processes of a trace share: a flight recorder, and the arrays of one product.

It is a file that both map. Its first page is the flight recorder, which survives a crash of the library: each
node is written there before it is computed. Behind it the library's process writes the arrays of a product,
which the other process reads without a copy. Once both have the file open its name is removed, so that
nothing is left of it, whichever process dies.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.system import grow
from ..base.text import size
from ..errors import HostMemoryError

PAGE = 1 << 18  # of the recorder
ALIGNED = 64
PLACES = ("/dev/shm", None)  # memory where there is such a thing, else the folder for temporary files

Bytes = NDArray[np.uint8]


class SharedFile:
    """The shared file, mapped by both processes; only the library's side makes it grow."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, PAGE)
        self._data: mmap.mmap | None = None

    @classmethod
    def created(cls) -> tuple[SharedFile, str]:
        """Create a new shared file; returns it, and its path for the other process."""
        for place in PLACES:
            if place is None or os.access(place, os.W_OK):
                with suppress(OSError):
                    fd, path = tempfile.mkstemp(prefix="ggmlq-trace-", dir=place)
                    os.ftruncate(fd, PAGE)
                    return cls(fd), path
        raise HostMemoryError(
            f"a file of {size(PAGE)} for the trace could not be made, neither in {PLACES[0]} nor in "
            f"{tempfile.gettempdir()}; free some room there, or set TMPDIR"
        )

    @classmethod
    def opened(cls, path: str) -> SharedFile:
        """Open the shared file in the other process, and remove its path."""
        shared = cls(os.open(path, os.O_RDWR))
        with suppress(OSError):  # Windows keeps a file that is open
            Path(path).unlink()
        return shared

    # --- the page -------------------------------------------------------------------------

    def note(self, facts: dict[str, Any]) -> None:
        """Write facts that survive a crash."""
        raw = json.dumps(facts).encode()[: PAGE - 1]
        self._map[: len(raw) + 1] = raw + b"\0"

    def noted(self) -> dict[str, Any]:
        """The last record; empty where there is none, or only half of one."""
        raw = bytes(self._map[:]).split(b"\0")[0]
        try:
            record = json.loads(raw)
        except ValueError:
            return {}
        return record if isinstance(record, dict) else {}

    # --- the arrays -----------------------------------------------------------------------

    def room(self, lengths: list[int]) -> tuple[list[Bytes], list[list[int]]]:
        """Arrays of these lengths in bytes, to be filled, and the offset and length of each in the file."""
        at, places = PAGE, []
        for length in lengths:
            places.append([at, length])
            at += -(-length // ALIGNED) * ALIGNED
        if at > os.fstat(self._fd).st_size:
            self._grow(at)
        return self.look(places), places

    def look(self, places: list[list[int]]) -> list[Bytes]:
        """The arrays at these places, not copied; the library's next product overwrites them."""
        end = max((at + length for at, length in places), default=0)
        if self._data is None or end > len(self._data):
            # The earlier map is freed with the last array on it.
            self._data = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        return [np.frombuffer(self._data, np.uint8, length, at) for at, length in places]

    def _grow(self, length: int) -> None:
        """Let the file grow to half more than is needed, allocated now: missing room is a signal later."""
        length += (length - PAGE) // 2
        try:
            grow(self._fd, length)
        except OSError as error:
            raise HostMemoryError(
                f"the arrays of one product take {size(length)} of shared memory: {error.strerror}; free "
                "some (df /dev/shm), or trace fewer tokens"
            ) from error

    def close(self) -> None:
        """Close the file; arrays that are still in use stay valid."""
        with suppress(OSError):
            os.close(self._fd)
        with suppress(BufferError):
            self._map.close()
