"""``gq.gguf.save``: checks and lays out a GGUF file, streams it to a temporary one, and renames that."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ..base.progress import Progress
from ..base.system import flags
from ..base.text import short
from ..base.unwinding import unwinding
from ..errors import GGMLQError, GGUFError, GGUFNotFoundError, GGUFOSError
from .atomic import Chunk, Staging
from .companions import WithCompanions, missing_companion
from .file import GGUFFile
from .header import DEFAULT_ALIGNMENT, aligned
from .metadata import Metadata, _pairs
from .plan import (
    Described,
    Layout,
    Limits,
    PartPlan,
    check_keys,
    check_room,
    choose_alignment,
    describe,
    part,
    plan,
    slabs,
)
from .source import Extent, checked_path


class _Default(int):
    """An int that can be told from the same int given by a caller."""


_ALIGNMENT: Final = _Default(DEFAULT_ALIGNMENT)
NO_METADATA: Final[Mapping[str, Any]] = MappingProxyType({})


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
    metadata: Mapping[str, Any] | Iterable[tuple[str, Any]] = NO_METADATA,
    *,
    alignment: int = _ALIGNMENT,
    byteorder: str = "little",
    split_max_bytes: int | None = None,
    split_max_tensors: int | Sequence[int] | None = None,
) -> list[str]:
    """Write a GGUF file, or a set of parts, so that it is there in full or not at all.

    The file is written under a temporary name in the same folder, synced and renamed, so a kill or
    a full disk leaves an existing file as it was. ``path`` may be the file that ``tensors`` are
    views of. Tensors stream one by one.

    Parameters
    ----------
    path : str or os.PathLike
        The file; for more than one part ``dir/s.gguf`` becomes ``dir/s-00001-of-0000N.gguf``.
    tensors : mapping or pairs of name and array
        QuantArrays, NumPy and CuPy arrays (float16, bfloat16, float32, float64, int8 to int64), or
        an open file. A mapping is asked twice for each array: once to plan, once to write.
    metadata : mapping or pairs of key and value
        ``bool`` becomes BOOL, ``int`` the first of UINT32, INT32, UINT64, INT64 that holds it,
        ``float`` FLOAT32, ``str`` STRING, a list of ints INT32 or INT64; NumPy numbers keep their
        type, and ``Typed(value, "uint8")`` forces one. Values of an open file keep theirs. If
        ``tensors`` is an open file, its metadata is the default.
    alignment : int
        Of the tensors, a power of two; ``general.alignment`` follows it. Not given, it follows
        ``general.alignment``, or is 32.
    byteorder : str
        ``"little"`` or ``"big"``, for header and tensors.
    split_max_bytes : int, optional
        Tensor bytes a part; a larger tensor gets a part of its own.
    split_max_tensors : int or sequence of ints, optional
        Tensors a part; or how many each part has, for all of them in order.

    Returns
    -------
    list of str
        The files, one a part.

    Raises
    ------
    GGUFError
        Before a byte is written, for anything that a GGUF file cannot hold.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> path = os.path.join(tempfile.mkdtemp(), "m.gguf")
    >>> _ = gq.save(path, {"w": gq.quantize(np.ones((4, 32), np.float32), "q4_0")}, {"general.name": "ones"})
    >>> f = gq.open(path)
    >>> _ = gq.save(path, f, f.metadata | {"general.name": "edited"})  # over the file that is open
    >>> gq.open(path).metadata["general.name"], f.metadata["general.name"]
    ('edited', 'ones')
    """
    final = checked_path("save(path, tensors)", path, "the path comes first; pass a str or an os.PathLike")
    request = f"save({final!r})"
    limits = split_max_bytes, split_max_tensors
    plans, arrays, layout = _planned(request, final, tensors, metadata, alignment, byteorder, limits)
    with refused(request):
        check_room((part.path, _nbytes(part, layout)) for part in plans)
        _write(plans, arrays, layout)
    return [part.path for part in plans]


def layout(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
    metadata: Mapping[str, Any] | Iterable[tuple[str, Any]] = NO_METADATA,
    *,
    alignment: int = _ALIGNMENT,
    byteorder: str = "little",
    split_max_bytes: int | None = None,
    split_max_tensors: int | Sequence[int] | None = None,
) -> list[tuple[str, int]]:
    """The files that :func:`save` would write, with their sizes. All its checks are made, nothing is written.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> path = os.path.join(tempfile.mkdtemp(), "m.gguf")
    >>> gq.gguf.layout(path, {"w": np.ones(4, np.float32)}) == [(path, 96)]
    True
    >>> gq.save(path, {"w": np.ones(4, np.float32)}) == [path], os.path.getsize(path)
    (True, 96)
    """
    final = checked_path("layout(path, tensors)", path, "the path comes first; pass a str or an os.PathLike")
    limits = split_max_bytes, split_max_tensors
    request = f"layout({final!r})"
    plans, _, laid = _planned(request, final, tensors, metadata, alignment, byteorder, limits)
    return [(planned.path, _nbytes(planned, laid)) for planned in plans]


def file_bytes(tensors: Mapping[str, Any], metadata: Metadata, byteorder: str) -> int:
    """The size of a single file of these tensors."""
    laid = Layout(byteorder, choose_alignment(metadata, DEFAULT_ALIGNMENT, False))
    return _nbytes(part("", _described(tensors)[0], metadata, laid), laid)


@contextmanager
def refused(request: str) -> Iterator[None]:
    """A context that raises the system's errors during a save as errors in words."""
    try:
        yield
    except GGUFOSError as error:
        raise GGUFOSError(
            f"{request}: {error}; nothing has changed under that name", error
        ) from error.__cause__
    except OSError as error:
        if isinstance(error, GGMLQError):  # of what is read
            raise
        kind = GGUFNotFoundError if isinstance(error, FileNotFoundError) else GGUFOSError
        raise kind(
            f"{request}: the system refused: {error.strerror or error}; nothing has changed under that name; "
            "check the folder, its permissions and the space on the disk",
            error,
        ) from error


def _planned(
    request: str,
    final: str,
    tensors: Any,
    metadata: Any,
    alignment: int,
    byteorder: str,
    limits: tuple[Any, Any],
) -> tuple[list[PartPlan], Mapping[str, Any], Layout]:
    """Everything that a save decides and checks before it writes."""
    if isinstance(tensors, GGUFFile) and metadata is NO_METADATA:
        metadata = tensors.metadata
    try:
        arrays = tensors if isinstance(tensors, Mapping) else _unique(tensors)
        entries = Metadata.of(metadata)
        check_keys(entries)
        align = choose_alignment(entries, alignment, alignment is not _ALIGNMENT)
        laid = Layout(_checked_order(byteorder), align)
        described, added = _described(arrays)
        arrays = WithCompanions(arrays, added) if added else arrays
        return plan(final, described, entries, laid, _checked_limits(*limits)), arrays, laid
    except GGUFError as error:
        raise type(error)(f"{request}: {error}") from error.__cause__


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, x in _pairs("tensors", pairs):
        if name in named:
            raise GGUFError(f"the tensor {name!r} is given twice; names must differ; rename one")
        named[name] = x
    return named


def _described(arrays: Mapping[str, Any]) -> tuple[list[Described], dict[str, tuple[str, Any]]]:
    """The tensors in order, and the companions that some of them bring along, by the tensor's name."""
    described, added = [], {}
    for name in arrays:
        try:
            x = arrays[name]
            described.append(describe(name, x))
            if companion := missing_companion(name, x, arrays):
                added[name] = companion
                described.append(describe(*companion))
        except GGUFError as error:
            raise GGUFError(f"tensor {short(name, 200)}: {error}") from None
        del x  # one array at a time
    return described, added


def _checked_order(byteorder: str) -> str:
    if byteorder not in ("little", "big"):
        raise GGUFError(
            f'byteorder={byteorder!r}; it must be "little" or "big"; llama.cpp on x86 and Arm reads "little"'
        )
    return byteorder


def _checked_limits(nbytes: Any, tensors: Any) -> Limits:
    if nbytes is not None and not _positive(nbytes):
        raise GGUFError(
            f"split_max_bytes={nbytes!r}; it must be a positive number of bytes, or None for one file"
        )
    counts = [tensors] if tensors is not None and not isinstance(tensors, Sequence) else tensors or []
    if not all(map(_positive, counts)) or isinstance(tensors, str | bytes):
        raise GGUFError(
            f"split_max_tensors={short(tensors)}; it must be a positive number of tensors, or a list of "
            "them, one for each part"
        )
    return Limits(nbytes, tensors)


def _positive(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool) and value > 0


def _nbytes(part: PartPlan, layout: Layout) -> int:
    return sum(map(len, part.header)) + sum(aligned(t.nbytes, layout.alignment) for t in part.tensors)


def _write(plans: list[PartPlan], arrays: Mapping[str, Any], layout: Layout) -> None:
    total = sum(tensor.nbytes for part in plans for tensor in part.tensors)
    paths = [part.path for part in plans]
    with Progress(total, "writing GGUF") as progress, Staging(paths) as staging:
        for part in plans:
            staging.write(_chunks(part, arrays, layout, progress))
        staging.commit()


def _chunks(part: PartPlan, arrays: Mapping[str, Any], layout: Layout, progress: Progress) -> Iterator[Chunk]:
    yield b"".join(part.header)
    for tensor in part.tensors:
        x = arrays[tensor.name]
        if describe(tensor.name, x) != tensor:
            raise GGUFError(
                f"save({part.path!r}): tensor {tensor.name!r} changed its type or shape while it was saved; "
                "give the same array whenever it is asked for"
            )
        slab = None
        for slab in slabs(x, tensor, layout.byteorder):
            yield slab
            progress.advance(len(slab.data if isinstance(slab, Extent) else slab))
        del x, slab  # before the next one is made
        yield bytes(aligned(tensor.nbytes, layout.alignment) - tensor.nbytes)


# --- files that several processes write ------------------------------------------------------
# Header and full size come first, then tensors by workers, names at the end. Each worker writes its own
# range of a temporary file that exists already. A worker that cannot open it is on a machine that does not
# see this folder, and raises an error instead of making a file that nobody finds.


class Place(NamedTuple):
    """The place in a file for the bytes of a tensor, which other processes and machines write."""

    path: str  # of the temporary file
    size: int  # of the whole file
    offset: int
    host: str  # where the file was made

    def write(self, at: int, chunks: Iterator[Chunk]) -> None:
        """Write a part of the tensor, from byte ``at`` of the tensor on."""
        try:
            self._write(self.offset + at, chunks)
        except FileNotFoundError as error:
            raise GGUFNotFoundError(
                f"{self.path}: {platform.node()} has no such file; {self.host} made it, and workers "
                "write their parts into it; all must see the folder of the new file under one path; or "
                "the work was given up meanwhile",
                error,
            ) from error
        except OSError as error:
            if isinstance(error, GGUFOSError):
                raise
            raise GGUFOSError(
                f"{self.path}: {platform.node()} cannot write to it: {error.strerror or error}; check "
                "the space on the disk and the permissions of its folder",
                error,
            ) from error

    def _write(self, at: int, chunks: Iterator[Chunk]) -> None:
        fd = os.open(self.path, flags("O_WRONLY", "O_NOFOLLOW", "O_BINARY"))
        try:
            size = os.fstat(fd).st_size
            if size != self.size:
                raise GGUFOSError(
                    f"{self.path}: it has {size} bytes here, {self.host} made it with {self.size}; the "
                    "file system shows machines different things; write to another one"
                )
            os.lseek(fd, at, os.SEEK_SET)
            for chunk in chunks:
                rest = memoryview(chunk.data if isinstance(chunk, Extent) else chunk)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            if platform.node() != self.host:  # here whoever gives the file its name syncs all of it
                os.fsync(fd)
        finally:
            os.close(fd)


@contextmanager
def prepared(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    metadata: Any,
    *,
    byteorder: str = "little",
    split_max_tensors: Any = None,
) -> Iterator[tuple[list[str], dict[str, Place]]]:
    """A context with the future files and each tensor's place; without an error the files get their names."""
    final = checked_path("save(path, tensors)", path, "the path comes first; pass a str or an os.PathLike")
    request = f"save({final!r})"
    limits = None, split_max_tensors
    plans, _, laid = _planned(request, final, tensors, metadata, _ALIGNMENT, byteorder, limits)
    with refused(request), unwinding():
        check_room((part.path, _nbytes(part, laid)) for part in plans)
        with Staging([part.path for part in plans]) as staging:
            places: dict[str, Place] = {}
            for part in plans:
                head, size = b"".join(part.header), _nbytes(part, laid)
                temporary, at = os.path.abspath(staging.reserve(head, size)), len(head)
                for tensor in part.tensors:
                    places[tensor.name] = Place(temporary, size, at, platform.node())
                    at += aligned(tensor.nbytes, laid.alignment)
            yield [part.path for part in plans], places
            staging.sync()
            staging.commit()
