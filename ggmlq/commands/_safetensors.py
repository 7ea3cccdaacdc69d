"""``info``, ``show`` and ``validate`` on safetensors; the options are those for GGUF files."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..base.terminal import table
from ..base.text import count, number, size
from ..safetensors import SafetensorsFile
from . import _plain


def _entries(file: SafetensorsFile) -> list[Any]:
    lacks = set(file.missing)
    return [file.info(name) for name in file if name not in lacks]


def tensors(file: SafetensorsFile) -> list[dict[str, Any]]:
    """The facts about each tensor."""
    return [
        {"name": e.name, "type": e.dtype, "shape": list(e.shape), "bytes": e.nbytes} for e in _entries(file)
    ]


def summary(file: SafetensorsFile) -> dict[str, Any]:
    """The facts about a model."""
    entries = _entries(file)
    types = Counter[str]()
    for entry in entries:
        types[entry.dtype] += entry.nbytes
    scheme = file.quantization
    return {
        "files": list(file.paths),
        "file_bytes": sum(part.source.size for part in file.parts),
        "format": "safetensors",
        "architecture": next(iter(file.config.get("architectures") or []), None),
        "parameters": sum(prod(entry.shape) for entry in entries),
        "tensor_bytes": sum(entry.nbytes for entry in entries),
        "quantization": scheme._asdict() if scheme.method else None,
        "missing": sorted(file.missing),
        "types": [{"type": kind, "bytes": nbytes} for kind, nbytes in types.most_common()],
    }


def described(facts: dict[str, Any]) -> list[str]:
    """The facts as text."""
    more = f" and {count(len(facts['files']) - 1, 'more file')}" if len(facts["files"]) > 1 else ""
    scheme = facts["quantization"]
    head = [
        f"{_plain.name(facts['files'][0])}{more}",
        f"safetensors, {size(facts['file_bytes'])}, architecture {_plain.value(facts['architecture'])}",
        f"{number(facts['parameters'])} parameters, {size(facts['tensor_bytes'])}",
    ]
    head += [f"quantization {', '.join(f'{k} {v}' for k, v in scheme.items() if v)}"] if scheme else []
    if facts["missing"]:
        head += [f"missing, as of a partial download: {count(len(facts['missing']), 'tensor')}"]
    rows = [[t["type"], size(t["bytes"])] for t in facts["types"]]
    return [table(["type", "size"], rows), "\n".join(head)]


def floats(x: Any) -> QuantArray:
    """A tensor as ``show`` takes it: a QuantArray as it is, any other array as an f32 one of its values."""
    if isinstance(x, QuantArray):
        return x
    values = np.ascontiguousarray(x.dequantize() if isinstance(x, ScaledArray) else x, np.float32)
    return QuantArray.from_bytes(values, "f32", values.shape)
