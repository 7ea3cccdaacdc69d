"""Callers of a slow or ill library who interrupt, share it between threads, or go away at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from worker_processes import CHECK, W, X, ends, soon, workers, zombies

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.errors import LibraryFailedError, UnsupportedError
from ggmlq.llama import Bridge, process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc, which Linux has"
    ),
]


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
    for _ in rounds(2):
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
    for _ in rounds(2):
        interrupted(fresh.choice([0.002, 0.02, 0.5]) * fresh.random() + 1e-5, lambda: Bridge(built))
        assert ends(workers())
        assert soon(lambda: not zombies())


@ANYWHERE
def test_an_interrupted_end_leaves_nothing(built, noted, monkeypatch):
    bridge, wait, waits = Bridge(built), process._wait, []

    def interrupted_once(*given):
        waits.append(given)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return wait(*given)

    monkeypatch.setattr(process, "_wait", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        bridge.close()
    assert len(waits) == 2
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
    from ggmlq.arrays.rows import rows
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
        out, err = process.communicate(timeout=300)
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


@pytest.mark.drawn(4)
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


@pytest.mark.drawn(2)
@pytest.mark.parametrize("trouble", ["spin", "fork_spin", "stop", "close_spin"])
def test_whoever_asks_is_killed(built, noted, fresh, trouble):
    name = fresh.choice(["SIGKILL", "SIGTERM", "SIGHUP"])
    with program(built, CALLS["main thread"], f"{trouble} mul_mat") as process:
        worker = int(process.stdout.readline())
        time.sleep(0.2)
        process.send_signal(getattr(signal, name))
        assert process.wait(10) == -getattr(signal, name)
        assert ends([worker, *noted()])


@pytest.mark.slow
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
