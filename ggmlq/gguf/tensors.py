"""The table of tensors in a GGUF header: its entries read, and checked before any tensor is read."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import NamedTuple, NoReturn

import numpy as np

from ..arrays.array import QuantArray
from ..errors import FormatError, GGUFError
from ..formats import FORMATS, Format
from .source import Source

MAX_DIMS = 4  # of ggml's tensors
LEAST_BYTES = 24  # of a tensor's entry: length of the name, number of dims, type, offset
MOST_BYTES = 2**63 - 1  # of a tensor: ggml and NumPy count in signed 64 bits


class TensorInfo(NamedTuple):
    """One entry of the table: the name, place, type and shape of a tensor."""

    name: str
    format: Format
    shape: tuple[int, ...]  # NumPy order, the reverse of ggml's
    offset: int  # from the start of the data
    nbytes: int
    entry: int  # byte of the header at which its entry starts


def read_info(source: Source, at: int) -> tuple[TensorInfo, int]:
    """One entry of the table, and the place of its end."""
    entry = at
    name, at = source.name(at, "the name of a tensor")
    n_dims = source.u32(at, f"tensor {name!r}")
    if n_dims > MAX_DIMS:
        source.fail(
            at, f"tensor {name!r} has {n_dims} dimensions; ggml has 0 to {MAX_DIMS}; the file is damaged"
        )
    source.need(at + 4, 8 * n_dims + 12, f"tensor {name!r}")
    ne = [source.u64(at + 4 + 8 * i, "a dimension") for i in range(n_dims)]
    at += 4 + 8 * n_dims
    number, offset = source.u32(at, "a type"), source.u64(at + 4, "an offset")
    try:
        fmt = FORMATS[number]
    except FormatError as error:
        raise GGUFError(
            f"gguf: {source.path}: at byte {at}: tensor {name!r} has type {number}: {error}"
        ) from None
    info = TensorInfo(name, fmt, tuple(reversed(ne)), offset, _nbytes(source, entry, name, fmt, ne), entry)
    return info, at + 12


def _nbytes(source: Source, entry: int, name: str, fmt: Format, ne: list[int]) -> int:
    """Bytes of a tensor; Python's integers do not overflow, ggml's and NumPy's must not either."""
    if prod(max(n, 1) for n in ne) * fmt.dtype.itemsize > MOST_BYTES:
        source.fail(
            entry,
            f"tensor {name!r} has dimensions {ne}, more bytes than 64 bits can count; the file is damaged",
        )
    row = ne[0] if ne else 1
    if row % fmt.block_size:
        source.fail(
            entry,
            f"tensor {name!r} has rows of {row} elements, {fmt.name} blocks hold {fmt.block_size}; the file "
            "is damaged",
        )
    return prod(ne) // fmt.block_size * fmt.dtype.itemsize


def check_places(source: Source, infos: list[TensorInfo], start: int, alignment: int) -> frozenset[str]:
    """Refuse tensors that are not aligned, lie outside of the file, or overlap; the names of missing ones.

    If tensors follow each other without gaps, as all writers put them, and the file ends too early, it is
    taken for a download that was cut off. The result names the tensors that it lacks.
    """
    room = source.size - start
    whole = _follow(infos, alignment)
    absent = set()
    for info in infos:
        if info.offset % alignment:
            source.fail(
                info.entry,
                f"tensor {info.name!r} has offset {info.offset}, no multiple of the alignment {alignment}; "
                "the file is damaged",
            )
        # The padding before an empty tensor may be missing at the end of a file.
        outside = info.offset + info.nbytes > room + (0 if info.nbytes else alignment - 1)
        if outside and whole:
            absent.add(info.name)
        elif outside:
            source.fail(
                info.entry,
                f"tensor {info.name!r} needs bytes {start + info.offset} to "
                f"{start + info.offset + info.nbytes}, the file has {source.size}; it is cut short or "
                "damaged, fetch it again",
            )
    placed = sorted((info for info in infos if info.nbytes), key=lambda info: info.offset)
    for a, b in pairwise(placed):
        if a.offset + a.nbytes > b.offset:
            source.fail(
                b.entry,
                f"tensor {b.name!r} at offset {b.offset} overlaps {a.name!r}, which ends at "
                f"{a.offset + a.nbytes}; the file is damaged",
            )
    return frozenset(absent)


def _follow(infos: list[TensorInfo], alignment: int) -> bool:
    """True where each tensor starts at the end of the one before it."""
    expected = 0
    for info in sorted(infos, key=lambda info: (info.offset, info.nbytes)):
        if info.offset != expected:
            return False
        expected = -(-(info.offset + info.nbytes) // alignment) * alignment
    return True


def fail_absent(source: Source, info: TensorInfo, start: int) -> NoReturn:
    """Raise the error for a tensor that a cut file lacks."""
    source.fail(
        info.entry,
        f"tensor {info.name!r} needs bytes {start + info.offset} to {start + info.offset + info.nbytes}, "
        f"the file has {source.size}; the download was cut off; fetch the file again",
    )


def piece(q: QuantArray, start: int, shape: tuple[int, ...]) -> QuantArray:
    """A view of some elements of an array on the host, from element ``start`` on, in another shape.

    Whole blocks: ``start`` and the rows of ``shape`` are multiples of the format's.
    """
    size = q.format.block_size
    blocks = q.blocks.reshape(-1)[start // size : (start + prod(shape)) // size]
    blocks = blocks.reshape(*shape[:-1], shape[-1] // size)
    return QuantArray(q.format, shape, blocks.view(np.uint8), blocks.dtype != q.format.dtype)


def view(source: Source, info: TensorInfo, start: int) -> QuantArray:
    """The tensor as a QuantArray on the memory map; not a byte of it is touched."""
    begin = start + info.offset if info.nbytes else 0  # an empty tensor may claim any place
    row_bytes = info.format.row_bytes(info.shape[-1] if info.shape else 1)
    raw = source.stored(info.name, begin, info.nbytes).reshape(*info.shape[:-1], row_bytes)
    swapped = source.byteorder == "big" and info.format.dtype.newbyteorder() != info.format.dtype
    return QuantArray(info.format, info.shape, raw, swapped)
