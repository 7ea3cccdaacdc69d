"""Types of tensors and of metadata, and sizes of blocks, under gguf-py's names."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import ggmlq as gq

from ...gguf.header import DEFAULT_ALIGNMENT
from ...gguf.valuetype import ValueType

GGUF_MAGIC = 0x46554747  # "GGUF"
GGUF_VERSION = 3
GGUF_DEFAULT_ALIGNMENT = DEFAULT_ALIGNMENT
QK_K = 256


def _numbers(name: str, members: dict[str, int]) -> Any:
    """An enumeration of these numbers, which belongs to this module."""
    return IntEnum(name, members, module=__name__)


GGMLQuantizationType = _numbers("GGMLQuantizationType", {f.name.upper(): f.id for f in gq.formats.values()})
GGUFValueType = _numbers("GGUFValueType", {kind.name: int(kind) for kind in ValueType})
GGML_QUANT_SIZES: dict[Any, tuple[int, int]] = {
    GGMLQuantizationType(fmt.id): (fmt.block_size, fmt.dtype.itemsize) for fmt in gq.formats.values()
}


class GGUFEndian(IntEnum):
    """The byte order of a file."""

    LITTLE = 0
    BIG = 1
