"""``Wire``: sums and copies of arrays between the processes of a ``Group`` over sockets, all through rank 0.

It is for tests, and for sums of a few machines without GPUs: rank 0 adds all arrays and sends the results
(meeting.py connects the processes). Messages are a kind, a description and bytes; the receiver knows their
number. Nothing that arrives is run or unpickled, and error messages escape its text. A rank that waits too
long raises an error that names the rank it waited for.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.text import printable
from ..errors import GroupError
from .meeting import connected, gathered
from .ranks import Rank
from .sockets import read, read_into, send

HEAD = struct.Struct("<4sIQ")  # kind, bytes of the description, bytes that follow
LONGEST = 4096  # bytes of a description, or of the text of a failure
SLOWEST = 1 << 20  # bytes a second of a connection that is waited for
SUM, HAND, FAIL = b"sum\0", b"hand", b"fail"


class Wire:
    """The connections of one process: to rank 0, or of rank 0 to all others."""

    def __init__(self, me: Rank, timeout: float) -> None:
        self.me, self.timeout = me, timeout
        self._lock = threading.Lock()
        self._peers: dict[int, socket.socket] = {}
        with self._failing("meeting"):
            self._peers = gathered(me, timeout) if me.rank == 0 else {0: connected(me, timeout)}

    # --- what they do together ------------------------------------------------------------

    def sum(self, x: NDArray[Any]) -> NDArray[Any]:
        """The sum of arrays of one shape and type, added in the order of the ranks."""
        description = f"{x.dtype.str} {x.shape}"
        with self._lock, self._failing("sum"):
            end = self._end(x.nbytes)
            if self.me.rank:
                self._send(0, SUM, description, x, end)
                return self._fetch(0, SUM, description, np.empty_like(x), end)
            total, term = x.copy(), np.empty_like(x)
            for rank in range(1, self.me.world):
                self._fetch(rank, SUM, description, term, end)
                with np.errstate(over="ignore", invalid="ignore"):
                    total += term
            for rank in self._peers:
                self._send(rank, SUM, description, total, end)
            return total

    def hand(self, x: NDArray[Any], root: int) -> NDArray[Any]:
        """Copy the array of rank ``root`` into the arrays of all other ranks."""
        with self._lock, self._failing("broadcast"):
            return self._hand(x, root, self._end(x.nbytes))

    def _hand(self, x: NDArray[Any], root: int, end: float) -> NDArray[Any]:
        description = f"{x.dtype.str} {x.shape} from {root}"
        if self.me.rank:
            if self.me.rank == root:
                self._send(0, HAND, description, x, end)
            return self._fetch(0, HAND, description, x, end)
        if root:
            self._fetch(root, HAND, description, x, end)
        for rank in self._peers:
            self._send(rank, HAND, description, x, end)
        return x

    def sizes(self, n: int) -> list[int]:
        """The numbers ``n`` that the ranks pass, in the order of the ranks."""
        lengths = np.zeros(self.me.world, np.int64)
        lengths[self.me.rank] = n
        return [int(length) for length in self.sum(lengths)]

    def join(self, x: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
        """The arrays of all ranks, in their order; ``sizes`` are the lengths of their first axes."""
        parts = [
            x if r == self.me.rank else np.empty((n, *x.shape[1:]), x.dtype) for r, n in enumerate(sizes)
        ]
        with self._lock, self._failing("gather"):
            end = self._end(sum(part.nbytes for part in parts))
            return [self._hand(part, rank, end) for rank, part in enumerate(parts)]

    # --- messages -------------------------------------------------------------------------

    def _end(self, nbytes: int) -> float:
        """The deadline of an operation: the timeout, and the time that arrays of this size travel."""
        return time.monotonic() + self.timeout + 2 * (self.me.world - 1) * nbytes / SLOWEST

    def _send(self, rank: int, kind: bytes, description: str, data: NDArray[Any], end: float) -> None:
        peer, text = self._peers[rank], description.encode()[:LONGEST]
        with self._hearing(rank):
            send(peer, HEAD.pack(kind, len(text), data.nbytes) + text, end)
            if data.nbytes:
                send(peer, np.ascontiguousarray(data).reshape(-1).view(np.uint8).data, end)

    def _fetch(
        self, rank: int, kind: bytes, description: str, into: NDArray[Any], end: float
    ) -> NDArray[Any]:
        """Receive a message into the array; it must have this kind, this description and the array's size."""
        peer = self._peers[rank]
        with self._hearing(rank):
            kind_there, length, nbytes = HEAD.unpack(read(peer, HEAD.size, end))
            text = read(peer, length, end) if length <= LONGEST else b"?"
        if kind_there == FAIL:
            raise GroupError(f"{self}: rank {rank} failed: {_shown(text)}")
        if (kind_there, text, nbytes) != (kind, description.encode(), into.nbytes):
            raise GroupError(
                f"{self}: this rank is at {_shown(kind)} of {description}, rank {rank} at "
                f"{_shown(kind_there)} of {_shown(text)}; all ranks call the same operations in the same "
                "order, with arrays of one shape and type"
            )
        if nbytes:
            view = into if into.flags.c_contiguous else np.empty(into.shape, into.dtype)
            with self._hearing(rank):
                read_into(peer, view.reshape(-1).view(np.uint8).data, end)
            if view is not into:
                into[...] = view
        return into

    @contextmanager
    def _hearing(self, rank: int) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise GroupError(
                f"{self}: rank {rank} was not done within {self.timeout:g} s; all ranks call the same "
                "operations in the same order; look whether it hangs, or pass a longer timeout="
            ) from None
        except OSError as error:
            raise GroupError(
                f"{self}: rank {rank} ended or hung up ({error}); look at what it printed, and start "
                "all again"
            ) from error

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """On an error tell all ranks and close the connections: messages under way are of no use then."""
        try:
            yield
        except BaseException as error:
            for peer in self._peers.values():
                with contextlib.suppress(OSError):
                    text = f"{what}: {error}".encode()[:LONGEST]
                    peer.settimeout(1)
                    peer.sendall(HEAD.pack(FAIL, len(text), 0) + text)
            self.close()
            if isinstance(error, OSError) and not isinstance(error, GroupError):
                raise GroupError(
                    f"{self}: {what} failed ({error}); a process has ended, or the address or port is not "
                    "free; start all again, GGMLQ_PORT names another port"
                ) from error
            if isinstance(error, KeyError):
                raise GroupError(f"{self}: {what}: the group is closed; make another one") from None
            raise

    def close(self) -> None:
        """Close the connections to all ranks."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    def __str__(self) -> str:
        return str(self.me)


def _shown(data: bytes) -> str:
    """Words of another process, as a message may show them."""
    return printable(data.rstrip(b"\0").decode(errors="replace")).replace("\n", r"\n")
