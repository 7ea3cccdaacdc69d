"""The meeting of a group's processes: strangers cost nothing, and one deadline holds for all of it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

import numpy as np
import pytest
from test_parallel_ranks import free_port

import ggmlq as gq
from ggmlq.errors import GroupError
from ggmlq.parallel import meeting
from ggmlq.parallel.meeting import HELLO, MAGIC, PROOF
from ggmlq.parallel.wire import FAIL, HEAD


def test_who_is_missing():
    me = gq.parallel.Rank(0, 3, 0, "127.0.0.1", free_port())
    with pytest.raises(GroupError, match=r"did not arrive within 0.2 s: \[1, 2\]"):
        gq.parallel.Group(me, "cpu", timeout=0.2)
    me = gq.parallel.Rank(1, 2, 0, "127.0.0.1", free_port())
    with pytest.raises(GroupError, match=r"rank 0 was not there within 0.2 s"):
        gq.parallel.Group(me, "cpu", timeout=0.2)


# --- strangers ------------------------------------------------------------------------------


def called(port):
    """A connection to rank 0, who may still be about to listen."""
    for _ in range(500):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        time.sleep(0.01)
    raise AssertionError("rank 0 does not listen")


def introduced(port, rank, world):
    """The same, past the door."""
    peer = called(port)
    peer.sendall(HELLO.pack(MAGIC, rank, world))
    assert peer.recv(2) == b"ok"
    peer.sendall(peer.recv(PROOF))
    assert peer.recv(2) == b"in"
    return peer


def reset(peer):
    """End a connection without a goodbye."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@contextlib.contextmanager
def first(world, work, timeout=20.0):
    """Rank 0 in a thread: its port, and what it gave or raised when the block is left."""
    port, ended = free_port(), []

    def run():
        try:
            with gq.parallel.Group(gq.parallel.Rank(0, world, 0, "127.0.0.1", port), "cpu", timeout) as group:
                ended.append(work(group))
        except GroupError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield port, ended
    thread.join(30)
    assert not thread.is_alive()


def add(group):
    return group.all_reduce(np.ones(2)).tolist()


def rank_1(port, world=2):
    with gq.parallel.Group(gq.parallel.Rank(1, world, 0, "127.0.0.1", port), "cpu", 20) as group:
        return add(group)


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", HELLO.pack(MAGIC, 7, 2), HELLO.pack(MAGIC, 1, 9), HELLO.pack(MAGIC, 0, 2)],
)
def test_strangers_are_hung_up_on(data):
    with first(2, add) as (port, ended):
        with called(port) as peer:
            peer.sendall(data)
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(2) == b"no"
                assert peer.recv(2) == b""
        assert rank_1(port) == [2, 2]
    assert ended == [[2, 2]]


@pytest.mark.parametrize("said", [b"", HELLO.pack(MAGIC, 1, 2)[:9], HELLO.pack(MAGIC, 1, 2)])
@pytest.mark.parametrize("heard", [0, 2])
def test_who_leaves_without_a_goodbye_takes_nobody_along(said, heard):
    with first(2, add) as (port, ended):
        for _ in range(10):
            peer = called(port)
            peer.sendall(said)
            if heard and len(said) == HELLO.size:
                assert peer.recv(heard) == b"ok"
            reset(peer)
        assert rank_1(port) == [2, 2]
    assert ended == [[2, 2]]


def test_a_rank_that_leaves_makes_room():
    with first(3, lambda group: group.all_reduce(np.ones(1)).tolist()) as (port, ended):
        introduced(port, 1, 3).close()
        reset(introduced(port, 1, 3))
        with introduced(port, 1, 3) as peer, introduced(port, 2, 3) as other:
            for each in (peer, other):
                each.sendall(HEAD.pack(b"sum\0", 8, 8) + b"<f8 (1,)" + struct.pack("<d", 1))
            for each in (peer, other):
                assert struct.unpack("<d", each.makefile("rb").read(HEAD.size + 16)[-8:]) == (3,)
    assert ended == [[3]]


def test_a_rank_that_is_there_is_not_taken_twice():
    with contextlib.ExitStack() as stack, first(3, add, timeout=0.5) as (port, ended):
        stack.enter_context(introduced(port, 1, 3))
        peer = stack.enter_context(called(port))
        peer.sendall(HELLO.pack(MAGIC, 1, 3))
        assert peer.recv(2) == b"no"
    assert "did not arrive within 0.5 s: [2]" in str(ended[0])


@pytest.mark.parametrize("count", [100, meeting.CALLERS + 50])
def test_silent_strangers_eat_no_time(count):
    start = time.monotonic()
    with contextlib.ExitStack() as strangers, first(2, add) as (port, ended):
        for _ in range(count):
            strangers.enter_context(called(port))
        assert rank_1(port) == [2, 2]
    assert ended == [[2, 2]]
    assert time.monotonic() - start < meeting.GREETING


def test_a_silent_stranger_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(meeting, "GREETING", 0.1)
    with first(2, add) as (port, _):
        with called(port) as peer:
            assert peer.recv(1) == b""
        assert rank_1(port) == [2, 2]


# --- ranks that lie -------------------------------------------------------------------------


def test_lengths_reserve_nothing():
    with first(2, add) as (port, ended), introduced(port, 1, 2) as peer:
        peer.sendall(HEAD.pack(b"sum\0", 3, 1 << 62) + b"<f8" + struct.pack("<d", 1))
    assert "in the same order" in str(ended[0])


def test_a_deadline_is_one_for_all_that_is_done():
    """A byte now and then does not put it off."""
    start = time.monotonic()
    with (
        first(2, lambda group: group.all_reduce(np.ones(1000)), 0.5) as (port, ended),
        introduced(port, 1, 2) as peer,
        contextlib.suppress(OSError),
    ):
        peer.sendall(HEAD.pack(b"sum\0", 11, 8000) + b"<f8 (1000,)")
        while time.monotonic() - start < 10:
            peer.sendall(b"x")
            time.sleep(0.02)
    assert "rank 1 was not done within 0.5 s" in str(ended[0])
    assert time.monotonic() - start < 5


def test_large_arrays_have_more_time():
    with (
        first(2, lambda group: float(group.all_reduce(np.ones(1 << 17))[-1]), 0.2) as (port, ended),
        introduced(port, 1, 2) as peer,
    ):
        peer.sendall(HEAD.pack(b"sum\0", 13, 1 << 20) + b"<f8 (131072,)" + bytes(1 << 19))
        time.sleep(0.4)
        peer.sendall(bytes(1 << 19))
        assert len(peer.makefile("rb").read(HEAD.size + 13 + (1 << 20))) > 1 << 20
    assert ended == [1.0]


@pytest.mark.parametrize("kind", [FAIL, b"\x1b[3m", b"sum\0"])
def test_words_of_others_are_escaped(kind):
    text = b"\x1b[31m\x1b]0;pwn\x07\xc2\x9b\nrank 0: all is well"
    with first(2, add) as (port, ended), introduced(port, 1, 2) as peer:
        peer.sendall(HEAD.pack(kind, len(text), 0) + text)
    assert str(ended[0]).isprintable()
    assert "pwn" in str(ended[0])
