"""``Layouts``: a model's matrices in the order that its kernels read, from the user's disk and to it.

Making them takes about half a second for a gigabyte on two cores, mapping what an earlier process has made
some milliseconds (``store/layouts.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache, cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..gguf import GGUFFile
from ..store import layouts, reach

LEAST = 32 << 20  # bytes of new copies that are worth a file
MAKER = "ggmlq.cpu.panels.make.placer"  # the kernel that lays blocks into panels


class Layouts:
    """The panels of matrices, for a model of a file."""

    def __init__(self, file: GGUFFile) -> None:
        maps = [part.source.map for part in file.parts]
        self._paths = [one.path for one in maps]
        self._name = None
        if not any(one.grows for one in maps) and all(part.source.is_current() for part in file.parts):
            self._name = layouts.state_of(self._paths)
        self._matrices: dict[str, QuantArray] = {}

    @cached_property
    def _there(self) -> dict[str, NDArray[np.uint8]]:
        return {} if self._name is None else layouts.opened(self._name)

    def lend(self, names: Sequence[str], q: QuantArray) -> QuantArray:
        """A matrix, or several over each other, with the panels that are there of it."""
        make = _multiply()
        if self._name is not None and (shape := make.panels_shape(q)) is not None:
            key = f"{'+'.join(names)} {q.format.name} {_version(q.format.name)}"
            self._matrices[key] = q
            panels = self._there.get(key)
            if panels is not None and panels.shape == shape:
                q.take_prepared(make.panels, panels)
        return q

    def part(self, q: QuantArray, stack: QuantArray, rows: slice) -> QuantArray:
        """A matrix with its panels among those of several over each other, of which it is these rows."""
        make = _multiply()
        panels, first = stack.prepared_copy(make.panels), rows.start // make.ROWS
        if panels is not None and rows.start % make.ROWS == len(q) % make.ROWS == 0:
            q.take_prepared(make.panels, panels[first : first + len(q) // make.ROWS])
        return q

    def keep(self) -> None:
        """Write panels to the disk, if enough of them are not there."""
        make, arrays, new = _multiply().panels, {}, 0
        for key, q in self._matrices.items():
            if (panels := q.prepared_copy(make)) is not None:
                arrays[key] = panels
                new += panels.nbytes * (panels is not self._there.get(key))
        if self._name is not None and new >= LEAST:
            layouts.keep(self._name, self._paths, arrays)


@cache
def _version(format: str) -> str:
    """A digest of the code that lays out blocks of a format."""
    return f"{reach.digest(MAKER, (format,))} {sys.byteorder}"


def _multiply() -> Any:
    return import_module("ggmlq.cpu.panels.multiply")
