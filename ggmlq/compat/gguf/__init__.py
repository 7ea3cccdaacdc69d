"""gguf-py's face: what programs import from ``gguf`` to read files and to convert blocks.

    import ggmlq.compat.gguf as gguf                    # was: import gguf
    from ggmlq.compat.gguf import GGUFReader, dequantize

gguf_reader.py  GGUFReader: fields and tensors of a file, made when they are looked at
quants.py       quantize, dequantize, and lengths of rows in bytes
constants.py    types of tensors and of values, with gguf-py's names

A file opens in milliseconds, whatever its vocabulary, and every type is decoded and encoded by compiled code
with ggml's bits. Other names (GGUFWriter, tables of tensor names) come from gguf-py where it is installed.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from . import constants, gguf_reader, quants
from .constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_MAGIC,
    GGUF_VERSION,
    QK_K,
    GGMLQuantizationType,
    GGUFEndian,
    GGUFValueType,
)
from .gguf_reader import GGUFReader, ReaderField, ReaderTensor
from .quants import QuantError, dequantize, quant_shape_from_byte_shape, quant_shape_to_byte_shape, quantize

__all__ = [
    "GGML_QUANT_SIZES",
    "GGUF_DEFAULT_ALIGNMENT",
    "GGUF_MAGIC",
    "GGUF_VERSION",
    "QK_K",
    "GGMLQuantizationType",
    "GGUFEndian",
    "GGUFReader",
    "GGUFValueType",
    "QuantError",
    "ReaderField",
    "ReaderTensor",
    "constants",
    "dequantize",
    "gguf_reader",
    "quant_shape_from_byte_shape",
    "quant_shape_to_byte_shape",
    "quantize",
    "quants",
]


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and find_spec("gguf") is not None:
        theirs = import_module("gguf")
        if hasattr(theirs, name):
            return getattr(theirs, name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}; it has what programs read files with; for the rest "
        "install gguf-py: pip install gguf"
    )
