"""What ``info``, ``show`` and ``validate`` tell of safetensors; the options are those for GGUF files."""

from __future__ import annotations

import os
from collections import Counter
from math import prod
from typing import Any

import numpy as np

from ..array import QuantArray
from ..safetensors import SafetensorsFile
from ..scaled import ScaledArray
from ..text import size, table
from . import _plain


def facts(file: SafetensorsFile, tensors: bool, metadata: bool) -> dict[str, Any]:
    """What is in a model."""
    lacks = set(file.missing)
    entries = [file.info(name) for name in file if name not in lacks]
    types = Counter[str]()
    for entry in entries:
        types[entry.dtype] += entry.nbytes
    said = file.quantization
    found: dict[str, Any] = {
        "files": list(file.paths),
        "file_bytes": sum(os.path.getsize(path) for path in file.paths),
        "format": "safetensors",
        "architecture": next(iter(file.config.get("architectures") or []), None),
        "parameters": sum(prod(entry.shape) for entry in entries),
        "tensor_bytes": sum(entry.nbytes for entry in entries),
        "quantization": said._asdict() if said.method else None,
        "missing": sorted(lacks),
        "types": [{"type": kind, "bytes": nbytes} for kind, nbytes in types.most_common()],
    }
    if tensors:
        found["tensors"] = [
            {"name": e.name, "type": e.dtype, "shape": list(e.shape), "bytes": e.nbytes} for e in entries
        ]
    if metadata:
        found["metadata"] = dict(file.metadata)
    return found


def described(found: dict[str, Any]) -> list[str]:
    """The same as text."""
    more = f" and {len(found['files']) - 1} more files" if len(found["files"]) > 1 else ""
    said = found["quantization"]
    head = [
        f"{_plain.name(found['files'][0])}{more}",
        f"safetensors, {size(found['file_bytes'])}, architecture {_plain.value(found['architecture'])}",
        f"{found['parameters']} numbers, {size(found['tensor_bytes'])}",
    ]
    head += [f"quantization {', '.join(f'{k} {v}' for k, v in said.items() if v)}"] if said else []
    head += [f"{len(found['missing'])} tensors are missing: a partial download"] if found["missing"] else []
    parts = [
        "\n".join(head),
        table(["type", "size"], [[t["type"], size(t["bytes"])] for t in found["types"]]),
    ]
    if "tensors" in found:
        rows = [
            [
                _plain.name(t["name"]),
                t["type"],
                " x ".join(map(str, t["shape"])) or "scalar",
                size(t["bytes"]),
            ]
            for t in found["tensors"]
        ]
        parts.append(table(["tensor", "type", "shape", "size"], rows))
    if found.get("metadata"):
        rows = [[_plain.name(key), _plain.value(text)] for key, text in found["metadata"].items()]
        parts.append(table(["key", "value"], rows))
    return parts


def floats(x: Any) -> QuantArray:
    """A tensor as ``show`` takes it: what is no QuantArray as its values in float32."""
    if isinstance(x, QuantArray):
        return x
    values = np.ascontiguousarray(x.dequantize() if isinstance(x, ScaledArray) else x, np.float32)
    return QuantArray.from_bytes(values, "f32", values.shape)
