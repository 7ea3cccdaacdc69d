"""Processes that talk over sockets: each with the first one, who adds and hands out.

For finding each other, for tests, and for sums of a few machines without GPUs: the first process carries all
of it. Messages are a kind, a description and bytes whose number the receiver knows; nothing that arrives is
run or unpickled, and whoever waits says for whom when its time is over.
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

from ..errors import GroupError
from .ranks import Rank

HELLO = struct.Struct("<8sII")  # who calls: rank and world
MAGIC = b"ggmlq\0g1"
HEAD = struct.Struct("<4sIQ")  # kind, bytes of the description, bytes that follow
LONGEST = 4096  # of a description, and of a failure told
SUM, HAND, FAIL = b"sum\0", b"hand", b"fail"


class Wire:
    """Connections of one process: to the first, or of the first to all."""

    def __init__(self, me: Rank, timeout: float) -> None:
        self.me, self.timeout = me, timeout
        self._lock = threading.Lock()
        self._peers: dict[int, socket.socket] = {}
        with self._failing("meeting"):
            self._peers = self._accepted() if me.rank == 0 else {0: self._connected()}

    # --- meeting ------------------------------------------------------------------------

    def _accepted(self) -> dict[int, socket.socket]:
        peers: dict[int, socket.socket] = {}
        if self.me.world == 1:
            return peers
        end = time.monotonic() + self.timeout
        try:
            with socket.create_server((self.me.address, self.me.port), backlog=self.me.world) as server:
                while len(peers) < self.me.world - 1:
                    server.settimeout(max(end - time.monotonic(), 1e-3))
                    self._greeted(server.accept()[0], peers, end)
        except TimeoutError:
            missing = sorted({*range(1, self.me.world)} - {*peers})
            self._let_go(peers)
            raise GroupError(
                f"{self}: of {self.me.world} processes these ranks did not arrive within {self.timeout:g} s: "
                f"{missing}; look whether they run and reach this address; a longer timeout= waits for them"
            ) from None
        except BaseException:
            self._let_go(peers)
            raise
        return peers

    def _greeted(self, peer: socket.socket, peers: dict[int, socket.socket], end: float) -> None:
        """A caller that belongs to us; whoever else calls is hung up on."""
        peer.settimeout(min(self.timeout, max(end - time.monotonic(), 1e-3), 10))
        try:
            magic, rank, world = HELLO.unpack(_read(peer, HELLO.size))
        except OSError:
            peer.close()
            return
        if magic != MAGIC or world != self.me.world or not 0 < rank < world or rank in peers:
            with contextlib.suppress(OSError):
                peer.sendall(b"no")
            peer.close()
            return
        self._prepare(peer)
        peer.sendall(b"ok")
        peers[rank] = peer

    def _connected(self) -> socket.socket:
        end, error = time.monotonic() + self.timeout, ""
        while time.monotonic() < end:
            left = max(end - time.monotonic(), 1e-3)
            try:
                peer = socket.create_connection((self.me.address, self.me.port), timeout=left)
            except (ConnectionRefusedError, TimeoutError) as refused:  # rank 0 may be slower
                error = str(refused)
                time.sleep(min(0.05, left))
                continue
            self._prepare(peer)
            try:
                peer.sendall(HELLO.pack(MAGIC, self.me.rank, self.me.world))
                if _read(peer, 2) == b"ok":
                    return peer
            except BaseException:
                peer.close()
                raise
            peer.close()
            raise GroupError(
                f"{self}: whoever listens there does not know this process: another world size, the same "
                "rank twice, or another program; start all with the same numbers, or set GGMLQ_PORT to "
                "a free port"
            )
        raise GroupError(
            f"{self}: rank 0 was not there within {self.timeout:g} s ({error or 'no answer'}); look whether "
            "it runs; MASTER_ADDR and GGMLQ_PORT say where it listens"
        )

    def _prepare(self, peer: socket.socket) -> None:
        peer.settimeout(self.timeout)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # --- what they do together ------------------------------------------------------------

    def sum(self, x: NDArray[Any]) -> NDArray[Any]:
        """The sum of arrays of one shape and type, added in the order of the ranks."""
        said = f"{x.dtype.str} {x.shape}"
        with self._lock, self._failing("sum"):
            if self.me.rank:
                self._send(0, SUM, said, x)
                return self._fetch(0, SUM, said, np.empty_like(x))
            total, term = x.copy(), np.empty_like(x)
            for rank in range(1, self.me.world):
                self._fetch(rank, SUM, said, term)
                with np.errstate(over="ignore", invalid="ignore"):
                    total += term
            for rank in self._peers:
                self._send(rank, SUM, said, total)
            return total

    def hand(self, x: NDArray[Any], root: int) -> NDArray[Any]:
        """The array of one rank, into those of the others."""
        said = f"{x.dtype.str} {x.shape} from {root}"
        with self._lock, self._failing("broadcast"):
            if self.me.rank:
                if self.me.rank == root:
                    self._send(0, HAND, said, x)
                return self._fetch(0, HAND, said, x)
            if root:
                self._fetch(root, HAND, said, x)
            for rank in self._peers:
                self._send(rank, HAND, said, x)
            return x

    def sizes(self, n: int) -> list[int]:
        """A number of each rank."""
        mine = np.zeros(self.me.world, np.int64)
        mine[self.me.rank] = n
        return [int(each) for each in self.sum(mine)]

    def join(self, x: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
        """The arrays of all ranks, whose first axes are so long."""
        parts = [
            x if r == self.me.rank else np.empty((n, *x.shape[1:]), x.dtype) for r, n in enumerate(sizes)
        ]
        return [self.hand(part, rank) for rank, part in enumerate(parts)]

    # --- messages -------------------------------------------------------------------------

    def _send(self, rank: int, kind: bytes, said: str, data: NDArray[Any]) -> None:
        peer, text = self._peers[rank], said.encode()[:LONGEST]
        with self._hearing(rank):
            peer.sendall(HEAD.pack(kind, len(text), data.nbytes) + text)
            if data.nbytes:
                peer.sendall(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)

    def _fetch(self, rank: int, kind: bytes, said: str, into: NDArray[Any]) -> NDArray[Any]:
        """A message that must be of this kind, about this, and as long as the array."""
        peer = self._peers[rank]
        with self._hearing(rank):
            found, length, nbytes = HEAD.unpack(_read(peer, HEAD.size))
            text = _read(peer, length).decode(errors="replace") if length <= LONGEST else "?"
        if found == FAIL:
            raise GroupError(f"{self}: rank {rank} failed: {text}")
        if (found, text, nbytes) != (kind, said, into.nbytes):
            raise GroupError(
                f"{self}: this rank is at {kind.rstrip(bytes(1)).decode()} of {said}, rank {rank} at "
                f"{found.rstrip(bytes(1)).decode(errors='replace')} of {text}; all ranks call the same "
                "operations in the same order, with arrays of one shape and type"
            )
        if nbytes:
            view = into if into.flags.c_contiguous else np.empty(into.shape, into.dtype)
            with self._hearing(rank):
                _read_into(peer, view.reshape(-1).view(np.uint8).data)
            if view is not into:
                into[...] = view
        return into

    @contextmanager
    def _hearing(self, rank: int) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise GroupError(
                f"{self}: rank {rank} said nothing for {self.timeout:g} s; all ranks call the same "
                "operations in the same order; look whether it hangs, or pass a longer timeout="
            ) from None
        except OSError as error:
            raise GroupError(
                f"{self}: rank {rank} ended or hung up ({error}); look at what it printed, and start "
                "all again"
            ) from error

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """After a failure nothing that is on its way can be told apart: everyone is told, and hung up on."""
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
        """Hang up."""
        self._let_go(self._peers)

    def _let_go(self, peers: dict[int, socket.socket]) -> None:
        for peer in peers.values():
            peer.close()
        peers.clear()

    def __str__(self) -> str:
        me = self.me
        return f"rank {me.rank} of {me.world} at {me.address}:{me.port}"


def _read(peer: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    _read_into(peer, memoryview(data))
    return bytes(data)


def _read_into(peer: socket.socket, view: memoryview) -> None:
    done = 0
    while done < len(view):
        got = peer.recv_into(view[done:])
        if not got:
            raise ConnectionResetError("its end of the connection is closed")
        done += got
