"""Bytes over the sockets of a ``Group`` until a deadline, which a slow peer cannot put off."""

from __future__ import annotations

import socket
from time import monotonic


def left(end: float) -> float:
    """The seconds until the deadline ``end``; TimeoutError if it is over."""
    seconds = end - monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


def send(peer: socket.socket, data: bytes | memoryview, end: float) -> None:
    """Send all bytes of ``data``."""
    peer.settimeout(left(end))
    peer.sendall(data)


def read(peer: socket.socket, count: int, end: float) -> bytes:
    """Read exactly this number of bytes."""
    data = bytearray(count)
    read_into(peer, memoryview(data), end)
    return bytes(data)


def read_into(peer: socket.socket, view: memoryview, end: float) -> None:
    """Read bytes until the memory is full."""
    done = 0
    while done < len(view):
        peer.settimeout(left(end))
        count = peer.recv_into(view[done:])
        if not count:
            raise ConnectionResetError("its end of the connection is closed")
        done += count
