"""A reader of protocol buffers, for ``GRU.from_onnx``: fields of an ONNX file from its bytes.

Protocol buffers are keys and values: a key is a varint, field number · 8 + kind; a value is a varint (0),
8 bytes (1), a length and as many bytes (2), or 4 bytes (5). A message is the bytes of a value of kind 2.
So a file of gigabytes is walked without a schema and without copies, and every length is checked against
the bytes that are left before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import GRUFileError

Value = Any  # an int of kinds 0, 1 and 5, a memoryview of kind 2


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """The varint at a place, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise GRUFileError("it ends within a number: cut short, or no ONNX file")
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & (1 << 64) - 1, at
    raise GRUFileError("it has a number of more than 64 bits: damaged, or no ONNX file")


def fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field of a message, in its order."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind, number = key & 7, key >> 3
        if kind == 0:
            value, at = varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise GRUFileError(f"it has a field of kind {kind}, which there is not: damaged, or no ONNX file")
        if not number or size > len(data) - at:
            raise GRUFileError("it has a field that is longer than what is left: cut short, or no ONNX file")
        part = data[at : at + size]
        at += size
        yield number, part if kind == 2 else int.from_bytes(part, "little")


def integers(value: Value) -> list[int]:
    """The signed integers of a repeated field: one of them, or all packed in one value."""
    if isinstance(value, int):
        return [_signed(value)]
    listed, at = [], 0
    while at < len(value):
        one, at = varint(value, at)
        listed.append(_signed(one))
    return listed


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def text(value: Value) -> str:
    """The text that a value of kind 2 holds."""
    if isinstance(value, int):
        raise GRUFileError("it has a number where a name belongs: damaged, or no ONNX file")
    return bytes(value).decode("utf-8", "replace")


def message(value: Value) -> memoryview:
    """The bytes of a message that lies within another one."""
    if isinstance(value, int):
        raise GRUFileError("it has a number where a message belongs: damaged, or no ONNX file")
    content: memoryview = value
    return content
