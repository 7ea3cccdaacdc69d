"""Opening a model: one file or all parts of a split one, as a mapping of names to QuantArrays."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from ..arrays.array import QuantArray
from ..arrays.companion import Scale
from ..base import addressed
from ..base.devices import cuda_module
from ..base.text import count
from ..errors import GGUFError, GGUFKeyError
from . import header, load
from .companions import is_read, names_of, scale_of
from .header import ALIGNMENT_KEY, Header, TensorInfo
from .metadata import Metadata, Stored
from .opened import Filter, Opened, select
from .source import Source, checked_path

# --- parts of a split model: found by their names, checked against each other ----------------

NO, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
KEYS = (NO, COUNT, TENSORS)  # they describe a file, not the model: a save makes them anew
FILE_KEYS = (*KEYS, ALIGNMENT_KEY)  # may differ from part to part
MAX_PARTS = 65535  # split.count is a uint16
NAMED = 8  # missing parts that an error names

_NAME = re.compile(r"(?P<stem>.*)-(?P<part>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


class PartName(NamedTuple):
    """The parts of a name such as ``model-00002-of-00003.gguf``."""

    stem: str
    part: int  # counted from 1
    total: int

    def path(self, folder: str, part: int) -> str:
        return os.path.join(folder, part_name(self.stem, part, self.total))


def part_name(stem: str, part: int, count: int) -> str:
    """The file name of a part, counted from 1, as llama.cpp spells it."""
    return f"{stem}-{part:05d}-of-{count:05d}.gguf"


def parse_name(path: str) -> PartName | None:
    """The part that the name of a file states; None for a whole model."""
    match = _NAME.fullmatch(os.path.basename(path))
    if match is None:
        return None
    return PartName(match["stem"], int(match["part"]), int(match["count"]))


def paths_of_set(path: str) -> list[str]:
    """All files of the model that ``path`` belongs to; an error names the parts that are missing."""
    name = parse_name(path)
    if name is None or name.total == 1:
        return [path]
    if not 1 <= name.part <= name.total:
        raise GGUFError(
            f"gguf: {path}: is named part {name.part} of {name.total}; parts count from 1; rename it"
        )
    folder = os.path.dirname(path)
    numbers = range(1, name.total + 1)
    # A hostile name may count to 99999: a few that are missing are enough.
    parts = (path if i == name.part else name.path(folder, i) for i in numbers)
    missing = list(islice((os.path.basename(p) for p in parts if not os.path.exists(p)), NAMED + 1))
    if missing:
        shown = ", ".join(missing[:NAMED]) + (" and more" if len(missing) > NAMED else "")
        raise GGUFError(
            f"gguf: {path}: is one of {name.total} parts; missing beside it: {shown}; "
            "all parts must lie in one folder, fetch the others"
        )
    return [path if i == name.part else name.path(folder, i) for i in numbers]


def check_whole(source: Source, header: Header) -> None:
    """Refuse a file that is opened as a whole model but is a part of one."""
    count = _number(header, COUNT)
    if count is not None and count > 1:
        part = (_number(header, NO) or 0) + 1
        raise GGUFError(
            f"gguf: {source.path}: is part {part} of {count} of a split model, but its name does not say so; "
            f"parts are found by name; rename it to {part_name('name', part, count)}, the others alike"
        )


def check_set(sources: Sequence[Source], headers: Sequence[Header]) -> None:
    """Refuse parts that are not the ones that their names say, or are of another model than the first."""
    total = sum(len(head.tensors) for head in headers)
    owner: dict[str, str] = {}
    for index, (source, head) in enumerate(zip(sources, headers, strict=True)):
        expected = {NO: index, COUNT: len(headers), TENSORS: total}
        for key, right in expected.items():
            value = _number(head, key)
            if value is None and _number(headers[0], key) is not None:
                _foreign(source, f"it has no {key}, the first part has")
            if value is not None and value != right:
                _foreign(source, f"its {key} is {value}, the set as it lies here makes it {right}")
        if head.byteorder != headers[0].byteorder:
            _foreign(source, f"it is {head.byteorder}-endian, the first part {headers[0].byteorder}-endian")
        for name in head.tensors:
            if name in owner:
                _foreign(source, f"tensor {name!r} is in {owner[name]} too")
            owner[name] = os.path.basename(source.path)


def metadata_of_set(headers: Sequence[Header]) -> dict[str, Stored]:
    """The metadata of the model: that of the first part, then what only later parts have."""
    if len(headers) == 1:
        return dict(headers[0].metadata)  # a single file shows all it has
    common = {key: stored for key, stored in headers[0].metadata.items() if key not in KEYS}
    for head in headers[1:]:
        for key, stored in head.metadata.items():
            if key not in FILE_KEYS and not common.setdefault(key, stored).equals(stored):
                other = os.path.basename(common[key].source.path)
                _foreign(stored.source, f"the key {key!r} has another value than in {other}")
    return common


def _foreign(source: Source, reason: str) -> None:
    raise GGUFError(
        f"gguf: {source.path}: does not belong to the split model beside it: {reason}; "
        "fetch all parts of one model again"
    )


def _number(header: Header, key: str) -> int | None:
    """A split key's number; None where the file lacks it, or holds something else there."""
    stored = header.metadata.get(key)
    if stored is None:
        return None
    value = stored.decode()
    if not isinstance(value, int) or isinstance(value, bool):
        stored.source.fail(
            stored.start, f"{key} is {stored.words()}; it must be an integer; the file is damaged"
        )
    return value


PATH = "a GGUF file is memory-mapped; pass a str or an os.PathLike, write bytes in memory to a file first"
ATTEMPTS = 5  # to open a set of parts that is being replaced


class Part(NamedTuple):
    """One file of a model."""

    source: Source
    header: Header


class State(NamedTuple):
    """The contents of an open file. A reader takes them once, so that another thread may close the file."""

    parts: tuple[Part, ...]
    places: dict[str, Part]
    arrays: dict[str, QuantArray]  # filled as they are asked for
    metadata: Metadata


def open(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file, or the whole split model that it is a part of.

    The file is memory-mapped and its header checked; no tensor is read, no value decoded. A download that was
    cut off after its header opens too: ``missing`` names the tensors that it lacks, and each is an error.

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
    if (there := addressed.opened(path)) is not None:
        if isinstance(there, GGUFFile):
            return there
        raise GGUFError(f"gguf: {there.path}: these are safetensors; open them with gq.open")
    request = Source(checked_path("open(path)", path, PATH))
    for _ in range(ATTEMPTS):
        try:
            parts = _open_parts(request)
            if len(parts) == 1 or all(part.source.is_current() for part in parts):
                return GGUFFile(parts)
        except GGUFError:
            if request.is_current():
                raise
        request = Source(request.path)
    raise GGUFError(
        f"gguf: {request.path}: the parts of this model were replaced while they were opened, "
        f"{ATTEMPTS} times; old and new parts do not mix; open it when they stay"
    )


def _open_parts(request: Source) -> list[Part]:
    paths = paths_of_set(request.path)
    parts: list[Part] = []
    for path in paths:
        source = request if path == request.path else Source(path)
        # Later parts may leave out the alignment.
        parts.append(Part(source, header.parse(source, parts[0].header.alignment if parts else None)))
    if len(parts) == 1:
        check_whole(*parts[0])
    else:
        check_set([part.source for part in parts], [part.header for part in parts])
    return parts


class GGUFFile(Opened[QuantArray]):
    """An open model: names to QuantArrays that are views on the memory map.

    It may be used from several threads. Closing it, or leaving its ``with`` block, lets go of the
    map; arrays and metadata that are still held keep it alive.
    """

    def __init__(self, parts: list[Part]) -> None:
        first = parts[0].header
        self._paths = tuple(part.source.path for part in parts)
        self._header = first
        self._absolute = parts[0].source.map.path  # the folder of the process may change
        places = {name: part for part in parts for name in part.header.tensors}
        metadata = Metadata(metadata_of_set([part.header for part in parts]))
        self._state: State | None = State(tuple(parts), places, {}, metadata)

    @property
    def version(self) -> int:
        """The version of the format that the first file has."""
        return self._header.version

    @property
    def byteorder(self) -> str:
        """The byte order, ``"little"`` or ``"big"``."""
        return self._header.byteorder

    @property
    def alignment(self) -> int:
        """Bytes to whose multiples the tensors of the first file are aligned."""
        return self._header.alignment

    @property
    def parts(self) -> tuple[Part, ...]:
        """The files with their headers, as they are on the disk."""
        return self._opened().parts

    @property
    def metadata(self) -> Metadata:
        """The model's metadata; of a split model that of all parts, without ``split.*``."""
        return self._opened().metadata

    @property
    def missing(self) -> tuple[str, ...]:
        """Tensors that a partial download lacks; asking for one is an error."""
        return tuple(name for name, part in self._opened().places.items() if name in part.header.absent)

    def __getitem__(self, name: str) -> QuantArray:
        state = self._opened()
        array = state.arrays.get(name)
        if array is None:
            part, info = self._place(state, name)
            if name in part.header.absent:
                header.fail_absent(part.source, info, part.header.data)
            array = header.view(part.source, info, part.header.data)
            scale = self._scale(state, name, array)
            array = state.arrays.setdefault(name, array if scale is None else array.with_scale(scale))
        return array

    def _scale(self, state: State, name: str, array: QuantArray) -> Scale | None:
        """The companion scale of a tensor, in a tensor of its own."""
        companion = next((other for other in names_of(name) if other in state.places), None)
        if companion is None or not is_read(name, array):
            return None
        return scale_of(f"gguf: {self.path}: tensor {name!r}", array, self[companion])

    def info(self, name: str) -> TensorInfo:
        """The facts about a tensor in the header."""
        return self._place(self._opened(), name)[1]

    def _place(self, state: State, name: str) -> tuple[Part, TensorInfo]:
        part = state.places.get(name)
        if part is None:
            self._missing(name, GGUFKeyError)
        return part, part.header.tensors[name]

    def to(
        self, device: Any, filter: Filter = None, progress: bool | None = None, *, axis: Any = 0
    ) -> Mapping[str, Any]:
        """All tensors, or some of them, on a device; ``f[name].to(device)`` moves a single one.

        Several threads (see :func:`ggmlq.set_num_threads`) read the file while what they have read is
        copied, so that it takes less than one after the other.

        Parameters
        ----------
        device : str or list
            ``"cuda"`` for CuPy's current device, ``"cuda:1"``, or ``"cpu"`` for the arrays as they are,
            without a copy. Several, ``["cuda:0", "cuda:1"]``: in parts, as :func:`ggmlq.parallel.shard`
            makes them, and no device ever holds a whole one.
        filter : str or callable, optional
            Which tensors: a pattern for whole names, with ``*``, ``?`` and ``[…]`` as in file names, or
            a function of a name. None takes all.
        progress : bool, optional
            True shows a bar, False none; otherwise there is one on a terminal if it takes long.
        axis : int, str or callable
            Of several devices: which axis is cut, as in ``shard``; embeddings, and what has no such axis or
            is too short, is copied to each. Or a function of name and array that says it for each, such as
            :func:`ggmlq.parallel.tensor_parallel`.

        Returns
        -------
        Mapping of str to QuantArray, or to Sharded
            Read-only, in the order of the file, good without the file. Little-endian, whatever the file is.

        Raises
        ------
        DeviceMemoryError
            If not all of them fit. Nothing is left on the device then, nor after an interrupt.
        GGUFKeyError
            If the filter takes none.

        >>> import os, tempfile, numpy as np, ggmlq as gq
        >>> path = os.path.join(tempfile.mkdtemp(), "tiny.gguf")
        >>> _ = gq.save(path, {"norm": np.ones(4, np.float32), "blk.0.up": np.eye(4, dtype=np.float32)})
        >>> list(gq.open(path).to("cpu", filter="blk.*"))
        ['blk.0.up']
        """
        request = f"{self!r}.to({device!r})"
        chosen = {name: self[name] for name in select(request, self, filter)}
        if isinstance(device, list | tuple):
            return self._to_several(chosen, device, axis, progress)
        if device != "cpu":
            chosen = load.load(request, chosen, cuda_module("driver.upload").Link(device), progress)
        return MappingProxyType(chosen)

    def _opened(self) -> State:
        state = self._state
        if state is None:
            raise GGUFError(f"gguf: {self.path}: is closed; arrays taken out before stay good; open it again")
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self._absolute,)

    def _tensors(self) -> list[dict[str, Any]]:
        return [
            {"name": i.name, "type": i.format.name, "shape": i.shape, "bytes": i.nbytes}
            for part in self.parts
            for i in part.header.tensors.values()
        ]

    def _metadata_html(self) -> str:
        return self.metadata._repr_html_()

    def __repr__(self) -> str:
        state = self._state
        if state is None:
            return f"<GGUF {self.path!r}, closed>"
        parts = f", {len(state.parts)} parts" if len(state.parts) > 1 else ""
        lacks = f" ({len(self.missing)} missing)" if self.missing else ""
        contents = f"{count(len(state.places), 'tensor')}{lacks}, {count(len(state.metadata), 'key')}"
        return f"<GGUF {self.path!r}, {contents}{parts}>"
