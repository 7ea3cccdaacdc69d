"""The bytes of one open GGUF file. Every read is first checked against the bytes that are left."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from itertools import islice
from struct import Struct
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..base.system import page_out
from ..base.text import COMPARED, meant, short
from ..errors import DTypeError, GGMLQError, GGUFError, GGUFNotFoundError, GGUFOSError
from .values import MAX_NAME_BYTES, order_sign

# --- limits on the size of a header ----------------------------------------------------------
# A hostile file costs its reader at most seconds and a gigabyte. The limits exceed the needs of any model.
# A file with repetitions or holes costs its writer next to nothing, and its reader an object for each
# entry. The largest vocabularies have a million texts and 40 MiB; ggml reads no arrays of arrays.

FACTOR = "GGMLQ_HEADER_LIMITS"

BYTES = "bytes of metadata"
KEYS = "keys"
TENSORS = "tensors"
TEXTS = "texts in arrays"
ARRAYS = "arrays in arrays"

LIMITS = {BYTES: 1 << 28, KEYS: 1 << 16, TENSORS: 1 << 18, TEXTS: 1 << 22, ARRAYS: 1 << 18}


class Allowance:
    """The counts of one file against their limits."""

    def __init__(self) -> None:
        self._most = {what: limit_of(what) for what in LIMITS}
        self._counts = dict.fromkeys(LIMITS, 0)

    def excess(self, what: str, n: int) -> str | None:
        """Count n more entries; the reason, if these are too many."""
        self._counts[what] += n
        count, most = self._counts[what], self._most[what]
        if count <= most:
            return None
        return (
            f"the header has {count} {what} or more, {most} are read; no model has as many, so the file is "
            f"damaged or made to fill the memory; {FACTOR}={-(-count // LIMITS[what])} in the environment "
            "multiplies all limits"
        )


def limit_of(what: str) -> int:
    """The most entries of a kind that are read."""
    return _factor() * LIMITS[what]


def _factor() -> int:
    factor = os.environ.get(FACTOR, "1")
    if not factor.isdecimal() or not int(factor):
        raise GGUFError(f"{FACTOR}={factor!r} in the environment: it is a whole number, 1 or more; unset it")
    return int(factor)


# --- the file --------------------------------------------------------------------------------

LONGEST_PATH = 32767  # characters: of Windows; others take 4096 bytes


class Map(mmap.mmap):
    """A read-only map of a whole file that remembers the file's path."""

    path: str
    identity: tuple[int, int]  # device and inode: whether the path still names this file
    changed: int  # ns, of the last change when it was opened
    address: int
    grows: bool = False  # more of the file is fetched while it is mapped


class Kind(NamedTuple):
    """The name of a kind of file in messages, and the error that it raises."""

    word: str
    name: str
    error: type[GGMLQError]
    refused: type[GGMLQError]  # by the system
    not_found: type[GGMLQError]
    least: int  # bytes


GGUF = Kind("gguf", "GGUF file", GGUFError, GGUFOSError, GGUFNotFoundError, 24)


class Source:
    """A read-only memory map with a byte order. Arrays taken from it keep the map alive."""

    kind: ClassVar[Kind] = GGUF

    def __init__(self, path: str, mapped: Map | None = None) -> None:
        self.path = path
        self.map = _mapped(path, self.kind) if mapped is None else mapped
        self.data = np.frombuffer(self.map, np.uint8)
        self.map.address = self.data.ctypes.data
        self.size = len(self.map)
        self._allowance = Allowance()
        self.set_byteorder("little")

    def set_byteorder(self, byteorder: str) -> None:
        """Set the byte order of all further numbers."""
        self.byteorder = byteorder
        self.unpack_u32 = Struct(order_sign(byteorder) + "I").unpack_from
        self.unpack_u64 = Struct(order_sign(byteorder) + "Q").unpack_from
        self.unpack_array = Struct(order_sign(byteorder) + "IQ").unpack_from  # type and length

    def is_current(self) -> bool:
        """True while the path still names this file."""
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.map.identity

    def fail(self, at: int, reason: str) -> NoReturn:
        """Raise the error for a broken rule, with the offset at which the file is wrong."""
        raise self.kind.error(f"{self.kind.word}: {self.path}: at byte {at}: {reason}")

    def need(self, at: int, n: int, what: str) -> None:
        """Refuse a read of n bytes beyond the end of the file."""
        if n > self.size - at:
            self.fail(
                at,
                f"{what} needs {n} bytes, {max(self.size - at, 0)} are left; "
                "the file is cut short or damaged, fetch it again",
            )

    def stored(self, name: str, begin: int, nbytes: int) -> NDArray[np.uint8]:
        """The bytes of a tensor; an error if the file was cut, since touching lost bytes ends the process."""
        now = self.map.size()
        if begin + nbytes > now:
            raise self.kind.error(
                f"{self.kind.word}: {self.path}: tensor {short(name)} needs bytes {begin} to "
                f"{begin + nbytes}, the file has {now} and had {self.size} when it was opened; a file that "
                "is open stays as it is; open it again when it is whole"
            )
        return self.data[begin : begin + nbytes]

    def count(self, at: int, what: str, n: int) -> None:
        """Count entries of the header against their limit, before anybody walks through them."""
        reason = self._allowance.excess(what, n)
        if reason is not None:
            self.fail(at, reason)

    def u32(self, at: int, what: str) -> int:
        """An unsigned 32-bit number."""
        self.need(at, 4, what)
        value: int = self.unpack_u32(self.map, at)[0]
        return value

    def u64(self, at: int, what: str) -> int:
        """An unsigned 64-bit number."""
        self.need(at, 8, what)
        value: int = self.unpack_u64(self.map, at)[0]
        return value

    def name(self, at: int, what: str) -> tuple[str, int]:
        """A key or the name of a tensor, and where it ends."""
        n = self.u64(at, f"the length of {what}")
        self.need(at + 8, n, what)
        if n > MAX_NAME_BYTES:
            self.fail(at, f"{what} has {n} bytes; names hold {MAX_NAME_BYTES} at most; the file is damaged")
        raw = self.map[at + 8 : at + 8 + n]
        try:
            return raw.decode(), at + 8 + n
        except UnicodeDecodeError as error:
            self.fail(
                at + 8 + error.start,
                f"{what} {raw[:80]!r} is not UTF-8 ({error.reason}); the file is damaged",
            )


def checked_path(request: str, path: object, way: str) -> str:
    """A path as text that the system can take; the error names what came instead, and the way out."""
    if isinstance(path, bytes | bytearray | memoryview) and bytes(path[:4]) == b"GGUF":
        raise DTypeError(f"{request}: got the {len(path)} bytes of a GGUF file for its path; {way}")
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]
        if b"\0" in os.fsencode(text):
            raise GGUFError(
                f"{request}: {short(text)} has a null byte; no path has one; check where it comes from"
            )
        if len(text) > LONGEST_PATH:
            raise GGUFError(
                f"{request}: {short(text)} … has {len(text)} characters; no path has so many; check where it "
                "comes from"
            )
        return text
    except UnicodeEncodeError as error:
        raise GGUFError(
            f"{request}: {short(error.object)} is no path: {error.reason}; check its characters"
        ) from None
    except TypeError:
        raise DTypeError(f"{request}: got {type(path).__name__} for the path; {way}") from None


def place(array: NDArray[Any]) -> tuple[Map, int] | None:
    """The map of ours, and the offset in it, where a contiguous array lies; None for any other array."""
    root: Any = array
    while isinstance(root, np.ndarray):
        root = root.base
    root = root.obj if isinstance(root, memoryview) else root
    if not isinstance(root, Map) or not array.flags.c_contiguous:
        return None
    return root, array.ctypes.data - root.address


def release(array: NDArray[Any]) -> None:
    """Unmap pages that were read to the end; touched again, they come back from the file.

    Only ever for maps of ours: in a map that somebody may write to this would lose what was written.
    """
    location = place(array)
    if location is not None and array.nbytes:
        start = location[1] // mmap.PAGESIZE * mmap.PAGESIZE
        page_out(location[0], start, location[1] + array.nbytes - start)


def _beside(path: str, kind: Kind) -> list[str]:
    """Names of files of this kind in the folder of a path that does not exist."""
    end = f".{kind.word}"
    try:
        with os.scandir(os.path.dirname(path) or ".") as entries:
            return [entry.name for entry in islice(entries, COMPARED) if entry.name.endswith(end)]
    except OSError:
        return []


def map_of(file: int, path: str, length: int = 0) -> Map:
    """A map of an open file, of all of it or of its beginning; ``path`` is where it was opened."""
    status = os.fstat(file)
    opened = Map(file, length, access=mmap.ACCESS_READ)
    opened.path, opened.identity = os.path.abspath(path), (status.st_dev, status.st_ino)
    opened.changed = status.st_mtime_ns
    return opened


def _mapped(path: str, kind: Kind) -> Map:
    word, name, error, refused, not_found, least = kind
    try:
        mode = os.stat(path).st_mode  # before open(): that would wait on a FIFO for ever
        if not stat.S_ISREG(mode):
            node = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            way = "name the file itself; of folders gq.open takes those with *.safetensors"
            raise refused(f"{word}: {path}: is {node}; a {name} is needed; {way}")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise error(
                    f"{word}: {path}: at byte 0: the file is empty; a {name} has at least {least} bytes; "
                    "fetch it again"
                )
            return map_of(file.fileno(), path)
    except FileNotFoundError as cause:
        way = meant(os.path.basename(path), _beside(path, kind), "check the path")
        raise not_found(f"{word}: {path}: there is no such file; {way}", cause) from cause
    except refused:
        raise
    except OSError as cause:
        way = "check the path and its permissions"
        if cause.errno in (errno.EMFILE, errno.ENFILE):
            way = "every open part of a model keeps a file open; close others or raise the limit (ulimit -n)"
        raise refused(f"{word}: {path}: cannot be opened: {cause.strerror or cause}; {way}", cause) from cause


# --- ranges of files that the system moves ---------------------------------------------------
# A save or a load of memory-mapped arrays lets the system copy from file to file or into memory. Through
# the memory map, each page would first have to be mapped, and that may cost as much as the copy itself.
# Bytes that the system cannot copy (another file system, no Linux, a file that was replaced) are left, and
# the caller takes them from the map.


class Extent(NamedTuple):
    """Bytes of a mapped file, and the same bytes in memory."""

    map: Map
    offset: int
    data: memoryview


class Files:
    """The files behind maps, opened once more for as long as something is copied from them."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._fds: dict[str, int | None] = {}

    def copy(self, extent: Extent, target: int) -> int:
        """Append an extent to a file as far as the system can copy it; the number of bytes copied."""
        fd = self._fd(extent.map) if hasattr(os, "copy_file_range") else None
        done = 0
        with contextlib.suppress(OSError):  # what is refused here, a full disk too, the write tries again
            while fd is not None and done < len(extent.data):
                n = os.copy_file_range(fd, target, len(extent.data) - done, extent.offset + done)
                if not n:
                    break
                done += n
        return done

    def read(self, source: Map, offset: int, target: NDArray[np.uint8]) -> int:
        """Fill memory from a file as far as the system can read it; the number of bytes. For any thread."""
        fd = self._fd(source) if hasattr(os, "preadv") else None
        done = 0
        with contextlib.suppress(OSError):
            while fd is not None and done < len(target):
                n = os.preadv(fd, [target[done:].data], offset + done)
                if not n:
                    break
                done += n
        return done

    def _fd(self, source: Map) -> int | None:
        key = f"{source.identity} {source.path}"
        if key not in self._fds:
            self._fds[key] = self._reopened(source)
        return self._fds[key]

    def _reopened(self, source: Map) -> int | None:
        """The file, if it still has its name."""
        try:
            fd = os.open(source.path, os.O_RDONLY)
        except OSError:
            return None
        self._stack.callback(os.close, fd)
        status = os.fstat(fd)
        return fd if (status.st_dev, status.st_ino) == source.identity else None

    def __enter__(self) -> Files:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
