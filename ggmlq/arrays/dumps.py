"""Reading of a user's files with a kernel's operands (npy, npz or raw bytes), which may be hostile.

Only the requested arrays are read, and memory is allocated only for data that the file really has: an
array's header and the directory of the archive must name the same size, and the data must be as long.
So neither a header that claims 2**40 floats nor an archive that unpacks to terabytes costs more than
reading a header. ``np.load`` would unpack such a member in full.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from tokenize import TokenError
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..base.system import flags
from ..base.text import short, size
from ..errors import DumpError

MOST_BYTES = 4 << 30  # of an array, unpacked
MOST_DIRECTORY = 1 << 20  # bytes of an archive's directory: some ten thousand arrays
STEP = 1 << 18  # bytes unpacked at a time
FEW = 1 << 16  # bytes of a name, a number or a shape
MAGIC = b"\x93NUMPY"
ARCHIVES = (b"PK\x03\x04", b"PK\x05\x06")  # with members, and empty
KINDS = "biufSU"  # numbers and text; an object would be code, the rest are nobody's operands
DAMAGED = (
    ValueError, KeyError, OverflowError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip
UNREADABLE = (MemoryError, RecursionError, TypeError, OverflowError, SyntaxError, TokenError, Warning)
AGAIN = "write it again with np.savez or `ggmlq check --save`"


class Layout(NamedTuple):
    """The dtype, shape and order that a header of NumPy states."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int  # of the data

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Dump:
    """An examined file: the names and the layout of its arrays, and their data on request."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with self._opened() as file:
            self.size = os.fstat(file.fileno()).st_size
            self.magic = file.read(8)
            self.is_archive = self.magic[:4] in ARCHIVES
            self.is_array = self.magic.startswith(MAGIC)
            self.names = self._members(file) if self.is_archive else []
        if self.path.endswith((".npy", ".npz")) and not (self.is_array or self.is_archive):
            raise DumpError(
                f"{self.path}: named like NumPy's files, but it is none; dump with np.save or np.savez"
            )

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def layout(self, name: str) -> Layout:
        """The dtype, shape and order of an array; none of its data is read."""
        with self._member(name) as (file, room):
            return self._layout(file, room, name)

    def array(self, name: str, most: int = MOST_BYTES) -> NDArray[Any]:
        """The array of that name in an archive (or its only array), or the array of an npy file.

        ``most``: the most bytes that the known shape of the product allows.
        """
        with self._member(name) as (file, room):
            layout = self._layout(file, room, name)
            if layout.nbytes > most:
                self._refuse(
                    f"array {name!r} has {size(layout.nbytes)}, {size(most)} are possible; dump it anew"
                )
            data = np.empty(layout.nbytes, np.uint8)
            _fill(file, data)
        return data.view(layout.dtype).reshape(layout.shape, order="F" if layout.fortran else "C")

    def raw(self) -> bytes:
        """All bytes of a file that is no NumPy file."""
        if self.size > MOST_BYTES:
            self._refuse(f"it has {size(self.size)}, and a dump {size(MOST_BYTES)} at most; dump fewer rows")
        with self._opened() as file:
            return file.read()

    # --- a value by its name ------------------------------------------------------------

    def text(self, name: str) -> str:
        """The text of a member that holds a single string."""
        array = self._single(name)
        if array.dtype.kind != "U":
            self._refuse(f"{name} is {array.dtype}, not a text; {AGAIN}")
        return str(array.item())

    def number(self, name: str) -> int:
        """A single whole number."""
        array = self._single(name)
        if array.dtype.kind not in "iu":
            self._refuse(f"{name} is {array.dtype}, not a whole number; {AGAIN}")
        return int(array.item())

    def lengths(self, name: str) -> tuple[int, ...]:
        """A shape: a few whole numbers."""
        array = self._named(name)
        if array.dtype.kind not in "iu" or array.ndim > 1 or array.size > 8 or (array < 0).any():
            shown = short(array.tolist()) if array.size <= 8 else f"{array.size} of {array.dtype}"
            self._refuse(f"{name} is {shown}; it is the lengths of axes, such as [4, 512]; {AGAIN}")
        return tuple(int(n) for n in array.reshape(-1))

    def _single(self, name: str) -> NDArray[Any]:
        array = self._named(name)
        if array.size != 1:
            self._refuse(f"{name} is of shape {array.shape}, not a single value; {AGAIN}")
        return array

    def _named(self, name: str) -> NDArray[Any]:
        if name not in self:
            raise DumpError(
                f"{self.path}: there is no {name!r}, it holds {self._held()}; weights need raw, format and "
                "shape"
            )
        return self.array(name, FEW)

    def _held(self) -> str:
        return ", ".join(short(name, 40) for name in sorted(self.names)[:20]) or "nothing"

    # --- files --------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        """The open file, in a context that explains every failure in words."""
        try:
            # Not blocking: a FIFO would wait for its other end for ever.
            fd = os.open(self.path, flags("O_RDONLY", "O_NONBLOCK", "O_BINARY"))
            with open(fd, "rb", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    self._refuse(
                        "is no regular file; its length is not known before it is read; copy it to one"
                    )
                yield file
        except DumpError:
            raise
        except OSError as error:
            raise DumpError(
                f"{self.path}: cannot be read: {error.strerror or error}; check the path"
            ) from error
        except MemoryError:
            raise DumpError(
                f"{self.path}: its arrays are larger than the memory left; dump fewer rows"
            ) from None
        except DAMAGED as error:
            reason = str(error).partition("\n")[0][:200]
            raise DumpError(f"{self.path}: a damaged npy or npz file: {reason}; {AGAIN}") from error

    @contextmanager
    def _archive(self, file: IO[bytes]) -> Iterator[zipfile.ZipFile]:
        with zipfile.ZipFile(_Sparing(file, self._refuse)) as archive:
            yield archive

    def _members(self, file: IO[bytes]) -> list[str]:
        with self._archive(file) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]

    @contextmanager
    def _member(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        """The file of an array, at its header, and the number of bytes of header and data."""
        with self._opened() as file:
            if self.is_array:
                yield file, self.size
                return
            if name not in self and len(self.names) != 1:
                self._refuse(f"holds {self._held()}; name the array {name!r} in it")
            with self._archive(file) as archive:
                info = archive.getinfo(f"{name if name in self else self.names[0]}.npy")
                self._check_packing(name, info)
                with archive.open(info) as member:
                    yield member, info.file_size

    def _check_packing(self, name: str, info: zipfile.ZipInfo) -> None:
        """Refuse compression other than NumPy's (deflate or none): it may unpack to any size in one step."""
        if info.flag_bits & 1:
            self._refuse(f"array {name!r} is encrypted; {AGAIN}")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            self._refuse(
                f"array {name!r} is packed by method {info.compress_type}; NumPy writes {zipfile.ZIP_STORED} "
                f"and {zipfile.ZIP_DEFLATED}; {AGAIN}"
            )

    def _layout(self, file: IO[bytes], room: int, name: str) -> Layout:
        layout = _header(file)
        if layout.dtype.kind not in KINDS or not layout.dtype.itemsize:
            self._refuse(f"array {name!r} is of {layout.dtype}; numbers and text are read; {AGAIN}")
        if layout.start + layout.nbytes != room:
            self._refuse(
                f"array {name!r} claims {layout.shape} of {layout.dtype}, {layout.nbytes} bytes, and there "
                f"are {room - layout.start}; the file is damaged or cut short; {AGAIN}"
            )
        if layout.nbytes > MOST_BYTES:
            self._refuse(
                f"array {name!r} has {size(layout.nbytes)}, read are {size(MOST_BYTES)} at most; take fewer "
                "rows"
            )
        return layout

    def _refuse(self, reason: str) -> NoReturn:
        raise DumpError(f"{self.path}: {reason}")


class _Sparing(io.RawIOBase):
    """A file that refuses large reads: a hostile zip directory could make its reader take all at once."""

    def __init__(self, file: IO[bytes], refuse: Callable[[str], NoReturn]) -> None:
        self._file, self._refuse = file, refuse

    def read(self, n: int = -1) -> bytes:
        if n > MOST_DIRECTORY:
            self._refuse(f"its directory has {n} bytes, {MOST_DIRECTORY} are read at most; it is no npz file")
        return self._file.read(n if n >= 0 else MOST_DIRECTORY)

    def seek(self, at: int, whence: int = 0) -> int:
        return self._file.seek(at, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _header(file: IO[bytes]) -> Layout:
    version = npy.read_magic(file)
    read: dict[tuple[int, int], Callable[[IO[bytes]], Any]] = {
        (1, 0): npy.read_array_header_1_0,
        (2, 0): npy.read_array_header_2_0,
    }
    if version not in read:
        raise ValueError(f"its header has version {version[0]}.{version[1]}; 1.0 and 2.0 are read")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what NumPy warns of here is a header of no NumPy
        try:
            shape, fortran, dtype = read[version](file)
        except UNREADABLE as error:
            raise ValueError(f"its header is unreadable ({type(error).__name__})") from None
    if any(n < 0 for n in shape) or len(shape) > 8:
        raise ValueError(f"its header claims the shape {short(shape)}")
    return Layout(dtype, shape, fortran, file.tell())


def _fill(file: IO[bytes], data: NDArray[np.uint8]) -> None:
    """Fill data with the rest of a file, exactly; reading past the end checks an archive's checksum."""
    at = 0
    while part := file.read(STEP):
        if at + len(part) > len(data):
            raise ValueError("its data is longer than it says")
        data[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    if at != len(data):
        raise ValueError("its data ends early")
