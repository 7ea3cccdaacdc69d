"""Threads of the CPU side: any number of callers, the same bits, and weights prepared once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from block_cases import weights
from right import assert_right

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.base import threads
from ggmlq.cpu.machine.jit import jit
from ggmlq.cpu.machine.memory import atomic_add, reader
from ggmlq.cpu.machine.workers import share_kernel
from ggmlq.cpu.panels.layout import RUN, layout_of
from ggmlq.cpu.panels.multiply import panels
from ggmlq.formats import FORMATS


@pytest.fixture(autouse=True)
def restored():
    before = list(threads._requested)
    yield
    threads._requested[:] = before


@pytest.mark.parametrize("name", ["q4_0", "iq2_xs"])
@pytest.mark.parametrize("m", [1, 9])
def test_the_number_of_threads_changes_no_bit(name, m):
    q, x = weights(name, 70, 512), rows("normal", m, 512)
    results = []
    for n in (1, 2, 64):
        gq.set_num_threads(n)
        results.append(x @ q.T)
    assert all(np.array_equal(y, results[0]) for y in results)


@pytest.mark.parametrize("name", ["q5_1", "q2_K", "q4_K", "q6_K", "iq3_s"])
def test_products_of_many_panels(name):
    """Every thread has memory of its own for as long as it works, also where M and N are ragged."""
    q, x = weights(name, 1000, 4096), rows("normal", 37, 4096)
    for n in (64, 1, 2):
        gq.set_num_threads(n)
        assert_right(x @ q.T, x, q)


class Counters(NamedTuple):
    counters: int


counters = reader(Counters)


@jit
def _mark(arguments, start, stop):
    """Add one to each of the counters start … stop."""
    for i in range(start, stop):
        atomic_add(counters(arguments).counters + 8 * i, 1)


@pytest.mark.slow
def test_every_part_of_a_job_is_done_once(rounds):
    """Short jobs of changing length, one after the other: a thread may still look at the last one.

    A thread that took the number of parts of one job for that of another was seen about once in
    100,000 jobs.
    """
    gq.set_num_threads(2)
    marks = np.zeros(64, np.int64)
    for _ in rounds(6):
        for count in (2, 64, 3, 40):
            marks[:] = 0
            share_kernel(_mark, Counters(marks.ctypes.data), count)
            assert np.array_equal(marks, np.arange(64) < count)


def test_several_callers_at_once():
    q, x = weights("q4_0", 70, 512), rows("normal", 9, 512)
    want = x @ q.T
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda _: x @ weights("q4_0", 70, 512).T if _ % 5 == 0 else x @ q.T, range(200))
        )
    assert all(np.array_equal(y, want) for y in found)


def test_never_more_threads_than_cores():
    gq.set_num_threads(1000)
    assert threads.num_threads() == threads.available()
    code = "from ggmlq.base import threads; print(threads.num_threads())"
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        env = {**os.environ, name: "1"}
        child = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
        assert child.stdout.strip() == b"1"


def test_share_covers_everything_once_and_hands_errors_on():
    gq.set_num_threads(2)
    seen = np.zeros(103, int)
    lock = threading.Lock()

    def work(start, stop):
        with lock:
            seen[start:stop] += 1
            assert start % 4 == 0

    threads.share(work, 103, 4)
    assert (seen == 1).all()
    with pytest.raises(KeyError):
        threads.share(lambda start, stop: {}[start], 10)


def test_work_inside_work_runs_where_it_is():
    gq.set_num_threads(2)
    total = []
    threads.share(lambda a, b: threads.share(lambda c, d: total.append(d - c), b - a), 8)
    assert sum(total) == 8


def test_a_forked_process_has_threads_of_its_own():
    if not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    code = (
        "import os, warnings, numpy as np, ggmlq as gq\n"
        "warnings.simplefilter('ignore')\n"
        "gq.set_num_threads(2)\n"
        "q = gq.quantize(np.eye(64, dtype=np.float32), 'q4_0'); x = np.ones((1, 64), np.float32)\n"
        "y = x @ q.T\n"
        "pid = os.fork()\n"
        "same = np.array_equal(x @ q.T, y)\n"
        "if not pid: os._exit(0 if same else 3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), same)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert child.stdout.split() == ["0", "True"]


BUSY = """
import faulthandler, importlib.util, os, sys, threading, time
from importlib import import_module
import numpy as np, ggmlq as gq
from ggmlq.base.forks import KERNELS
from ggmlq.cpu.machine import features
import llvmlite.binding as llvm
from numba.core.compiler_lock import global_compiler_lock

class Slow:  # a module that is imported for a while
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "ggmlq.slow" else None
    def create_module(self, spec): pass
    def exec_module(self, module): hold()

def hold():
    begun.set()
    time.sleep(0.3)
def beside(lock):
    with lock: hold()

sys.meta_path.insert(0, Slow())
q, x = gq.quantize(np.eye(64, dtype=np.float32), "q4_0"), np.ones((1, 64), np.float32)
works = [(beside, lock) for lock in (KERNELS, global_compiler_lock, llvm.ffi.lib._lock)]
for work, argument in [*works, (import_module, "ggmlq.slow")]:
    begun = threading.Event()
    threading.Thread(target=work, args=(argument,)).start()
    begun.wait()
    if not (pid := os.fork()):
        faulthandler.dump_traceback_later(20, exit=True)
        for _, lock in works:
            with lock: pass
        import_module("ggmlq.slow")
        features.cpu_name.cache_clear()
        os._exit(0 if (x @ q.T).any() else 3)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_fork_waits_for_threads_that_compile_or_import():
    """Their locks would stay taken in the child."""
    if not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    told = [sys.executable, "-W", "ignore", "-c", BUSY]
    child = subprocess.run(told, check=False, capture_output=True, text=True, timeout=300)
    assert child.stdout.split() == ["0"] * 4, child.stdout + child.stderr


# --- what is kept with the weights ----------------------------------------------------------


def test_panels_are_made_once_and_can_be_dropped():
    q, x = weights("q4_0", 70, 512), rows("normal", 1, 512)
    y = x @ q.T
    kept = q.prepared(panels)
    assert np.array_equal(x @ q.T, y)
    assert q.prepared(panels) is kept
    q.drop_prepared()
    assert np.array_equal(x @ q.T, y)
    assert q.prepared(panels) is not kept


def test_parts_have_panels_of_their_own():
    q, x = weights("q4_K", 70, 512), rows("normal", 2, 512)
    y = x @ q.T
    assert np.array_equal(x @ q[16:50].T, y[:, 16:50])
    assert np.array_equal(x @ q[::-3].T, y[:, ::-3])


def test_weights_that_can_be_written_to_are_read_again():
    q, x = weights("q8_0", 70, 512).copy(), rows("normal", 2, 512)
    before = x @ q.T
    q.blocks["d"] *= 2
    assert np.allclose(x @ q.T, 2 * before)
    q.blocks["qs"][5, 3] ^= 1  # one weight
    assert np.allclose(gq.linear(x, q, kernel="cpu:panels"), gq.linear(x, q, kernel="cpu:tiles"))


LIMITED = [name for name in FORMATS if layout_of(FORMATS[name]) and name not in ("q1_0", "tq1_0")]


@pytest.mark.parametrize("name", LIMITED)
def test_panels_take_little_more_than_the_file(name):
    """Of types with code books more, for each code has bits of its own there."""
    fmt, k = FORMATS[name], 1024
    most = 2.2 if name.startswith(("iq1", "iq2", "iq3")) else 1.13
    assert layout_of(fmt).panel_bytes(k // RUN) <= most * 16 * fmt.row_bytes(k)
