"""Opens a GGUF or safetensors model at a remote address; each tensor is fetched at its first use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base import missing
from ..base.progress import Progress
from ..errors import GGMLQError, MissingDependencyError, RemoteError, RemoteNotFoundError, SafetensorsError
from ..gguf import file
from ..gguf import header as gguf_header
from ..gguf.file import GGUFFile
from ..gguf.file import Part as GGUFPart
from ..gguf.source import Source
from ..safetensors import header as safetensors_header
from ..safetensors.file import ENDING, INDEX, Part, Place, SafetensorsFile, names_in
from . import shelf
from .address import Address, is_address, parse
from .held import FIRST, Held, first_bytes, read_header
from .ranges import Ranges

# --- files that fsspec reaches: s3://, gs://, az://, sftp:// and many more -------------------
# HTTP is not among them: what a server answers there is checked more closely in ranges.py.

PIECE = 8 << 20  # bytes of one request


class Others:
    """A remote file that fsspec reads: its size, its version and ranges of its bytes."""

    def __init__(self, address: Address) -> None:
        self.address = address
        scheme = address.url.partition("://")[0]
        try:
            fsspec: Any = importlib.import_module("fsspec")
            self._system, self._path = fsspec.core.url_to_fs(address.url)
        except ImportError as error:
            raise MissingDependencyError(
                f"{address.shown}: {scheme}:// is read through fsspec and what it needs for it, and that "
                f"cannot be imported: {error}; {missing.install('remote')}, and for s3 s3fs, for gs gcsfs"
            ) from error
        except ValueError as error:
            raise RemoteError(
                f"{address.shown}: fsspec knows no {scheme}://: {error}; https:// and hf:// need nothing more"
            ) from error
        self.size: int | None = None
        self.size, self.version = self._facts()

    def _facts(self) -> tuple[int, str]:
        try:
            self._system.invalidate_cache()
            facts = self._system.info(self._path)
            return int(facts["size"]), str(self._system.ukey(self._path))
        except FileNotFoundError as error:
            raise RemoteNotFoundError(
                f"{self.address.shown}: there is no such file; check the address"
            ) from error
        except Exception as error:  # of any of the packages behind fsspec
            raise RemoteError(
                f"{self.address.shown}: {type(self._system).__name__} says: {error}; check the address, "
                "and that you may read it"
            ) from error

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from ``start`` to ``stop``, in parts; RemoteError if the file has changed meanwhile."""
        while start < stop:
            end = min(start + PIECE, stop)
            try:
                data = self._system.cat_file(self._path, start=start, end=end)
            except Exception as error:
                raise RemoteError(
                    f"{self.address.shown}: bytes {start} to {end - 1} cannot be read: {error}; open it again"
                ) from error
            now = self._facts()
            if now != (self.size, self.version) or len(data) != end - start:
                raise RemoteError(
                    f"{self.address.shown}: it had {self.size} bytes and version {self.version}, and now "
                    f"has {now[0]} and {now[1]}; of bytes {start} to {end - 1} there came {len(data)}; "
                    "the file changed; open it again"
                )
            yield data
            start = end


# --- models ----------------------------------------------------------------------------------

Helds = dict[str, Held]  # by the paths of their sources


def open(text: str) -> GGUFFile | SafetensorsFile:
    """Open a GGUF or safetensors file, all parts of a split model, or an index and its files, by address.

    The header is fetched now, each tensor at its first use.
    """
    address = parse(text)
    held = _held(address)
    head = first_bytes(held)
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


def opened(path: str) -> GGUFFile | SafetensorsFile | None:
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
    part_name = file.parse_name(os.path.basename(address.path))
    total = part_name.total if part_name is not None else 1
    parts: list[GGUFPart] = []
    helds: Helds = {}
    for number in range(1, total + 1):
        here = part_name is None or total == 1 or number == part_name.part
        at = (
            address
            if here or part_name is None
            else address.beside(file.part_name(part_name.stem, number, total))
        )
        held_part = held if here else _held(at)
        first = parts[0].header.alignment if parts else None
        read_header(held_part, Source, at.shown, partial(gguf_header.parse, first=first))
        source = _source(Source, held_part, at.shown)
        parts.append(GGUFPart(source, gguf_header.parse(source, first)))
        helds[at.shown] = held_part
    if total == 1:
        file.check_whole(*parts[0])
    else:
        file.check_set([part.source for part in parts], [part.header for part in parts])
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
    read_header(held, kind, address.shown, safetensors_header.parse)
    source = _source(kind, held, address.shown)
    return Part(source, safetensors_header.parse(source)), {address.shown: held}


def _indexed(address: Address, held: Held) -> RemoteSafetensors:
    """All files that an index names: each header is fetched."""
    names = names_in(address.shown, _json(address, held))
    files = {name: address.beside(name) for name in dict.fromkeys(names.values())}
    parts: list[Part] = []
    helds: Helds = {}
    absent = []
    with Progress(len(files), "opening files", "files") as bar:
        for at in files.values():
            try:
                part, held_files = _safetensors(at, _held(at))
                parts, helds = [*parts, part], helds | held_files
            except RemoteNotFoundError:
                absent.append(at.shown)
            bar.advance(1)
    if not parts:
        raise RemoteNotFoundError(
            f"{address.shown}: of the {len(files)} files that it names none is there; check the address"
        )
    weights = {tensor: files[name].shown for tensor, name in names.items()}
    where = Place(".", tuple(part.source.path for part in parts), weights, tuple(absent))
    return RemoteSafetensors(where, parts, address, helds)


def _json(address: Address, held: Held) -> dict[str, Any]:
    """A whole file that is a JSON object."""
    if held.size > safetensors_header.MOST_JSON:
        raise SafetensorsError(
            f"{address.shown}: it has {held.size} bytes, {safetensors_header.MOST_JSON} are read of a "
            "JSON text; it is damaged"
        )
    try:
        table = safetensors_header.parsed(held.whole())
    except ValueError as error:
        if isinstance(error, GGMLQError):
            raise
        raise SafetensorsError(f"{address.shown}: {error}; the file is damaged") from None
    if not isinstance(table, dict):
        raise SafetensorsError(f"{address.shown}: it is no JSON object; the file is damaged")
    return table
