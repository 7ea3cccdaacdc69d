"""Opening a model of safetensors: a file, or several joined by an index or a folder, as a mapping."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..base import addressed
from ..base.progress import Progress
from ..base.text import html_table, short
from ..errors import SafetensorsError, SafetensorsKeyError, UnsupportedError
from ..gguf.metadata import LONGEST
from ..gguf.opened import Opened
from ..gguf.select import Filter, select
from ..gguf.source import checked_path
from . import header, jsons, place, scales
from .header import Entry, Header, Source
from .place import Place
from .scales import Quantization

PATH = (
    "a safetensors file is memory-mapped; pass a str or an os.PathLike, write bytes in memory to a file first"
)

Tensor = QuantArray | ScaledArray | NDArray[Any]


class Part(NamedTuple):
    """One file of a model."""

    source: Source
    header: Header


class State(NamedTuple):
    """The contents of an open file. A reader takes them once, so that another thread may close the file."""

    parts: tuple[Part, ...]
    places: Mapping[str, Part | None]  # None: its file is not there
    entries: Mapping[str, Entry]  # of the tensors whose file is there
    arrays: dict[str, Tensor]  # filled as they are asked for


def open(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Open safetensors: a file, the index of several, or the folder of a model.

    The files are memory-mapped and their headers checked; no tensor is read.

    Raises
    ------
    SafetensorsError
        Where a file breaks a rule of the format, with the offset and the reason.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> path = os.path.join(tempfile.mkdtemp(), "tiny.safetensors")
    >>> _ = gq.save(path, {"w": np.eye(2, dtype=np.float32)}, {"format": "pt"})
    >>> with gq.open(path) as f:
    ...     list(f), f["w"], f.metadata["format"]
    (['w'], <QuantArray f32 (2, 2), ne [2, 2], 16 bytes, cpu>, 'pt')
    """
    if (there := addressed.opened(path)) is not None:
        if isinstance(there, SafetensorsFile):
            return there
        raise SafetensorsError(f"{there.path}: this is a GGUF file; open it with gq.open")
    location = checked_path("open(path)", path, PATH)
    where = place.find(location)
    parts = []
    for file in where.files:
        source = Source(file)
        parts.append(Part(source, header.parse(source)))
    return SafetensorsFile(where, parts, os.path.abspath(location))


class SafetensorsFile(Opened[Tensor]):
    """An open model: names to arrays that are views on the memory map.

    Floats and signed integers are QuantArrays of their type. 8-bit floats are ScaledArrays with the scales
    that lie beside them, also int8 where scales do. What ggml has no type for (bool, unsigned integers,
    complex64, e8m0) is a read-only NumPy array. The tensors of the scales stay in the mapping.
    """

    def __init__(self, where: Place, parts: list[Part], absolute: str) -> None:
        self._folder = os.path.abspath(where.folder)  # the folder of the process may change
        self._paths = tuple(part.source.path for part in parts)
        self._absent_files = where.absent
        self._absolute = absolute
        places = _joined(where, parts)
        entries = {name: part.header.tensors[name] for name, part in places.items() if part}
        self._state: State | None = State(tuple(parts), places, entries, {})
        metadata: dict[str, str] = {}
        for part in reversed(parts):
            metadata |= part.header.metadata
        self._metadata: Mapping[str, str] = MappingProxyType(metadata)

    @property
    def folder(self) -> str:
        """The folder in which the files lie."""
        return self._folder

    @property
    def absent_files(self) -> tuple[str, ...]:
        """Files that the index names and that are not there."""
        return self._absent_files

    @property
    def metadata(self) -> Mapping[str, str]:
        """The texts that the files have under ``__metadata__``; the first file's where two differ."""
        return self._metadata

    @property
    def parts(self) -> tuple[Part, ...]:
        """The files with their headers."""
        return self._opened().parts

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json beside the files; empty where there is none."""
        path = os.path.join(self.folder, "config.json")
        return MappingProxyType(jsons.load_object(path) if os.path.exists(path) else {})

    @property
    def quantization(self) -> Quantization:
        """The settings for 8-bit weights in config.json: method, block of a scale, activation_scheme."""
        return scales.quantization(self.config)

    @property
    def missing(self) -> tuple[str, ...]:
        """Tensors that a partial download lacks; asking for one is an error."""
        state = self._opened()
        return tuple(
            name for name, part in state.places.items() if part is None or name in part.header.absent
        )

    def __getitem__(self, name: str) -> Tensor:
        state = self._opened()
        array = state.arrays.get(name)
        if array is None:
            array = state.arrays.setdefault(name, self._array(state, name))
        return array

    def _array(self, state: State, name: str) -> Tensor:
        entry = self.info(name)
        if scales.is_scaled(entry, state.entries):
            return scales.array(entry, state.entries, self.stored, self.quantization)
        kind = entry.type
        if kind.format is None:
            return self.stored(name)
        part = self._part(state, name)
        raw = self._bytes(part, entry)
        columns = entry.shape[-1] if entry.shape else 1
        return QuantArray(
            kind.format, entry.shape, raw.reshape(*entry.shape[:-1], kind.format.row_bytes(columns))
        )

    def stored(self, name: str) -> NDArray[Any]:
        """The elements of a tensor as the file has them: bfloat16 and 8-bit floats as their bits."""
        state = self._opened()
        entry, part = self.info(name), self._part(state, name)
        if entry.type.dtype is None:
            raise UnsupportedError(
                f"{self!r}[{short(name)}]: its type {entry.dtype} is one that NumPy, CuPy and ggml do not "
                "have; convert it where it was made, to F8_E4M3 or BF16"
            )
        return self._bytes(part, entry).view(entry.type.dtype).reshape(entry.shape)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor, whatever its type."""
        state = self._opened()
        return self._bytes(self._part(state, name), self.info(name))

    def info(self, name: str) -> Entry:
        """The facts about a tensor in the header."""
        state = self._opened()
        self._part(state, name)
        return state.entries[name]

    def _bytes(self, part: Part, entry: Entry) -> NDArray[np.uint8]:
        if entry.name in part.header.absent:
            raise SafetensorsError(
                f"{self!r}[{short(entry.name)}]: {part.source.path} ends before it: it needs bytes "
                f"{part.header.data + entry.begin} to {part.header.data + entry.end}, the file has "
                f"{part.source.size}; the download was cut off; fetch the file again"
            )
        return part.source.stored(entry.name, part.header.data + entry.begin, entry.nbytes)

    def _part(self, state: State, name: str) -> Part:
        if name not in state.places:
            self._missing(name, SafetensorsKeyError)
        part = state.places[name]
        if part is None:
            raise SafetensorsError(
                f"{self!r}[{short(name)}]: the index says that it lies in one of the files that are not "
                f"there, {', '.join(map(os.path.basename, self.absent_files[:3]))}; fetch them"
            )
        return part

    def to(
        self, device: Any, filter: Filter = None, progress: bool | None = None, *, axis: Any = 0
    ) -> Mapping[str, Any]:
        """All tensors, or those that a pattern or a function of the name takes, on a device or on several.

        ``"cpu"`` gives them as they are, without a copy. Each is copied for itself; NumPy arrays of types
        that ggml lacks are left out of ``filter=None`` on a GPU. A list of devices gets parts, see
        :meth:`ggmlq.gguf.GGUFFile.to`; the tensors of scales are copied to each.
        """
        chosen = {name: self[name] for name in select(f"{self!r}.to({device!r})", self, filter)}
        if isinstance(device, list | tuple):
            return self._to_several(chosen, device, axis, progress)
        if device == "cpu":
            return MappingProxyType(chosen)
        bar = Progress(sum(x.nbytes for x in chosen.values()), f"to {device}", show=progress)
        copies: dict[str, Any] = {}
        try:
            for name, x in chosen.items():
                if not isinstance(x, np.ndarray):
                    copies[name] = x.to(device)
                bar.advance(x.nbytes)
        finally:
            bar.close()
        return MappingProxyType(copies)

    def _opened(self) -> State:
        state = self._state
        if state is None:
            raise SafetensorsError(
                f"{self.path}: is closed; arrays taken out before stay good; open it again"
            )
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self._absolute,)

    def _tensors(self) -> list[dict[str, Any]]:
        lacks = {*self.missing}
        infos = [self.info(name) for name in self if name not in lacks]
        return [{"name": i.name, "type": i.dtype, "shape": i.shape, "bytes": i.nbytes} for i in infos]

    def _metadata_html(self) -> str:
        rows = [[key, short(value, LONGEST)] for key, value in self.metadata.items()]
        return html_table(("key", "value"), rows, "metadata") if rows else ""

    def __repr__(self) -> str:
        state = self._state
        if state is None:
            return f"<safetensors {self.path!r}, closed>"
        parts = f", {len(state.parts)} files" if len(state.parts) > 1 else ""
        lacks = f", {len(self.missing)} of them missing" if self.missing else ""
        return f"<safetensors {self.path!r}, {len(state.places)} tensors{lacks}{parts}>"


def _joined(where: Place, parts: list[Part]) -> dict[str, Part | None]:
    """The file of each tensor."""
    places: dict[str, Part | None] = {}
    for part in parts:
        for name in part.header.tensors:
            if where.weights is None and name in places:
                raise SafetensorsError(
                    f"{part.source.path}: the tensor {short(name)} is in another file of this folder too; "
                    "names differ within a model; name the file that is meant"
                )
            if where.weights is None or where.weights.get(name) == part.source.path:
                places[name] = part
    for name, path in (where.weights or {}).items():
        if name not in places:
            if path not in where.absent:
                raise SafetensorsError(
                    f"{path}: it lacks the tensor {short(name)}, which the index says is there; index and "
                    "files are of different models, or damaged; fetch them again"
                )
            places[name] = None
    return places
