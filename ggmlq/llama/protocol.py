"""What goes through the pipes between the bridge and its worker: one message, then its arrays.

A message is a JSON object; arrays follow it as raw bytes, announced by dtype and shape.
"""

from __future__ import annotations

import json
import struct
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

LENGTH = struct.Struct("<Q")
Arrays = list[NDArray[Any]]


def send(stream: IO[bytes], message: dict[str, Any], arrays: Arrays | None = None) -> None:
    """Write a message with its arrays."""
    whole = [np.ascontiguousarray(array) for array in arrays or []]
    head = json.dumps({**message, "arrays": [[a.dtype.str, list(a.shape)] for a in whole]}).encode()
    stream.write(LENGTH.pack(len(head)) + head)
    for array in whole:
        stream.write(array.reshape(-1).view(np.uint8).data)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], Arrays]:
    """Read a message with its arrays; EOFError where the other side is gone."""
    (length,) = LENGTH.unpack(_exactly(stream, LENGTH.size))
    message = json.loads(bytes(_exactly(stream, length)))
    arrays = []
    for kind, shape in message.pop("arrays"):
        dtype = np.dtype(kind)
        data = _exactly(stream, dtype.itemsize * int(np.prod(shape, dtype=np.int64)))
        arrays.append(np.frombuffer(data, dtype).reshape(shape))
    return message, arrays


def _exactly(stream: IO[bytes], size: int) -> bytearray:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        got = stream.readinto(view[filled:])  # type: ignore[attr-defined]
        if not got:
            raise EOFError("the other end of the pipe is closed")
        filled += got
    return data
