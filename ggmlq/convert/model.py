"""The source of a conversion: an open file, or a view of it without some layers, which looks like a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ..arrays.array import QuantArray
from ..errors import ConvertError
from ..gguf import GGUFFile, Imatrix, Metadata, Typed
from ..gguf.header import TensorInfo

LAYER = re.compile(r"blk\.(\d+)\.")


class Model(Protocol):
    """The interface of an open file that a conversion needs."""

    @property
    def path(self) -> str: ...
    @property
    def paths(self) -> tuple[str, ...]: ...
    @property
    def byteorder(self) -> str: ...
    @property
    def metadata(self) -> Metadata: ...
    def info(self, name: str) -> TensorInfo: ...
    def __getitem__(self, name: str) -> QuantArray: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, name: object) -> bool: ...
    def __len__(self) -> int: ...


def parts_of(model: Model) -> list[int]:
    """Tensors in each part of a split model, in order; parts without any are left out."""
    if isinstance(model, Pruned):
        counts = model.parts
    else:
        assert isinstance(model, GGUFFile)
        counts = [len(part.header.tensors) for part in model.parts]
    return [count for count in counts if count]


class View:
    """A view of an open file, here as it is."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def paths(self) -> tuple[str, ...]:
        return self._file.paths

    @property
    def byteorder(self) -> str:
        return self._file.byteorder

    @property
    def metadata(self) -> Metadata:
        return self._file.metadata

    def info(self, name: str) -> TensorInfo:
        return self._file.info(name)

    def __getitem__(self, name: str) -> QuantArray:
        return self._file[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __contains__(self, name: object) -> bool:
        return name in self._file

    def __len__(self) -> int:
        return len(self._file)


class Pruned(View):
    """A view of a model without some layers; later layers get lower numbers.

    ``metadata`` is that before pruning, which llama.cpp's mixes read; :meth:`changes` has the new.
    """

    def __init__(self, file: GGUFFile, layers: Sequence[int]) -> None:
        super().__init__(file)
        there = sorted({int(match[1]) for name in file if (match := LAYER.search(name))})
        strange = [layer for layer in layers if layer not in there]
        if strange:
            has = f"layers {there[0]} to {there[-1]}" if there else "no tensor of a layer (blk.N.…)"
            raise ConvertError(
                f"prune layers {', '.join(map(str, layers))}: there is no layer {strange[0]}; "
                f"{file.path} has {has}; choose among those"
            )
        if there and set(layers) >= set(there):
            raise ConvertError(
                f"prune layers {', '.join(map(str, layers))}: the model has no others; leave some "
                f"of the {len(there)}"
            )
        left = [layer for layer in there if layer not in layers]
        # Numbers before the first that goes stay, also where some are missing.
        first = min(layers, default=0)
        self._moved = {old: old for old in left if old < first}
        behind = [old for old in left if old >= first]
        start = max(self._moved, default=-1) + 1
        self._moved |= {old: start + i for i, old in enumerate(behind)}
        self._layers, self._count = set(layers), start + len(behind)
        self._old = {new: name for name in file if (new := self._renamed(name)) is not None}

    def _renamed(self, name: str) -> str | None:
        match = LAYER.search(name)
        if match is None:
            return name
        if int(match[1]) in self._layers:
            return None
        return f"{name[: match.start(1)]}{self._moved[int(match[1])]}{name[match.end(1) :]}"

    @property
    def parts(self) -> list[int]:
        """Tensors left in each part of a split model."""
        old = set(self._old.values())
        return [sum(name in old for name in part.header.tensors) for part in self._file.parts]

    def changes(self) -> dict[str, Any]:
        """Metadata of the smaller model: its number of layers, and lists with an entry for each layer."""
        arch = self.metadata.get("general.architecture")
        key = f"{arch}.block_count"
        count = self.metadata.get(key)
        changes: dict[str, Any] = {key: Typed(self._count, "uint32")} if isinstance(arch, str) else {}
        for name in self.metadata:
            words = self.metadata.type(name)
            if not (name.startswith(f"{arch}.") and words.startswith("array of ") and isinstance(count, int)):
                continue
            values = self.metadata[name]
            if len(values) == count and words != "array of array":
                left = [value for i, value in enumerate(values) if i not in self._layers]
                changes[name] = Typed(left, words.removeprefix("array of "))
        return changes

    def importance(self, imatrix: Mapping[str, Any]) -> Mapping[str, Any]:
        """An importance matrix of the whole model under the new names."""
        rows = {new: imatrix[old] for new, old in self._old.items() if old in imatrix}
        return imatrix.of(rows) if isinstance(imatrix, Imatrix) else rows

    def info(self, name: str) -> TensorInfo:
        return self._file.info(self._old.get(name, name))

    def __getitem__(self, name: str) -> QuantArray:
        return self._file[self._old.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._old)

    def __contains__(self, name: object) -> bool:
        return name in self._old

    def __len__(self) -> int:
        return len(self._old)
