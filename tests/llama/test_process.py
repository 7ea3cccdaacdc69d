"""The child process: its messages, its death by signal, by exit and by the clock."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from ggmlq.errors import LibraryFailedError, ShapeError
from ggmlq.llama.process import Child
from ggmlq.llama.protocol import receive, send

SERVER = f"""
import sys; sys.path[:] = {sys.path!r}
import os, signal, time
from ggmlq.llama.protocol import receive, send
while True:
    message, arrays = receive(sys.stdin.buffer)
    print("about to", message["do"], file=sys.stderr, flush=True)
    match message["do"]:
        case "add": send(sys.stdout.buffer, {{"n": len(arrays)}}, [sum(arrays)])
        case "refuse": send(sys.stdout.buffer, {{"error": "ShapeError", "text": "too square"}})
        case "stumble": send(sys.stdout.buffer, {{"error": "RuntimeError", "text": "Traceback"}})
        case "abort": os.abort()
        case "segv": os.kill(os.getpid(), signal.SIGSEGV)
        case "exit": os._exit(3)
        case "half": sys.stdout.buffer.write(b"123"); sys.stdout.buffer.flush(); os._exit(0)
        case "hang": time.sleep(600)
"""


@pytest.fixture
def child():
    made = Child(SERVER)
    yield made
    made.close()


def call(child, do, *arrays, timeout=60):
    return child.call(f"the call {do}", {"do": do}, list(arrays), timeout)


def test_messages_and_arrays_survive_the_pipe():
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2], np.zeros((0, 4), np.uint8), np.float64(3)]
    stream = io.BytesIO()
    send(stream, {"what": "π", "n": 3}, arrays)
    stream.seek(0)
    message, got = receive(stream)
    assert message == {"what": "π", "n": 3}
    for one, other in zip(got, arrays, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    with pytest.raises(EOFError):
        receive(stream)


def test_calls_are_answered(child):
    for _ in range(3):
        answer, (total,) = call(child, "add", np.ones(1 << 18), np.ones(1 << 18))
        assert answer == {"n": 2}
        assert (total == 2).all()
    assert child.alive


def test_errors_come_back_as_they_are(child):
    with pytest.raises(ShapeError, match="too square"):
        call(child, "refuse")
    with pytest.raises(RuntimeError, match="Traceback"):
        call(child, "stumble")
    assert child.alive


@pytest.mark.parametrize(
    ("do", "how"),
    [
        ("abort", "died: SIGABRT"),
        ("segv", "died: SIGSEGV"),
        ("exit", "died: exit status 3"),
        ("half", "died: exit status 0"),
    ],
)
def test_deaths_are_told(child, do, how):
    call(child, "add", np.ones(1))
    with pytest.raises(LibraryFailedError, match=f"the call {do}: the library {how}") as told:
        call(child, do)
    assert told.value.how == how
    assert told.value.tail.startswith(f"about to {do}")  # not what earlier calls said


def test_a_hang_ends_with_the_clock(child):
    with pytest.raises(LibraryFailedError, match=r"gave no answer in 0.5 s and was stopped"):
        call(child, "hang", timeout=0.5)


def test_a_death_between_calls(child):
    child._process.kill()
    child._process.wait()
    assert not child.alive
    with pytest.raises(LibraryFailedError, match="SIGKILL"):
        call(child, "add", np.ones(1))
