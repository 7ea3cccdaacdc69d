"""The processes of a ``Group`` connect by sockets: rank 0 listens, the others call it.

    caller      magic, rank and world       16 bytes
    rank 0      "ok" and 8 random bytes, or "no"
    caller      the 8 bytes again
    rank 0      "in", or "no"

Rank 0 closes the connection of any other caller. It reads from all callers at once, and each has GREETING
seconds, so that one that says nothing, or leaves in the middle, costs the others nothing. This keeps out
other programs and other groups that call by accident; it is no secret, so it stops no attacker.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import selectors
import socket
import struct
import time
from dataclasses import dataclass, field

from ..errors import GroupError
from .ranks import Rank
from .sockets import read, send

HELLO = struct.Struct("<8sII")  # who calls: rank and world
MAGIC = b"ggmlq\0g2"
PROOF = 8  # random bytes that come back: they show that the caller reads the answers
GREETING = 10.0  # seconds
BACKLOG, CALLERS = 128, 256  # that wait to be accepted, and to be heard; then the oldest goes
PAUSE = 0.05  # seconds before rank 0 is called again


# --- rank 0 -----------------------------------------------------------------------------------


def gathered(me: Rank, timeout: float) -> dict[int, socket.socket]:
    """The connections of rank 0 to all other ranks, by rank."""
    if me.world == 1:
        return {}
    end = time.monotonic() + timeout
    with socket.create_server((me.address, me.port), backlog=max(me.world, BACKLOG)) as server:
        door = _Door(server, me)
        try:
            while len(door.peers) < me.world - 1 and (left := end - time.monotonic()) > 0:
                door.serve(left)
            missing = sorted({*range(1, me.world)} - {*door.peers})
            if missing:
                raise GroupError(
                    f"{me}: of {me.world} processes these ranks did not arrive within {timeout:g} s: "
                    f"{missing}; look whether they run and reach this address; a longer timeout= waits for "
                    "them"
                )
            peers, door.peers = door.peers, {}
            return peers
        finally:
            door.close()


@dataclass(eq=False)
class _Caller:
    """A connection that is not yet known to be a rank of the group."""

    peer: socket.socket
    until: float
    rank: int | None = None  # as it says
    proof: bytes = field(default_factory=lambda: secrets.token_bytes(PROOF))
    heard: bytes = b""


class _Door:
    """The listening socket of rank 0 and its callers, all of which are read at once."""

    def __init__(self, server: socket.socket, me: Rank) -> None:
        self._server, self._me = server, me
        self._callers: dict[socket.socket, _Caller] = {}  # the oldest first
        self.peers: dict[int, socket.socket] = {}
        self._waiting = selectors.DefaultSelector()
        server.setblocking(False)
        self._waiting.register(server, selectors.EVENT_READ)

    def serve(self, seconds: float) -> None:
        """Handle the sockets that are ready, and wait for one at most this number of seconds."""
        for caller in self._callers.values():
            seconds = min(seconds, caller.until - time.monotonic())
            break
        for key, _ in self._waiting.select(max(seconds, 0)):
            peer = key.fileobj
            assert isinstance(peer, socket.socket)
            if peer is self._server:
                self._accept()
            elif peer in self._callers:
                self._hear(self._callers[peer])
            elif peer in self.peers.values():
                self._watch(peer)
        now = time.monotonic()
        for caller in [caller for caller in self._callers.values() if caller.until <= now]:
            self._hang_up(caller)

    def _accept(self) -> None:
        try:
            peer = self._server.accept()[0]
        except OSError as error:  # gone already, or this process has no descriptors left
            if error.errno in (errno.EMFILE, errno.ENFILE):
                if not self._callers:
                    raise
                self._hang_up(next(iter(self._callers.values())))
            return
        peer.setblocking(False)
        self._callers[peer] = _Caller(peer, time.monotonic() + GREETING)
        self._waiting.register(peer, selectors.EVENT_READ)
        if len(self._callers) > CALLERS:
            self._hang_up(next(iter(self._callers.values())))

    def _hear(self, caller: _Caller) -> None:
        length = HELLO.size if caller.rank is None else PROOF
        try:
            data = caller.peer.recv(length - len(caller.heard))
            caller.heard += data
            if not data:
                self._hang_up(caller)
            elif len(caller.heard) == length:
                self._greet(caller)
        except BlockingIOError:
            pass
        except OSError:
            self._hang_up(caller)

    def _greet(self, caller: _Caller) -> None:
        """Answer a hello, or a proof: then the caller is a rank."""
        if caller.rank is None:
            magic, rank, world = HELLO.unpack(caller.heard)
            if magic == MAGIC and world == self._me.world and 0 < rank < world and rank not in self.peers:
                caller.peer.send(b"ok" + caller.proof)
                caller.rank, caller.heard = rank, b""
                return
        elif caller.heard == caller.proof and caller.rank not in self.peers:
            caller.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            caller.peer.send(b"in")
            self.peers[caller.rank] = caller.peer
            del self._callers[caller.peer]
            return
        with contextlib.suppress(OSError):
            caller.peer.send(b"no")
        self._hang_up(caller)

    def _watch(self, peer: socket.socket) -> None:
        """Forget a rank that leaves before all are there, so that another process may take its place."""
        try:
            closed = not peer.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            closed = True
        self._waiting.unregister(peer)  # what it sends is read when all are there
        if closed:
            self.peers = {rank: caller for rank, caller in self.peers.items() if caller is not peer}
            peer.close()

    def _hang_up(self, caller: _Caller) -> None:
        self._waiting.unregister(caller.peer)
        del self._callers[caller.peer]
        caller.peer.close()

    def close(self) -> None:
        """Close the connections of callers, and those of ranks that ``gathered`` has not returned."""
        self._waiting.close()
        for peer in (*self._callers, *self.peers.values()):
            peer.close()


# --- the others -------------------------------------------------------------------------------


def connected(me: Rank, timeout: float) -> socket.socket:
    """The connection to rank 0; it is tried again until the timeout, for rank 0 may start later."""
    end, reason = time.monotonic() + timeout, "no answer"
    while (left := end - time.monotonic()) > 0:
        try:
            peer = socket.create_connection((me.address, me.port), timeout=left)
        except (ConnectionError, TimeoutError) as error:
            reason = str(error)
            time.sleep(min(PAUSE, left))
            continue
        try:
            if peer.getsockname() == peer.getpeername():  # a free port may be given to who calls it
                raise ConnectionRefusedError("nobody listens")
            if _is_taken(peer, me, end):
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return peer
        except (ConnectionError, TimeoutError) as error:  # rank 0 may have had too many strangers at once
            reason = str(error)
            peer.close()
            time.sleep(min(PAUSE, left))
            continue
        except BaseException:
            peer.close()
            raise
        peer.close()
        raise GroupError(
            f"{me}: whoever listens there does not know this process: another world size, the same rank "
            "twice, another version of ggmlq, or another program; start all with the same numbers, or set "
            "GGMLQ_PORT to a free port"
        )
    raise GroupError(
        f"{me}: rank 0 was not there within {timeout:g} s ({reason}); look whether it runs; MASTER_ADDR and "
        "GGMLQ_PORT say where it listens"
    )


def _is_taken(peer: socket.socket, me: Rank, end: float) -> bool:
    """Say who calls; False where rank 0 says no."""
    send(peer, HELLO.pack(MAGIC, me.rank, me.world), end)
    if read(peer, 2, end) != b"ok":
        return False
    send(peer, read(peer, PROOF, end), end)
    return read(peer, 2, end) == b"in"
