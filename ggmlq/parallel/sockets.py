"""Bytes over sockets until a deadline: a peer that sends one now and then does not put it off."""

from __future__ import annotations

import socket
from time import monotonic


def left(end: float) -> float:
    """Seconds until then; TimeoutError where there are none."""
    seconds = end - monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


def send(peer: socket.socket, data: bytes | memoryview, end: float) -> None:
    """Send all of it."""
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
