"""Reads operands and results for ``ggmlq diagnose`` from npy, npz, raw bytes and tensors of a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..arrays.array import QuantArray
from ..arrays.dumps import MOST_BYTES, Dump
from ..arrays.scaled import ScaledArray
from ..errors import DumpError, ShapeError
from ..formats import FORMATS

SPARE = 1 << 26  # bytes of an array that are read whatever it belongs to: a wrong shape is then told as such


def floats(
    dump: Dump, key: str, dims: tuple[int, ...] | None, columns: int, most: int = MOST_BYTES
) -> NDArray[Any]:
    """One array of floats: npy, the entry ``key`` (or the only one) of an npz, or raw float32."""
    if not (dump.is_array or dump.is_archive):
        return _raw(dump, dims, columns)
    kind = dump.layout(key).dtype
    if kind.kind != "f":
        raise DumpError(f"{dump.path}: {key} is {kind}; floats are expected; dump it as float32")
    array = dump.array(key, most)
    if dims is None:
        return array
    if array.size != prod(dims):
        raise ShapeError(f"{dump.path}: {array.size} elements, --shape asks for {dims}; they must agree")
    return array.reshape(dims)


def _raw(dump: Dump, dims: tuple[int, ...] | None, columns: int) -> NDArray[Any]:
    if dump.size % 4 or (dims is None and (columns == 0 or dump.size % (4 * columns))):
        raise ShapeError(
            f"{dump.path}: {dump.size} raw bytes are no rows of {columns} float32; "
            "dump float32, and say --shape MxN if y holds other rows"
        )
    if dims is not None and dump.size != 4 * prod(dims):
        raise ShapeError(f"{dump.path}: {dump.size // 4} float32, --shape asks for {dims}; they must agree")
    return np.frombuffer(dump.raw(), "<f4").reshape(dims if dims is not None else (-1, columns))


@dataclass(frozen=True)
class WeightsFile:
    """The weights that the command line names."""

    path: str
    tensor: str | None
    format: str | None
    shape: tuple[int, ...] | None


def weights(source: WeightsFile) -> QuantArray:
    """Weights from a GGUF tensor, from an npz with raw, format and shape, or from raw bytes."""
    dump = Dump(source.path)
    if dump.magic[:4] in (b"GGUF", b"FUGG"):
        return _tensor(source)
    if dump.is_archive:
        fmt = FORMATS[source.format or dump.text("format")]
        dims = source.shape or dump.lengths("shape")
        return QuantArray.from_bytes(_bytes(dump, prod(dims), fmt.dtype.itemsize), fmt, dims)
    if source.format is None or source.shape is None:
        options = {"--format TYPE": source.format, "--weights-shape NxK": source.shape}
        lacks = " and ".join(option for option, value in options.items() if value is None)
        raise DumpError(
            f"{source.path}: raw bytes of weights have neither type nor shape; {lacks} "
            f"{'are' if ' and ' in lacks else 'is'} missing; add it, or pass a GGUF file with --tensor"
        )
    fmt = FORMATS[source.format]
    data = _bytes(dump, prod(source.shape), fmt.dtype.itemsize) if dump.is_array else dump.raw()
    return QuantArray.from_bytes(data, fmt, source.shape)


def scaled(dump: Dump, name: str) -> ScaledArray | None:
    """An array with scales out of an npz: ``w_codes``, ``w_scales``, ``w_code`` and ``w_tile``.

    In a tile 0 is a whole axis; ``w_zeros`` may be left out. None where the npz holds no such thing.
    """
    if not dump.is_archive or f"{name}_codes" not in dump:
        return None
    codes = dump.array(f"{name}_codes")
    most = max(SPARE, 8 * codes.size)  # of scales or zero points there is one an element at most
    zeros = dump.array(f"{name}_zeros", most) if f"{name}_zeros" in dump else None
    tile = tuple(n or None for n in dump.lengths(f"{name}_tile"))
    return ScaledArray(codes, dump.array(f"{name}_scales", most), dump.text(f"{name}_code"), tile, zeros)


def _bytes(dump: Dump, elements: int, itemsize: int) -> NDArray[Any]:
    """The array ``raw``; no block holds less than one element, so more bytes than that are damage."""
    return np.ascontiguousarray(dump.array("raw", max(SPARE, elements * itemsize)))


def _tensor(source: WeightsFile) -> QuantArray:
    with gguf.open(source.path) as file:
        if source.tensor is None and len(file) != 1:
            raise DumpError(f"{source.path}: it holds {len(file)} tensors; name one with --tensor")
        return file[source.tensor if source.tensor is not None else next(iter(file))]
