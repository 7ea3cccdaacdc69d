"""Opening a model: one file or all parts of a split one, as a mapping of names to QuantArrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ..arrays.array import QuantArray
from ..arrays.companion import Scale
from ..base import addressed
from ..base.devices import cuda_module
from ..base.text import count
from ..errors import GGUFError, GGUFKeyError
from . import header, load, split, tensors
from .companions import is_read, names_of, scale_of
from .header import Header
from .metadata import Metadata
from .opened import Opened
from .select import Filter, select
from .source import Source, checked_path
from .tensors import TensorInfo

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
    paths = split.paths_of_set(request.path)
    parts: list[Part] = []
    for path in paths:
        source = request if path == request.path else Source(path)
        # Later parts may leave out the alignment.
        parts.append(Part(source, header.parse(source, parts[0].header.alignment if parts else None)))
    if len(parts) == 1:
        split.check_whole(*parts[0])
    else:
        split.check_set([part.source for part in parts], [part.header for part in parts])
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
        metadata = Metadata(split.metadata_of_set([part.header for part in parts]))
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
                tensors.fail_absent(part.source, info, part.header.data)
            array = tensors.view(part.source, info, part.header.data)
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
            chosen = load.load(request, chosen, cuda_module("machine.upload").Link(device), progress)
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
