"""The protocol between the bridge and its worker: one message, then its arrays.

A frame is a magic word, the number of the question and the sizes of what follows; a message, which is
a JSON object; arrays as raw bytes, announced by dtype and shape; a last word with the number again.
The library shares the worker's descriptors: a byte that it slips in anywhere must not pass for data.
"""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

MAGIC, LAST = b"\x93ggmlq\r\n", b"\n\rqlmgg\x93"
HEADER = struct.Struct("<8sQQQ")  # magic, number, bytes of the message, bytes of all arrays
TRAILER = struct.Struct("<8sQ")  # last word, number
LONGEST = 1 << 24  # bytes of a message; the largest in use are lists of devices, and tracebacks
KIND = re.compile(r"[<>|][biuf]\d+")  # of the dtypes that go through; NumPy takes many more texts for one
Arrays = list[NDArray[Any]]


class GarbledError(Exception):
    """Bytes that are no frame, or an answer without a request. Never leaves this package."""


class Stream(Protocol):
    """A raw file: it may take or give less than it was asked to."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Bytes read; 0 at the end."""

    def write(self, data: memoryview, /) -> int | None:
        """The number of bytes written."""


def send(stream: Stream, number: int, message: dict[str, Any], arrays: Arrays | None = None) -> None:
    """Write a message with its arrays."""
    whole = [np.ascontiguousarray(array) for array in arrays or []]
    text = json.dumps({**message, "arrays": [[a.dtype.str, list(a.shape)] for a in whole]}).encode()
    _write(stream, HEADER.pack(MAGIC, number, len(text), sum(a.nbytes for a in whole)) + text)
    for array in whole:
        _write(stream, array.reshape(-1).view(np.uint8).data)
    _write(stream, TRAILER.pack(LAST, number))


def receive(stream: Stream, number: int | None = None) -> tuple[int, dict[str, Any], Arrays]:
    """Read a number, a message and its arrays; EOFError where the other side is gone.

    ``number``: that of the question; another one is an error.
    """
    head = _exactly(stream, HEADER.size)
    magic, answered, length, size = HEADER.unpack(head)
    if magic != MAGIC or length > LONGEST:
        raise GarbledError(f"{bytes(head[:16])!r}… where an answer begins")
    if number not in (None, answered):
        raise GarbledError(f"the answer to question {answered} where that to {number} was due")
    message, kinds = _parsed(_exactly(stream, length), size)
    arrays = []
    for dtype, shape in kinds:
        data = _exactly(stream, dtype.itemsize * math.prod(shape))
        arrays.append(np.frombuffer(data, dtype).reshape(shape))
    end = _exactly(stream, TRAILER.size)
    if TRAILER.unpack(end) != (LAST, answered):
        raise GarbledError(f"{bytes(end)!r} where an answer ends")
    return answered, message, arrays


def _parsed(text: bytearray, size: int) -> tuple[dict[str, Any], list[tuple[np.dtype[Any], list[int]]]]:
    """The message, and the dtypes and shapes of the arrays that follow it."""
    try:
        message = json.loads(bytes(text))
        kinds = [(_dtype(kind), shape) for kind, shape in message.pop("arrays")]
        announced = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, SyntaxError) as error:
        raise GarbledError(f"{bytes(text[:40])!r}… where a message stands ({error})") from error
    lengths = [length for _, shape in kinds for length in shape]
    if announced != size or not all(isinstance(n, int) and n >= 0 for n in lengths):
        raise GarbledError(f"arrays {lengths} of {announced} bytes in a frame that holds {size}")
    return message, kinds


def _dtype(text: str) -> np.dtype[Any]:
    if not KIND.fullmatch(text):
        raise ValueError(f"an array of {text!r}")
    return np.dtype(text)


def _write(stream: Stream, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]


def _exactly(stream: Stream, size: int) -> bytearray:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        got = stream.readinto(view[filled:])
        if not got:
            raise EOFError("the other end of the pipe is closed")
        filled += got
    return data
