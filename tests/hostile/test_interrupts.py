"""Interrupts, refused threads, forks, handlers and the end of the process leave parallel work as it was."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import NamedTuple

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.base import threads
from ggmlq.base.unwinding import Whole
from ggmlq.cpu.machine import workers
from ggmlq.cpu.machine.jit import jit
from ggmlq.cpu.machine.memory import atomic_add, atomic_load, reader

pytestmark = pytest.mark.slow

AGAIN = 0.2  # seconds until another alarm: one that falls into a finalizer is lost
main = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer of signals")


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    monkeypatch.setattr(threads, "_AVAILABLE", max(2, threads._AVAILABLE))
    monkeypatch.setattr(threads, "_requested", [2])


@pytest.fixture
def product():
    rng = np.random.default_rng(0)
    q, other = (gq.quantize(rng.standard_normal((256, 2048), np.float32), "q4_0") for _ in range(2))
    x, x9 = rng.standard_normal((1, 2048), np.float32), rng.standard_normal((9, 2048), np.float32)
    want, want9 = x @ q.T, x9 @ q.T
    for _ in range(3):  # all modules are imported; products of q are still to be recorded
        assert np.isfinite(x @ other.T).all()

    def check():
        assert np.array_equal(x @ q.T, want)
        assert np.array_equal(x9 @ q.T, want9)

    return check


def parts_at_once():
    """How many threads are inside a job of the pool: a part waits for another to begin, for a while."""
    both, seen = threading.Barrier(2), []

    def work(start, stop):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(5)
            seen.append(threading.get_ident())

    threads.share(work, 2)
    return len(set(seen))


class Counters(NamedTuple):
    """The addresses of what parts have begun, have met another, and have looked for one."""

    begun: int
    met: int
    looked: int


counters = reader(Counters)


@jit
def _meet(arguments, start, stop):
    """Wait until another part has begun too, or for long."""
    count = counters(arguments)
    atomic_add(count.begun, 1)
    for _ in range(1 << 28):
        if atomic_load(count.begun) > 1:
            atomic_add(count.met, 1)
            break
        atomic_add(count.looked, 1)


def kernels_at_once():
    for _ in range(20):  # the first job may be over before a thread has woken
        words = np.zeros(3, np.int64)
        workers.share_kernel(_meet, Counters(*(words.ctypes.data + 8 * i for i in range(3))), 2)
        if words[1] == 2:
            return 2
    return 1


def still_parallel():
    assert parts_at_once() == 2
    assert kernels_at_once() == 2


@contextlib.contextmanager
def alarms(handler):
    """What alarms call; without callbacks of the garbage collector, such as Hypothesis has: an exception of a
    handler that runs inside one is dropped.
    """
    before, callbacks = signal.signal(signal.SIGALRM, handler), gc.callbacks[:]
    gc.callbacks.clear()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = callbacks


@main
def test_interrupts_at_any_moment(product, fresh, rounds):
    told, caught = [], []

    def handler(*_):
        told.append(1)
        raise KeyboardInterrupt

    def work(start, stop):
        values[start:stop] = start

    values = np.zeros(1 << 12)
    with alarms(handler):
        for _ in rounds(3):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, fresh.uniform(0.00005, 0.002), AGAIN)
                    while True:
                        product()
                        threads.share(work, 1 << 12)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except BaseException as error:
                caught.append(type(error))
    assert {*caught} == {KeyboardInterrupt}
    assert len(told) - len(caught) <= len(told) // 100, "interrupts are lost on the way, but for finalizers"
    assert not threads._pool._callers or set(threads._pool._callers) == {threading.get_ident()}
    still_parallel()
    product()


@main
def test_an_interrupted_caller_leaves_nobody_at_work(rounds):
    """When the exception arrives, no thread of the pool is inside the caller's work any more."""
    inside = []

    def handler(*_):
        raise KeyboardInterrupt

    def work(start, stop):
        helps = threading.current_thread() is not threading.main_thread()
        if helps:  # the main thread may be interrupted on any line of this
            inside.append(1)
        time.sleep(0.002)
        if helps:
            inside.pop()

    with alarms(handler):
        for _ in rounds(1):
            with contextlib.suppress(KeyboardInterrupt):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.003, AGAIN)
                    while True:
                        threads.share(work, 64)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            assert not inside


@main
def test_a_handler_may_multiply(product, rounds):
    calls = []
    busy = []

    def handler(*_):
        if not busy:
            busy.append(1)
            product()
            threads.share(lambda start, stop: calls.append(stop - start), 64)
            busy.clear()

    with alarms(handler):
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0011)
        for _ in rounds(1.5):
            product()
            threads.share(lambda start, stop: None, 64)
    assert calls
    still_parallel()


def test_an_interrupt_while_numba_loads_its_tables():
    """All of them are loaded, then it comes: half of a table would be lost for the rest of the process."""
    from numba.core import cpu, typing, utils

    import ggmlq.cpu.machine.numba_names  # noqa: F401

    def interrupt(frame, event, argument):
        if event == "call" and frame.f_code is utils.stream_list.__code__:
            sys.setprofile(None)
            sent.append(event)
            signal.raise_signal(signal.SIGINT)  # within the generator of a table

    sent, types = [], typing.Context()
    context = cpu.CPUContext(types, "cpu")
    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            context.refresh()
    finally:
        sys.setprofile(None)
    assert sent
    context.refresh()
    loaded = sum(len(overloads.versions) for overloads in context._defns.values())
    assert loaded == sum(len(registry.functions) for registry in context._registries)


def test_an_interrupt_while_a_kernel_is_loaded(monkeypatch):
    """LLVM's Python frees a string, and would free it again if it came before that is noted."""
    from llvmlite.binding import ffi

    from ggmlq.cpu.machine import kernels, loading, served

    origin = kernels.kernel("machine.board.doer").origin
    if (code := served.content(origin)) is None:
        pytest.skip("there are no packs for this machine")
    close, engines = ffi.OutputString.close, list(loading._engines)

    def interrupted(self):
        close(self)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ffi.OutputString, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loading.load(str(origin), code)
    assert len(loading._engines) == len(engines) + 1  # it came when all was done


@main
def test_a_signal_between_those_that_are_held_back_is_not_lost():
    """Work was whole, and a handler raised before all were themselves again: the rest still work."""
    told, before = [], {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}

    def ends(number, frame):
        told.append(number)
        raise InterruptedError

    try:
        for number in before:
            signal.signal(number, ends)
        whole = Whole()
        whole.__enter__()
        mine = signal.getsignal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(InterruptedError):
            whole.__exit__()
        assert told == [signal.SIGTERM]
        signal.signal(signal.SIGUSR1, mine)  # as if it had been left behind
        with pytest.raises(InterruptedError):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_refused_threads_are_done_without_and_asked_for_again(product, monkeypatch):
    """Under a limit of processes nothing fails; when it is lifted, there are threads again."""
    monkeypatch.setattr(threads, "_pool", threads._Pool())
    monkeypatch.setattr(workers, "_crew", workers._Crew())
    tried = []

    def refused(*_):
        tried.append(1)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threads._thread, "start_new_thread", refused)
        for _ in range(50):
            product()
            threads.share(lambda start, stop: None, 64)
    assert 2 <= len(tried) < 20  # asking costs as much as a small product
    monkeypatch.setattr(threads, "PAUSE", 0.0)
    threads._pool._hands._not_before = workers._crew._hands._not_before = 0.0
    still_parallel()


CHILD = """
import os, sys, threading, warnings, numpy as np, ggmlq as gq
from ggmlq.base import threads
from ggmlq.base.unwinding import Whole
threads._AVAILABLE = 2
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
q = gq.quantize(rng.standard_normal((64, 512), np.float32), "q4_0")
x = np.ones((1, 512), np.float32)
"""

SHUTDOWN = """
gq.set_num_threads(1)
x @ q.T
gq.set_num_threads(2)  # no thread is started yet, and all modules are loaded
class Last:
    def __del__(self):
        threads.share(lambda a, b: None, 64)
        try:
            y = x @ q.T
        except ImportError:  # Python loads no module this late; that is an error, but it must not hang
            pass
        print("over", flush=True)
last = Last()
"""

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
os.setuid(54321)
y = x @ q.T
threads.share(lambda a, b: None, 64)
gq.quantize(rng.standard_normal((512, 4096), np.float32), "q4_0")
print(y.shape)
"""


def child(code, timeout=300):
    return subprocess.run(
        [sys.executable, "-c", CHILD + code], capture_output=True, text=True, timeout=timeout, check=False
    )


def test_a_first_product_at_the_end_of_the_process():
    found = child(SHUTDOWN)
    assert "over" in found.stdout, found.stderr[-2000:]
    assert found.returncode == 0


def test_a_limit_of_processes():
    pytest.importorskip("resource", reason="this system cannot limit a user's processes")
    if os.geteuid():
        pytest.skip("only root can become a user without other processes")
    warm = (
        "from ggmlq.cpu.machine import workers\n"
        "x @ q.T; threads._pool = threads._Pool(); workers._crew = workers._Crew()\n"
    )
    found = child(warm + LIMITED)
    assert "(1, 64)" in found.stdout, found.stderr[-2000:]


def test_forks_beside_threads(product, rounds):
    """A child that is forked while other threads multiply has threads of its own."""
    if not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            threads.share(lambda start, stop: None, 64)

    beside = [threading.Thread(target=busy) for _ in range(2)]
    for thread in beside:
        thread.start()
    try:
        for _ in rounds(1):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # from Python 3.12: forks beside threads may deadlock
                pid = os.fork()
            if not pid:
                signal.alarm(20)
                try:
                    product()
                    os._exit(0 if parts_at_once() == 2 else 3)
                except BaseException:
                    os._exit(4)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        stop.set()
        for thread in beside:
            thread.join()


CUT_SHORT = """
import signal
class Interrupting:  # the first module of Numba that is looked for brings an interrupt
    def find_spec(self, name, path=None, target=None):
        if name.startswith("numba."):
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from ggmlq.ops.quantize import compiled_encoder
try:
    compiled_encoder(gq.formats["q4_0"])
except KeyboardInterrupt:
    print("interrupted", "numba.core.registry" in sys.modules)
print(compiled_encoder(gq.formats["q4_0"]))
"""


def test_an_interrupt_while_numba_is_imported():
    """It comes when all of Numba is there, for half of it is no good for the rest of the process."""
    found = child(CUT_SHORT)
    assert found.stdout.startswith("interrupted True\n<function"), found.stdout + found.stderr[-2000:]
