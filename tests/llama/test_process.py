"""The child process: its messages, its death by signal, by exit and by the clock."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from ggmlq.errors import LibraryFailedError, ShapeError
from ggmlq.llama import process
from ggmlq.llama.process import TAIL_BYTES, BlockingPipes, Child, PolledPipes, Tail
from ggmlq.llama.protocol import GarbledError, receive, send

SERVER = f"""
import sys; sys.path[:] = {sys.path!r}
import os, signal, time
import numpy as np
from ggmlq.llama.protocol import HEADER, MAGIC, receive, send
class Halting:  # a line of the library comes between the halves of each large write
    def write(self, data):
        if len(data) > 1000:
            data = data[:500]
            answers.write(b"x" * 80)
        return answers.write(data)
requests, answers = open(0, "rb", 0), open(1, "wb", 0)
while True:
    number, message, arrays = receive(requests)
    def reply(message, arrays=()): send(answers, number, message, arrays)
    print("about to", message["do"], file=sys.stderr, flush=True)
    match message["do"]:
        case "add": reply({{"n": len(arrays)}}, [sum(arrays)])
        case "refuse": reply({{"error": "ShapeError", "text": "too square"}})
        case "stumble": reply({{"error": "RuntimeError", "text": "Traceback"}})
        case "abort": os.abort()
        case "segv": os.kill(os.getpid(), signal.SIGSEGV)
        case "exit": os._exit(3)
        case "half": answers.write(b"123"); os._exit(0)
        case "stray": answers.write(b"a line of a library\\n"); reply({{}}, [np.ones(4)])
        case "within": send(Halting(), number, {{}}, [np.ones(400)])
        case "behind": reply({{}}); answers.write(b"late")
        case "another": send(answers, number - 1, {{}})
        case "huge": answers.write(HEADER.pack(MAGIC, number, 1 << 60, 0))
        case "larger": answers.write(HEADER.pack(MAGIC, number, 2, 1 << 60) + b"{{}}")
        case "deaf": os.close(0); os.close(1); time.sleep(600)
        case "hang": time.sleep(600)
"""


@pytest.fixture(params=[PolledPipes, BlockingPipes], ids=["polled", "blocking"])
def child(request, monkeypatch):
    monkeypatch.setattr(process, "Pipes", request.param)
    made = Child.started(SERVER)
    yield made
    made.close()


def call(child, do, *arrays, timeout=60):
    return child.call(f"the call {do}", {"do": do}, list(arrays), timeout)


def test_messages_and_arrays_survive_the_pipe():
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2], np.zeros((0, 4), np.uint8), np.float64(3)]
    stream = io.BytesIO()
    send(stream, 7, {"what": "π", "n": 3}, arrays)
    stream.seek(0)
    number, message, got = receive(stream)
    assert number == 7
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
    assert child.usable


def test_errors_come_back_as_they_are(child):
    with pytest.raises(ShapeError, match="too square"):
        call(child, "refuse")
    with pytest.raises(RuntimeError, match="Traceback"):
        call(child, "stumble")
    assert child.usable


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
    assert f"about to {do}" in told.value.tail
    if isinstance(child._pipes, PolledPipes):  # a thread that listens may come late
        assert told.value.tail.startswith(f"about to {do}"), "not what earlier calls said"


def test_a_hang_ends_with_the_clock(child):
    with pytest.raises(LibraryFailedError, match=r"gave no answer in 0.5 s and was stopped"):
        call(child, "hang", timeout=0.5)


def test_a_death_between_calls(child):
    child._process.kill()
    child._process.wait()
    assert not child.usable
    with pytest.raises(LibraryFailedError, match="SIGKILL"):
        call(child, "add", np.ones(1))


@pytest.mark.parametrize(
    ("do", "says"),
    [
        ("stray", r"b'a line of a libr'… where an answer begins"),
        ("within", "where an answer ends"),
        ("another", "the answer to question 1 where that to 2 was due"),
        ("huge", "where an answer begins"),
        ("larger", "where a message stands"),
    ],
)
def test_what_is_no_answer_is_not_believed(child, do, says):
    call(child, "add", np.ones(1))
    with pytest.raises(LibraryFailedError, match=f"wrote into the answers of its process: .*{says}"):
        call(child, do)
    assert not child.usable


def test_what_follows_an_answer_is_not_believed(child):
    call(child, "behind")
    with pytest.raises(LibraryFailedError, match="wrote into the answers"):
        call(child, "add", np.ones(1))


def test_closed_pipes_end_the_call(child):
    with pytest.raises(LibraryFailedError, match="the library closed the pipe of its answers"):
        call(child, "deaf")
    assert child._process.returncode is not None


@pytest.mark.parametrize("cut", range(0, 95, 5))
def test_frames_that_are_cut(cut):
    whole = io.BytesIO()
    send(whole, 1, {"n": 1}, [np.arange(3.0)])
    with pytest.raises(EOFError):
        receive(io.BytesIO(whole.getvalue()[:cut]))


def test_frames_with_other_bytes(fresh, rounds):
    """Nothing but a frame is taken for one; what is taken has the arrays that were announced."""
    whole = io.BytesIO()
    send(whole, 1, {"n": 1}, [np.arange(3.0), np.ones((2, 2), np.uint8)])
    for _ in rounds(0.5):
        data = bytearray(whole.getvalue())
        for place in fresh.integers(0, len(data), fresh.integers(1, 4)):
            data[place] = fresh.integers(0, 256)
        with suppress(GarbledError, EOFError):
            number, _, arrays = receive(io.BytesIO(data), 1)
            assert number == 1
            assert sum(array.nbytes for array in arrays) == 28


def test_the_end_of_what_was_said():
    tail = Tail()
    for _ in range(100):
        tail.add(b"x" * 1000)
    tail.add("the end π".encode())
    assert str(tail).endswith("xxxthe end π")
    assert len(str(tail).encode()) == TAIL_BYTES


def test_no_room_for_a_process(monkeypatch):
    def full(*args, **options):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(process.subprocess, "Popen", full)
    with pytest.raises(LibraryFailedError, match="Resource temporarily unavailable; the system has no room"):
        Child.started(SERVER)


GLOBAL = f"""
import sys; sys.path[:] = {sys.path!r}
import ctypes, os
from ggmlq.llama.worker import share_cxx_runtime
try:
    ctypes.CDLL("libstdc++.so.6")
except OSError:
    sys.exit("77")
known = lambda: hasattr(ctypes.CDLL(None), "_ZNSt6locale7classicEv")
before = known()
share_cxx_runtime()
print(before, known())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have another C++ runtime")
def test_one_cxx_runtime_serves_all_libraries():
    """Its names are global before a build's libraries are loaded, which may hold a copy of their own."""
    done = subprocess.run([sys.executable, "-c", GLOBAL], capture_output=True, text=True, check=False)
    if done.stderr.strip() == "77":
        pytest.skip("no libstdc++ here")
    assert done.stdout.split() == ["False", "True"], done.stderr
