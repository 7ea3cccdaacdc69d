"""Opening a file elsewhere: what it is, its header, and tensors that are fetched when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.addressed import opener
from ..base.progress import Progress
from ..errors import GGMLQError, RemoteError, RemoteNotFoundError, SafetensorsError
from ..gguf import header as gguf_header
from ..gguf import split
from ..gguf.file import GGUFFile
from ..gguf.file import Part as GGUFPart
from ..gguf.source import Source
from ..safetensors import header as safetensors_header
from ..safetensors import jsons
from ..safetensors.file import Part, SafetensorsFile
from ..safetensors.place import ENDING, INDEX, Place, names_in
from . import prefix, shelf
from .address import Address, is_address, parse
from .held import Held
from .others import Others
from .prefix import FIRST
from .ranges import Ranges

Helds = dict[str, Held]  # by what their sources are called


def open(text: str) -> GGUFFile | SafetensorsFile:
    """Open a GGUF or safetensors file, all parts of a split model, or an index and its files, by address.

    The header is fetched, and a tensor when it is asked for.
    """
    asked = parse(text)
    held = _held(asked)
    head = prefix.first(held)
    name = os.path.basename(asked.path)
    if head[:4] != b"GGUF":
        if name.endswith(INDEX):
            return _of_index(asked, held)
        if name.endswith(ENDING) or head[5:9] == b"\0\0\0{":
            part, helds = _safetensors(asked, held)
            return RemoteSafetensors(Place(".", (asked.shown,), None, ()), [part], asked, helds)
    return _gguf(asked, held)


def _held(asked: Address) -> Held:
    """The file with holes; what told its length is in it."""
    if not asked.url.lower().startswith(("http://", "https://")):
        other = Others(asked)
        if not other.size:
            raise RemoteError(f"{asked.shown}: it is empty; check the address")
        return shelf.hold(asked.url, asked.shown, other, other.version)
    origin = Ranges(asked)
    first = b"".join(origin.read(0, FIRST))
    held = shelf.hold(asked.url, asked.shown, origin, origin.version)
    if not held.put_first(first):  # another file under the version that is kept: the server does not tell
        held.close()
        shelf.forget(asked.url, origin)
        held = shelf.hold(asked.url, asked.shown, origin, origin.version)
        held.put_first(first)
    return held


@opener
def _opened(path: str) -> GGUFFile | SafetensorsFile | None:
    """Open the file at an address, for readers of local files."""
    return open(path) if is_address(path) else None


class Fetched:
    """An open model whose files have holes. Closed and pickled alike, whatever it is."""

    _helds: Helds
    _asked: Address

    def close(self) -> None:
        super().close()  # type: ignore[misc]
        for held in self._helds.values():
            held.close()

    def __reduce__(self) -> tuple[Any, ...]:
        asked = self._asked
        return open, (asked.shown if asked.shown.startswith("hf://") else asked.url,)


# --- GGUF -----------------------------------------------------------------------------------


class RemoteGGUF(Fetched, GGUFFile):
    """An open model elsewhere. Arrays are views on a map of what was fetched; asking for one fetches it."""

    def __init__(self, parts: list[GGUFPart], asked: Address, helds: Helds) -> None:
        super().__init__(parts)
        self._helds, self._asked = helds, asked

    def __getitem__(self, name: str) -> QuantArray:
        part, info = self._place(self._opened(), name)
        if name not in part.header.absent and info.nbytes:
            begin = part.header.data + info.offset
            self._helds[part.source.path].need(begin, begin + info.nbytes)
        return super().__getitem__(name)


def _gguf(asked: Address, held: Held) -> RemoteGGUF:
    said = split.parse_name(os.path.basename(asked.path))
    total = said.total if said is not None else 1
    parts: list[GGUFPart] = []
    helds: Helds = {}
    for number in range(1, total + 1):
        here = said is None or total == 1 or number == said.part
        at = asked if here or said is None else asked.beside(split.part_name(said.stem, number, total))
        mine = held if here else _held(at)
        first = parts[0].header.alignment if parts else None
        prefix.header(mine, Source, at.shown, partial(gguf_header.parse, first=first))
        source = _source(Source, mine, at.shown)
        parts.append(GGUFPart(source, gguf_header.parse(source, first)))
        helds[at.shown] = mine
    if total == 1:
        split.check_whole(*parts[0])
    else:
        split.check_set([part.source for part in parts], [part.header for part in parts])
    return RemoteGGUF(parts, asked, helds)


def _source(kind: type[Source], held: Held, shown: str) -> Any:
    """The file with holes as readers map files, under the name that it has elsewhere."""
    found = kind(shown, held.map())
    found.map.grows = True
    return found


# --- safetensors ----------------------------------------------------------------------------


class RemoteSafetensors(Fetched, SafetensorsFile):
    """A safetensors model elsewhere; its files stay open for further pieces."""

    def __init__(self, where: Place, parts: list[Part], asked: Address, helds: Helds) -> None:
        super().__init__(where, parts, asked.shown)
        self._helds, self._asked = helds, asked

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json beside the file; empty where there is none."""
        beside = self._asked.beside("config.json")
        try:
            return MappingProxyType(_json(beside, _held(beside)))
        except RemoteNotFoundError:
            return MappingProxyType({})

    def _bytes(self, part: Part, entry: safetensors_header.Entry) -> NDArray[np.uint8]:
        if entry.name not in part.header.absent and entry.nbytes:
            begin = part.header.data + entry.begin
            self._helds[part.source.path].need(begin, begin + entry.nbytes)
        return super()._bytes(part, entry)


def _safetensors(asked: Address, held: Held) -> tuple[Part, Helds]:
    kind = safetensors_header.Source
    prefix.header(held, kind, asked.shown, safetensors_header.parse)
    source = _source(kind, held, asked.shown)
    return Part(source, safetensors_header.parse(source)), {asked.shown: held}


def _of_index(asked: Address, held: Held) -> RemoteSafetensors:
    """All files that an index names: each header is fetched."""
    names = names_in(asked.shown, _json(asked, held))
    files = {name: asked.beside(name) for name in dict.fromkeys(names.values())}
    parts: list[Part] = []
    helds: Helds = {}
    absent = []
    bar = Progress(len(files), "opening files", "files")
    try:
        for at in files.values():
            try:
                part, mine = _safetensors(at, _held(at))
                parts, helds = [*parts, part], helds | mine
            except RemoteNotFoundError:
                absent.append(at.shown)
            bar.advance(1)
    finally:
        bar.close()
    if not parts:
        raise RemoteNotFoundError(
            f"{asked.shown}: of the {len(files)} files that it names none is there; check the address"
        )
    weights = {tensor: files[name].shown for tensor, name in names.items()}
    where = Place(".", tuple(part.source.path for part in parts), weights, tuple(absent))
    return RemoteSafetensors(where, parts, asked, helds)


def _json(asked: Address, held: Held) -> dict[str, Any]:
    """A whole file that is a JSON object."""
    if held.size > jsons.MOST_BYTES:
        raise SafetensorsError(
            f"{asked.shown}: it has {held.size} bytes, {jsons.MOST_BYTES} are read of a JSON text; it is "
            "damaged"
        )
    try:
        found = jsons.parsed(held.whole())
    except ValueError as error:
        if isinstance(error, GGMLQError):
            raise
        raise SafetensorsError(f"{asked.shown}: {error}; the file is damaged") from None
    if not isinstance(found, dict):
        raise SafetensorsError(f"{asked.shown}: it is no JSON object; the file is damaged")
    return found
