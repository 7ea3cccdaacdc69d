"""The types that a mix gives to the tensors of a file which is planned and not yet written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .. import convert
from ..arrays.array import QuantArray
from ..convert import mixing
from ..errors import ConvertError
from ..gguf import Metadata
from ..gguf.tensors import TensorInfo


class Planned:
    """A stand-in for a GGUF file that is not written yet, with the facts that a mix needs, without values."""

    byteorder = "little"

    def __init__(self, source: str, metadata: Mapping[str, Any], tensors: Iterable[TensorInfo]) -> None:
        self.path, self.paths = source, (source,)
        self.metadata = Metadata.of(metadata)
        self._infos = {info.name: info for info in tensors}

    def info(self, name: str) -> TensorInfo:
        """The facts about a tensor of the planned file."""
        return self._infos[name]

    def __getitem__(self, name: str) -> QuantArray:
        raise ConvertError(
            f"tensor {name!r} of {self.path}: it is planned only; write the file and open that"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def __len__(self) -> int:
        return len(self._infos)


def is_mix(type: str) -> bool:
    """True for the name of a mix; an error for a name that only resembles one."""
    return mixing.find(type, False) is not None


def planned(file: Planned, type: str) -> convert.Plan:
    """The plan with the types of a mix; an error if it needs an importance matrix, since none is there."""
    try:
        return convert.plan_quantize(file, type)
    except ConvertError as error:
        raise ConvertError(
            f"convert {file.path!r} to {type}: {error}; or in two steps: `ggmlq convert` without --type, "
            "then `ggmlq quantize`, which takes --imatrix and --keep"
        ) from error
