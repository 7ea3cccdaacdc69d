"""Operands and results from files: npy, npz, raw bytes, tensors of a GGUF file."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..array import QuantArray
from ..errors import DumpError, ShapeError
from ..formats import FORMATS

Arrays = dict[str, NDArray[Any]]


def shape(text: str) -> tuple[int, ...]:
    """``4x512`` as (4, 512)."""
    if not re.fullmatch(r"\d+([x×,]\d+)*", text):
        raise ShapeError(f"shape {text!r}: lengths with x between them are expected; write 4x512")
    return tuple(int(n) for n in re.split("[x×,]", text))


def read(path: str) -> Arrays | NDArray[Any] | bytes:
    """What a file holds: named arrays, one array, or bytes."""
    try:
        if zipfile.is_zipfile(path):
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        data = Path(path).read_bytes()
        if data[:6] == b"\x93NUMPY":
            found: NDArray[Any] = np.load(path, allow_pickle=False)
            return found
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror or error}; check the path") from error
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise DumpError(f"{path}: a damaged npy or npz file: {error}; write it again") from error
    if path.endswith((".npy", ".npz")):
        raise DumpError(f"{path}: named like NumPy's files, but it is none; dump with np.save or np.savez")
    return data


def floats(path: str, key: str, dims: tuple[int, ...] | None, columns: int) -> NDArray[Any]:
    """One array of floats: npy, the entry ``key`` (or the only one) of an npz, or raw float32."""
    found = read(path)
    if isinstance(found, dict):
        found = _entry(path, found, key)
    if isinstance(found, bytes):
        return _raw(path, found, dims, columns)
    if found.dtype.kind != "f":
        raise DumpError(f"{path}: {key} is {found.dtype}; floats are expected; dump it as float32")
    if dims is None:
        return found
    if found.size != int(np.prod(dims)):
        raise ShapeError(f"{path}: {found.size} elements, --shape asks for {dims}; they must agree")
    return found.reshape(dims)


def _raw(path: str, data: bytes, dims: tuple[int, ...] | None, columns: int) -> NDArray[Any]:
    if len(data) % 4 or (dims is None and (columns == 0 or len(data) % (4 * columns))):
        raise ShapeError(
            f"{path}: {len(data)} raw bytes are no rows of {columns} float32; "
            "dump float32, and say --shape MxN if y holds other rows"
        )
    values = np.frombuffer(data, "<f4")
    if dims is None:
        return values.reshape(-1, columns)
    if values.size != int(np.prod(dims)):
        raise ShapeError(f"{path}: {values.size} float32, --shape asks for {dims}; they must agree")
    return values.reshape(dims)


def _entry(path: str, arrays: Arrays, key: str) -> NDArray[Any]:
    if key in arrays:
        return arrays[key]
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    raise DumpError(f"{path}: holds {', '.join(sorted(arrays)) or 'nothing'}; name the array {key!r} in it")


@dataclass(frozen=True)
class WeightsFile:
    """Which weights, as the command line says it."""

    path: str
    tensor: str | None
    format: str | None
    shape: tuple[int, ...] | None


def weights(asked: WeightsFile) -> QuantArray:
    """Weights from a GGUF tensor, from an npz with raw, format and shape, or from raw bytes."""
    try:
        with open(asked.path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise DumpError(f"{asked.path}: cannot be read: {error.strerror}; check the path") from error
    if magic in (b"GGUF", b"FUGG"):
        return _tensor(asked)
    found = read(asked.path)
    if isinstance(found, dict):
        raw = _entry(asked.path, found, "raw")
        name = asked.format or _text(asked.path, found, "format")
        dims = asked.shape or tuple(int(n) for n in _named(asked.path, found, "shape"))
        return QuantArray.from_bytes(np.ascontiguousarray(raw), name, dims)
    if asked.format is None or asked.shape is None:
        raise DumpError(
            f"{asked.path}: raw bytes of weights have no type; say --format q4_0 --weights-shape NxK, "
            "or pass a GGUF file with --tensor"
        )
    data = found if isinstance(found, bytes) else np.ascontiguousarray(found)
    return QuantArray.from_bytes(data, FORMATS[asked.format], asked.shape)


def _named(path: str, arrays: Arrays, key: str) -> NDArray[Any]:
    if key not in arrays:
        raise DumpError(f"{path}: there is no {key!r} beside the bytes; weights need raw, format and shape")
    return np.asarray(arrays[key]).reshape(-1)


def _text(path: str, arrays: Arrays, key: str) -> str:
    return str(_named(path, arrays, key)[0])


def _tensor(asked: WeightsFile) -> QuantArray:
    with gguf.open(asked.path) as file:
        if asked.tensor is None and len(file) != 1:
            raise DumpError(f"{asked.path}: it holds {len(file)} tensors; name one with --tensor")
        return file[asked.tensor if asked.tensor is not None else next(iter(file))]
