"""A library that does its worst in every function of the bridge, and callers who go away at any moment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from compiled import library

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.errors import LibraryFailedError, UnsupportedError
from ggmlq.llama import Bridge
from ggmlq.testing.rows import rows

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc, which Linux has"
)

X = rows("normal", 9, 96, 1)
W = gq.quantize(rows("normal", 7, 96, 2), "q4_0")
Y = gq.reference.linear(X, W)

ASK = {
    "devices": lambda bridge: bridge.devices(),
    "quantize": lambda bridge: bridge.quantize(X, "q4_0"),
    "dequantize": lambda bridge: bridge.dequantize(W),
    "mul_mat": lambda bridge: bridge.mul_mat(X, W, "FAKE0"),
}
PLACES = ["load", *ASK]

CHECK = ["check", "--types", "q4_0", "--shapes", "9x7x96", "--device", "FAKE0", "--lib"]

LATE = "gave no answer in"
FAILS = {  # trouble: what is said of it
    "abort": "died: SIGABRT",
    "flood": "died: SIGABRT.*the last words",
    "fork_exit": "died: exit status 4",
    "leave_exit": "died: exit status 4",
    "leave_flood": "died: exit status 4",
    "close_spin": "closed the pipe of its answers",
    "close": "died: exit status 1|died: SIGKILL|closed the pipe",
    "shout": r"wrote into the answers of its process: b'\\x1b\[31mwhat a",
}
HANGS = ["spin", "stop", "flood_on", "fork_spin", "leave_spin"]
BEARS = ["fork", "shout_low", "slow"]


# --- processes --------------------------------------------------------------------------------


def state(pid):
    """One letter and the parent of a process, as Linux has it."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return words[0], int(words[1])


def soon(holds):
    """Whether it holds now or in a moment."""
    for _ in range(600):
        if holds():
            return True
        time.sleep(0.05)
    return False


def ends(pids):
    """Whether all of these end; nobody may have waited for orphans."""
    return soon(lambda: all(state(pid)[0] in "XZ" for pid in pids))


def zombies():
    """Ended children of this process for which nobody has waited."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if state(pid) == ("Z", os.getpid())]


def workers(of=None):
    """Living workers of a process, of this one unless another is named."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            pid = int(path.parent.name)
            if b"ggmlq.llama.worker" in path.read_bytes() and state(pid)[1] == (of or os.getpid()):
                found.append(pid)
    return [pid for pid in found if state(pid)[0] not in "XZ"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    source = Path(__file__).with_name("hostile_ggml.c")
    return library(source, tmp_path_factory.mktemp("hostile") / "libggml.so")


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """``noted()``: the processes that the library started; whatever is left of them ends with the test."""
    path = tmp_path / "pids"
    monkeypatch.setenv("HOSTILE_PIDS", str(path))

    def pids():
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    yield pids
    for pid in pids():
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def hostile(built, noted, monkeypatch):
    """``hostile("spin", "mul_mat")`` is a bridge to a library that will spin there."""
    opened = []

    def make(trouble="", place="", timeout=60):
        monkeypatch.setenv("HOSTILE", f"{trouble} {place}")
        opened.append(Bridge(built, timeout=timeout))
        monkeypatch.setenv("HOSTILE", "")  # the next process behaves
        return opened[-1]

    yield make
    for bridge in opened:
        bridge.close()
    assert ends(workers())


def fails(hostile, trouble, place, timeout=60):
    """The error of a call that meets trouble; afterwards the bridge works, if there is one."""
    if place == "load":
        with pytest.raises(LibraryFailedError) as caught:
            hostile(trouble, place, timeout)
        return caught.value
    bridge = hostile(trouble, place)
    (worker,) = workers()
    bridge.timeout = timeout
    with pytest.raises(LibraryFailedError) as caught:
        ASK[place](bridge)
    assert ends([worker])
    bridge.timeout = 60
    np.testing.assert_allclose(bridge.mul_mat(X, W, "FAKE0"), Y, rtol=1e-4, atol=1e-4)
    return caught.value


# --- what the library does --------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_failures_are_told_and_survived(hostile, noted, fresh, place):
    trouble = fresh.choice(list(FAILS))

    error = fails(hostile, trouble, place)
    assert re.search(FAILS[trouble], str(error)), (trouble, str(error))
    assert trouble.startswith("leave") or ends(noted())


@pytest.mark.parametrize("place", PLACES)
def test_hangs_end_with_the_clock(hostile, noted, fresh, place):
    trouble = fresh.choice(HANGS)
    error = fails(hostile, trouble, place, timeout=2 if place == "load" else 0.5)
    assert LATE in str(error), (trouble, str(error))
    assert trouble.startswith("leave") or ends(noted())


@pytest.mark.parametrize("place", PLACES)
def test_oddities_are_borne(hostile, noted, fresh, place):
    trouble = fresh.choice(BEARS)
    bridge = hostile(trouble, place)
    for _ in range(3):
        ASK["devices" if place == "load" else place](bridge)
    np.testing.assert_allclose(bridge.mul_mat(X, W, "FAKE0"), Y, rtol=1e-4, atol=1e-4)
    bridge.close()
    assert ends(noted())


@pytest.mark.parametrize("trouble", ["shout_on", "end_soon"])
def test_answers_are_whole_or_errors(hostile, fresh, rounds, trouble):
    """Another thread of the library writes everywhere, or ends the process, while answers leave."""
    bridge = hostile(trouble, "mul_mat")
    w, told = gq.quantize(rows("normal", 2048, 32, 2), "q4_0"), []
    for _ in rounds(3):
        x = rows("normal", int(fresh.integers(1, 200)), 32, int(fresh.integers(100)))
        try:
            y = bridge.mul_mat(x, w, "FAKE0")
        except LibraryFailedError as error:
            told.append(str(error))
            os.environ["HOSTILE"] = f"{trouble} mul_mat"  # again, in the process to come
        else:
            np.testing.assert_allclose(y, gq.reference.linear(x, w), rtol=1e-4, atol=1e-4)
    assert all(re.search("wrote into the answers|died: exit status 5", text) for text in told), told


def test_a_flood_costs_nothing(hostile):
    bridge = hostile("flood", "mul_mat")
    tracemalloc.start()
    try:
        with pytest.raises(LibraryFailedError, match=r"the last words; ggmlq") as caught:
            bridge.mul_mat(X, W, "FAKE0")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(caught.value.tail) <= 2000
    assert peak < 2 << 20


def test_a_terminal_is_left_alone(hostile):
    error = fails(hostile, "escape", "mul_mat")
    assert r"\x1b]0;owned\x07\x1b[2J\rgone" in str(error)
    assert r"\u202e" in error.tail
    bridge = hostile("names", "nowhere")
    (device,) = bridge.devices()
    for text in (bridge.version, device.description, repr(bridge)):
        assert text.isprintable()
        assert r"\x1b" in text or text == repr(bridge)
    assert hostile("nameless", "nowhere").devices()[0].description == ""


def test_the_command_says_what_the_library_said(built, noted, monkeypatch, capsys):
    monkeypatch.setenv("HOSTILE", "escape mul_mat")
    assert main([*CHECK, str(built)]) == 1
    out, err = capsys.readouterr()
    assert r"died: SIGABRT; it said: \x1b]0;owned\x07\x1b[2J\rgone" in " ".join(out.split())
    assert (out + err).replace("\n", "").isprintable()


# --- who calls --------------------------------------------------------------------------------


# An interrupt may come while the interpreter collects an object: it is then reported, not raised, and what
# the collected object held is left to the interpreter, which says so too.
ANYWHERE = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


def interrupted(seconds, work):
    """A KeyboardInterrupt in this thread, after so long; SIGALRM also where SIGINT is ignored.

    No context manager: an interrupt on the way into its body would be nobody's.
    """
    armed = [True]

    def interrupt(number, frame):
        if armed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            work()
            armed.clear()
    finally:
        armed.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@ANYWHERE
def test_after_an_interrupt_answers_belong_to_their_questions(hostile, fresh, rounds):
    """A slow answer to the first question must not come as that to the second."""
    bridge = hostile("slow", "mul_mat")
    for _ in rounds(5):
        os.environ["HOSTILE"] = "slow mul_mat"
        x, q = rows("normal", 3, 96, int(fresh.integers(1000))), W
        interrupted(
            fresh.uniform(1e-4, 6e-3),
            lambda: fresh.choice([bridge.mul_mat, bridge.measure])(X[:3], W, "FAKE0"),
        )
        y = bridge.mul_mat(x, q, "FAKE0")
        np.testing.assert_allclose(y, gq.reference.linear(x, q), rtol=1e-4, atol=1e-4)
    assert len(workers()) == 1


@ANYWHERE
def test_an_interrupted_start_leaves_nothing(built, noted, fresh, rounds):
    for _ in rounds(4):
        interrupted(fresh.choice([0.002, 0.02, 0.5]) * fresh.random() + 1e-5, lambda: Bridge(built))
        assert ends(workers())
        assert soon(lambda: not zombies())


@ANYWHERE
def test_threads_share_a_bridge(hostile, fresh, rounds):
    bridge = hostile("slow", "mul_mat")
    seeds = fresh.integers(1000, size=8)

    def work(seed):
        x = rows("normal", 1 + seed % 5, 96, int(seed))
        wanted = gq.reference.linear(x, W)
        for _ in rounds(2):
            np.testing.assert_allclose(bridge.mul_mat(x, W, "FAKE0"), wanted, rtol=1e-4, atol=1e-4)
            bridge.devices()
        return True

    with ThreadPoolExecutor(8) as pool:
        working = [pool.submit(work, seed) for seed in seeds]
        for _ in range(20):  # this one is interrupted, mostly while it waits for its turn
            interrupted(fresh.uniform(1e-4, 3e-2), lambda: bridge.mul_mat(X, W, "FAKE0"))
        assert all(one.result() for one in working)
    assert len(workers()) == 1


def test_closing_from_another_thread(hostile):
    bridge = hostile("spin", "mul_mat")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(bridge.mul_mat, X, W, "FAKE0")
        time.sleep(0.2)
        bridge.close()
        bridge.close()
        with pytest.raises(LibraryFailedError, match="was closed during the call, by another thread"):
            call.result()
    assert not workers()
    assert bridge.devices(), "a later call starts again"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: bridge.close(), range(8)))
    assert not workers()


@pytest.mark.parametrize("doing", ["call", "close"])
def test_handlers_of_signals(hostile, doing):
    """In the midst of a call a handler calls the same bridge: an error, no deadlock; or closes it."""
    bridge, told = hostile("slow", "mul_mat"), []

    def handle(number, frame):
        try:
            bridge.devices() if doing == "call" else bridge.close()
        except UnsupportedError as error:
            told.append(str(error))

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        ask = lambda: bridge.measure(X, W, "FAKE0", repeats=200)
        if doing == "close":
            with pytest.raises(LibraryFailedError, match="was closed during the call"):
                ask()
        else:
            assert ask().same
            assert "waits for another answer of <Bridge" in told[0]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert bridge.devices()


# --- whole programs ---------------------------------------------------------------------------

BEGIN = """
    import gc, os, signal, sys, threading, time
    import numpy as np
    import ggmlq as gq
    from ggmlq.llama import Bridge
    from ggmlq.testing.rows import rows
    for number in (signal.SIGTERM, signal.SIGHUP):  # nohup and background jobs ignore some
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    X = rows("normal", 9, 96, 1)
    W = gq.quantize(rows("normal", 7, 96, 2), "q4_0")
    right = lambda y: np.allclose(y, gq.reference.linear(X, W), rtol=1e-4, atol=1e-4)
    bridge = Bridge(sys.argv[1])
    worker = bridge._child._process.pid
"""


@contextmanager
def program(built, code, trouble=""):
    """A Python of its own, in which every warning is an error; it never stays."""
    whole = textwrap.dedent(BEGIN) + textwrap.dedent(code)
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", whole, str(built)],
        env={**os.environ, "HOSTILE": trouble},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def run(built, code, trouble=""):
    """Its output; nothing on stderr, and exit status 0."""
    with program(built, code, trouble) as process:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        return out.split()


ENDINGS = {
    "sys.exit": "sys.exit()",
    "nothing": "",
    "collected": "del bridge; assert not os.path.exists(f'/proc/{worker}')",
    "in a circle": "bridge.me = bridge; del bridge; assert gc.collect()",
    "closed": "bridge.close(); bridge.close()",
    "from a thread": "t = threading.Thread(target=bridge.close); t.start(); t.join()",
    "while a thread calls": "threading.Thread(target=bridge.measure, args=(X, W, 'FAKE0')).start()",
    "a dead worker": "os.kill(worker, 9)",
}  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_without_a_trace(built, noted, ending):
    (worker,) = run(built, f"print(worker, flush=True)\n{ENDINGS[ending]}", "slow mul_mat")
    assert ends([int(worker)])


def test_after_a_fork(built, noted):
    """A thread is in a call; the child of the fork has a worker of its own, the parent keeps its."""
    code = """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: it is what is tried
    thread = threading.Thread(target=lambda: bridge.measure(X, W, "FAKE0", repeats=99))
    thread.start()
    time.sleep(0.1)
    pid = os.fork()
    if pid == 0:
        assert right(bridge.mul_mat(X, W, "FAKE0"))
        assert bridge._child._process.pid != worker
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0
    thread.join()
    for leave in (sys.exit, os._exit):
        pid = os.fork()
        if pid == 0:
            if leave is sys.exit:
                del bridge
                gc.collect()
            leave(0)
        assert os.waitpid(pid, 0)[1] == 0
    assert right(bridge.mul_mat(X, W, "FAKE0"))
    assert bridge._child._process.pid == worker
    """
    assert run(built, code, "slow mul_mat") == []


CALLS = {
    "main thread": 'print(worker, flush=True)\nbridge.mul_mat(X, W, "FAKE0")',
    "thread that ended": """
    def start():
        global bridge, worker
        bridge.close()
        bridge = Bridge(sys.argv[1])
        worker = bridge._child._process.pid
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert right(bridge.mul_mat(X, W, "FAKE0")) or sys.exit("the worker went with its thread")
    """,
    "beside a fork": """
    if os.fork() == 0:
        print(os.getpid(), file=open(os.environ["HOSTILE_PIDS"], "a"), flush=True)
        time.sleep(600)
    print(worker, flush=True)
    bridge.mul_mat(X, W, "FAKE0")
    """,
}


@pytest.mark.parametrize("trouble", ["spin", "fork_spin", "stop", "close_spin"])
def test_whoever_asks_is_killed(built, noted, fresh, trouble):
    name = fresh.choice(["SIGKILL", "SIGTERM", "SIGHUP"])
    with program(built, CALLS["main thread"], f"{trouble} mul_mat") as process:
        worker = int(process.stdout.readline())
        time.sleep(0.2)
        process.send_signal(getattr(signal, name))
        assert process.wait(10) == -getattr(signal, name)
        assert ends([worker, *noted()])


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_the_command_is_ended(built, noted, name, status):
    code = f"""
    bridge.close()
    from ggmlq.cli import main
    sys.exit(main({CHECK} + sys.argv[1:]))
    """
    with program(built, code, "fork_spin mul_mat") as process:
        assert soon(noted), "it is in the midst of a product"
        (worker,) = workers(process.pid)
        process.send_signal(getattr(signal, name))
        assert process.wait(20) == status
        assert ends([worker, *noted()])


def test_a_sibling_does_not_keep_it(built, noted):
    """A child of a fork has the pipes too."""
    with program(built, CALLS["beside a fork"], "spin mul_mat") as process:
        worker = int(process.stdout.readline())
        time.sleep(0.2)
        process.kill()
        assert ends([worker])


def test_a_thread_may_start_it_and_end(built, noted):
    assert run(built, CALLS["thread that ended"]) == []
