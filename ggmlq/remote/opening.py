"""Opens a GGUF or safetensors model at a remote address; each tensor is fetched at its first use."""

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

Helds = dict[str, Held]  # by the paths of their sources


def open(text: str) -> GGUFFile | SafetensorsFile:
    """Open a GGUF or safetensors file, all parts of a split model, or an index and its files, by address.

    The header is fetched now, each tensor at its first use.
    """
    address = parse(text)
    held = _held(address)
    head = prefix.first(held)
    name = os.path.basename(address.path)
    if head[:4] != b"GGUF":
        if name.endswith(INDEX):
            return _indexed(address, held)
        if name.endswith(ENDING) or head[5:9] == b"\0\0\0{":
            part, helds = _safetensors(address, held)
            return RemoteSafetensors(Place(".", (address.shown,), None, ()), [part], address, helds)
    return _gguf(address, held)


def _held(address: Address) -> Held:
    """The file with holes for an address; over HTTP its first piece is there already."""
    if not address.url.lower().startswith(("http://", "https://")):
        other = Others(address)
        if not other.size:
            raise RemoteError(f"{address.shown}: it is empty; check the address")
        return shelf.hold(address.url, address.shown, other, other.version)
    origin = Ranges(address)
    first = b"".join(origin.read(0, FIRST))
    held = shelf.hold(address.url, address.shown, origin, origin.version)
    if not held.put_first(first):  # another file under the version that is kept: the server does not tell
        held.close()
        shelf.forget(address.url, origin)
        held = shelf.hold(address.url, address.shown, origin, origin.version)
        held.put_first(first)
    return held


@opener
def _opened(path: str) -> GGUFFile | SafetensorsFile | None:
    """Open the file at an address, for readers of local files."""
    return open(path) if is_address(path) else None


class Fetched:
    """The part that remote models of both kinds share: they close their files and are pickled by address."""

    _helds: Helds
    _address: Address

    def close(self) -> None:
        super().close()  # type: ignore[misc]
        for held in self._helds.values():
            held.close()

    def __reduce__(self) -> tuple[Any, ...]:
        address = self._address
        return open, (address.shown if address.shown.startswith("hf://") else address.url,)


# --- GGUF -----------------------------------------------------------------------------------


class RemoteGGUF(Fetched, GGUFFile):
    """An open remote GGUF model. A tensor is fetched when it is taken; arrays are views of the copy."""

    def __init__(self, parts: list[GGUFPart], address: Address, helds: Helds) -> None:
        super().__init__(parts)
        self._helds, self._address = helds, address

    def __getitem__(self, name: str) -> QuantArray:
        part, info = self._place(self._opened(), name)
        if name not in part.header.absent and info.nbytes:
            begin = part.header.data + info.offset
            self._helds[part.source.path].need(begin, begin + info.nbytes)
        return super().__getitem__(name)


def _gguf(address: Address, held: Held) -> RemoteGGUF:
    part_name = split.parse_name(os.path.basename(address.path))
    total = part_name.total if part_name is not None else 1
    parts: list[GGUFPart] = []
    helds: Helds = {}
    for number in range(1, total + 1):
        here = part_name is None or total == 1 or number == part_name.part
        at = (
            address
            if here or part_name is None
            else address.beside(split.part_name(part_name.stem, number, total))
        )
        held_part = held if here else _held(at)
        first = parts[0].header.alignment if parts else None
        prefix.header(held_part, Source, at.shown, partial(gguf_header.parse, first=first))
        source = _source(Source, held_part, at.shown)
        parts.append(GGUFPart(source, gguf_header.parse(source, first)))
        helds[at.shown] = held_part
    if total == 1:
        split.check_whole(*parts[0])
    else:
        split.check_set([part.source for part in parts], [part.header for part in parts])
    return RemoteGGUF(parts, address, helds)


def _source(kind: type[Source], held: Held, shown: str) -> Any:
    """The file with holes as readers map files, under the name that it has elsewhere."""
    source = kind(shown, held.map())
    source.map.grows = True
    return source


# --- safetensors ----------------------------------------------------------------------------


class RemoteSafetensors(Fetched, SafetensorsFile):
    """An open remote safetensors model; each tensor is fetched when it is taken."""

    def __init__(self, where: Place, parts: list[Part], address: Address, helds: Helds) -> None:
        super().__init__(where, parts, address.shown)
        self._helds, self._address = helds, address

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json beside the file; empty where there is none."""
        beside = self._address.beside("config.json")
        try:
            return MappingProxyType(_json(beside, _held(beside)))
        except RemoteNotFoundError:
            return MappingProxyType({})

    def _bytes(self, part: Part, entry: safetensors_header.Entry) -> NDArray[np.uint8]:
        if entry.name not in part.header.absent and entry.nbytes:
            begin = part.header.data + entry.begin
            self._helds[part.source.path].need(begin, begin + entry.nbytes)
        return super()._bytes(part, entry)


def _safetensors(address: Address, held: Held) -> tuple[Part, Helds]:
    kind = safetensors_header.Source
    prefix.header(held, kind, address.shown, safetensors_header.parse)
    source = _source(kind, held, address.shown)
    return Part(source, safetensors_header.parse(source)), {address.shown: held}


def _indexed(address: Address, held: Held) -> RemoteSafetensors:
    """All files that an index names: each header is fetched."""
    names = names_in(address.shown, _json(address, held))
    files = {name: address.beside(name) for name in dict.fromkeys(names.values())}
    parts: list[Part] = []
    helds: Helds = {}
    absent = []
    bar = Progress(len(files), "opening files", "files")
    try:
        for at in files.values():
            try:
                part, held_files = _safetensors(at, _held(at))
                parts, helds = [*parts, part], helds | held_files
            except RemoteNotFoundError:
                absent.append(at.shown)
            bar.advance(1)
    finally:
        bar.close()
    if not parts:
        raise RemoteNotFoundError(
            f"{address.shown}: of the {len(files)} files that it names none is there; check the address"
        )
    weights = {tensor: files[name].shown for tensor, name in names.items()}
    where = Place(".", tuple(part.source.path for part in parts), weights, tuple(absent))
    return RemoteSafetensors(where, parts, address, helds)


def _json(address: Address, held: Held) -> dict[str, Any]:
    """A whole file that is a JSON object."""
    if held.size > jsons.MOST_BYTES:
        raise SafetensorsError(
            f"{address.shown}: it has {held.size} bytes, {jsons.MOST_BYTES} are read of a JSON text; it is "
            "damaged"
        )
    try:
        table = jsons.parsed(held.whole())
    except ValueError as error:
        if isinstance(error, GGMLQError):
            raise
        raise SafetensorsError(f"{address.shown}: {error}; the file is damaged") from None
    if not isinstance(table, dict):
        raise SafetensorsError(f"{address.shown}: it is no JSON object; the file is damaged")
    return table
