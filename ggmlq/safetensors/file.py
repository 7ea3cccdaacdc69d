"""Opening a model of safetensors: a file, or several joined by an index or a folder, as a mapping."""

from __future__ import annotations

import os
import re
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
from ..errors import SafetensorsError, SafetensorsKeyError, SafetensorsOSError, UnsupportedError
from ..gguf.metadata import LONGEST
from ..gguf.opened import Filter, Opened, select
from ..gguf.source import checked_path
from . import header, scales
from .header import Entry, Header, Source
from .scales import Quantization

# --- the files of a model: one, an index and the files that it names, or a folder ------------
# An index maps tensors to names of files, and may be hostile: only files beside it, or below it, are
# opened.

INDEX = ".safetensors.index.json"
ENDING = ".safetensors"
OLD = (".bin", ".pt", ".pth", ".ckpt")
MOST_FILES = 10_000
SHOWN = 3


class Place(NamedTuple):
    """The files of a model, and their index."""

    folder: str
    files: tuple[str, ...]  # paths, in order
    weights: Mapping[str, str] | None  # tensor -> path, where there is an index
    absent: tuple[str, ...]  # files that the index names and that are not there


def find(path: str) -> Place:
    """The files behind a path; SafetensorsError where there are none, or more than one model."""
    if os.path.isdir(path):
        return _folder(path)
    if path.endswith(".json"):
        return _indexed(path)
    return Place(os.path.dirname(path) or ".", (path,), None, ())


def in_folder(path: str) -> bool:
    """True for a folder with a model of this kind, or with an old one, whose error names the way out."""
    try:
        return any(name.endswith((ENDING, INDEX, *OLD)) for name in os.listdir(path))
    except OSError:
        return False


def _folder(path: str) -> Place:
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise SafetensorsError(
            f"{path}: cannot be listed: {error.strerror}; check its permissions"
        ) from error
    indexes = [name for name in names if name.endswith(INDEX)]
    if "model" + INDEX in indexes:
        indexes = ["model" + INDEX]
    if len(indexes) > 1:
        raise SafetensorsError(
            f"{path}: it has {len(indexes)} indexes, {_listed(indexes)}; a model has one; name the one that "
            "is meant"
        )
    if indexes:
        return _indexed(os.path.join(path, indexes[0]))
    files = [name for name in names if name.endswith(ENDING)]
    parts = [name for name in files if re.fullmatch(r".*-\d+-of-\d+\.safetensors", name)]
    files = next(
        ([name] for name in ("model" + ENDING, "consolidated" + ENDING) if name in files), parts or files
    )
    if not files:
        raise SafetensorsOSError(f"{path}: is {_other(names)}")
    if len(files) > 1 and not parts:
        raise SafetensorsError(
            f"{path}: it has {len(files)} safetensors files, {_listed(files)}, and no index that joins them; "
            "name the one that is meant"
        )
    return Place(path, tuple(os.path.join(path, name) for name in files), None, ())


def _other(names: list[str]) -> str:
    """The contents of a folder without safetensors, and the way out, in words."""
    models = [name for name in names if name.endswith(".gguf")]
    if models:
        return (
            f"a folder with GGUF files and no safetensors; name the file that is meant, such as {models[0]}"
        )
    old = [name for name in names if name.endswith(OLD)]
    if old:
        return (
            f"a folder without safetensors; it has {_listed(old)}, checkpoints of PyTorch, which run code "
            "when they are read; save them as safetensors (safetensors.torch.save_file)"
        )
    return "a folder without safetensors and GGUF files; name the folder of the model"


def _indexed(path: str) -> Place:
    weights = names_in(path, header.load_object(path))
    folder = os.path.dirname(path) or "."
    names = dict.fromkeys(weights.values())
    files = {name: os.path.join(folder, name) for name in names}
    absent = tuple(file for file in files.values() if not os.path.exists(file))
    there = tuple(sorted(file for file in files.values() if file not in absent))
    if not there:
        raise SafetensorsError(
            f"{path}: of the {len(files)} files that it names, {_listed(list(files))}, none is there; fetch "
            "them into its folder"
        )
    return Place(folder, there, {tensor: files[name] for tensor, name in weights.items()}, absent)


def names_in(path: str, index: Mapping[str, Any]) -> dict[str, str]:
    """The file of each tensor, from the index at this path: names of files beside it or below."""
    weights = index.get("weight_map")
    if not isinstance(weights, dict):
        raise SafetensorsError(
            f"{path}: it has no weight_map, which says which file has which tensor; this is no index of "
            "safetensors, or a damaged one"
        )
    names = {name for name in weights.values() if _is_inside(path, name)}
    if len(names) > MOST_FILES:
        raise SafetensorsError(f"{path}: it names {len(names)} files, {MOST_FILES} are opened; it is damaged")
    return weights


def _is_inside(path: str, name: object) -> bool:
    parts = re.split(r"[/\\]", name) if isinstance(name, str) else []
    good = isinstance(name, str) and name.isprintable() and name.endswith(ENDING) and len(name) < 1024
    if not good or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
        raise SafetensorsError(
            f"{path}: it names the file {short(name)}; files of a model lie beside its index, and end in "
            f"{ENDING}; the index is damaged, or made to reach other files"
        )
    return True


def _listed(names: list[str]) -> str:
    return ", ".join(map(short, names[:SHOWN])) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )


# --- the mapping -----------------------------------------------------------------------------

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
    where = find(location)
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
        return MappingProxyType(header.load_object(path) if os.path.exists(path) else {})

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
        copies: dict[str, Any] = {}
        with Progress(sum(x.nbytes for x in chosen.values()), f"to {device}", show=progress) as bar:
            for name, x in chosen.items():
                if not isinstance(x, np.ndarray):
                    copies[name] = x.to(device)
                bar.advance(x.nbytes)
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
