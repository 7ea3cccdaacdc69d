"""A reader of protocol buffers: the fields of a message from its bytes, without a schema and without copies.

A message is keys and values. A key is a varint, field number · 8 + kind; a value is a varint (0), 8 bytes
(1), a length and as many bytes (2), or 4 bytes (5). A message within another one is a value of kind 2. Every
length is checked against the bytes that are left before it is used; what is wrong is a ValueError.
"""

from __future__ import annotations

from collections.abc import Iterator

Value = int | memoryview  # a number of kind 0; the bytes of all others
SIZES = {1: 8, 5: 4}


def fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field of a message, in its order."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = varint(data, at)
        elif kind in SIZES:
            size = SIZES[kind]
        else:
            raise ValueError(f"it has a field of kind {kind}, which there is not, at byte {at}")
        if not number or size > len(data) - at:
            raise ValueError(f"it has a field of {size} bytes at byte {at} of {len(data)}")
        yield number, data[at : at + size]
        at += size


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """The varint at a place, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError(f"it ends within a number at byte {at}")
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & (1 << 64) - 1, at
    raise ValueError(f"it has a number of more than 64 bits at byte {at}")
