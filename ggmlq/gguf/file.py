"""Opening a model: one file or all parts of a split one, as a mapping of names to QuantArrays."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from ..array import QuantArray
from ..errors import GGUFError
from . import header, split, tensors
from .header import Header
from .metadata import Metadata, missing
from .source import Source, checked_path
from .tensors import TensorInfo


class Part(NamedTuple):
    """One file of a model."""

    source: Source
    header: Header


def open(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file, or the whole split model that it is a part of.

    The file is memory-mapped and its header checked; no tensor is read, no value decoded.

    Parameters
    ----------
    path : str or os.PathLike
        A ``.gguf`` file; any part of a split model.

    Raises
    ------
    GGUFError
        Where the file breaks a rule of the format, with the offset and the reason.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> path = os.path.join(tempfile.mkdtemp(), "tiny.gguf")
    >>> _ = gq.save(path, {"w": np.eye(2, dtype=np.float32)}, {"general.name": "tiny"})
    >>> with gq.open(path) as f:
    ...     list(f), f["w"], f.metadata["general.name"]
    (['w'], <QuantArray f32 (2, 2), ne [2, 2], 16 bytes, cpu>, 'tiny')
    """
    first = _open_part(checked_path("open(path)", path))
    paths = split.paths_of_set(first.source.path, first.header)
    parts = [first if p == first.source.path else _open_part(p) for p in paths]
    if len(parts) > 1:
        split.check_set([part.source for part in parts], [part.header for part in parts])
    return GGUFFile(parts)


def _open_part(path: str) -> Part:
    source = Source(path)
    return Part(source, header.parse(source))


class GGUFFile(Mapping[str, QuantArray]):
    """An open model: names to QuantArrays that are views on the memory map.

    It may be used from several threads. Closing it, or leaving its ``with`` block, lets go of the
    map; arrays and metadata that are still held keep it alive.
    """

    def __init__(self, parts: list[Part]) -> None:
        self._parts: tuple[Part, ...] = tuple(parts)
        first = parts[0].header
        self.paths: tuple[str, ...] = tuple(part.source.path for part in parts)
        self.version = first.version
        self.byteorder = first.byteorder
        self.alignment = first.alignment
        self._places = {name: part for part in parts for name in part.header.tensors}
        self._arrays: dict[str, QuantArray] = {}
        # What describes a part is not metadata of the whole; a single file shows all it has.
        own = {k: v for k, v in first.metadata.items() if len(parts) == 1 or k not in split.KEYS}
        self._metadata: Metadata | None = Metadata(own)

    @property
    def path(self) -> str:
        """The file, or the first part."""
        return self.paths[0]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The files with their headers, as they are on the disk."""
        self._check_open()
        return self._parts

    @property
    def metadata(self) -> Metadata:
        """The model's metadata; of a split model that of the first part, without ``split.*``."""
        self._check_open()
        assert self._metadata is not None
        return self._metadata

    def __getitem__(self, name: str) -> QuantArray:
        found = self._arrays.get(name)
        if found is None:
            info = self.info(name)
            part = self._places[name]
            found = self._arrays.setdefault(name, tensors.view(part.source, info, part.header.data))
        return found

    def info(self, name: str) -> TensorInfo:
        """What the header says about a tensor."""
        self._check_open()
        part = self._places.get(name)
        if part is None:
            missing(f"{self!r}[{name!r}]", name, self._places)
        return part.header.tensors[name]

    def __iter__(self) -> Iterator[str]:
        self._check_open()
        return iter(self._places)

    def __len__(self) -> int:
        self._check_open()
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        self._check_open()
        return name in self._places

    # A model equals itself only: comparing the bytes of two is nothing to do in passing.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __enter__(self) -> GGUFFile:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; arrays and metadata taken from it stay good."""
        self._parts, self._places, self._arrays, self._metadata = (), {}, {}, None

    def _check_open(self) -> None:
        if self._metadata is None:
            raise GGUFError(f"gguf: {self.path}: is closed; arrays taken out before stay good; open it again")

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path,)

    def __repr__(self) -> str:
        if self._metadata is None:
            return f"<GGUF {self.path!r}, closed>"
        parts = f", {len(self._parts)} parts" if len(self._parts) > 1 else ""
        return f"<GGUF {self.path!r}, {len(self._places)} tensors, {len(self._metadata)} keys{parts}>"
