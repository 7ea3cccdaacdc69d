"""A product under a limit of memory is right or an error: never an element that nobody wrote."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.base.threads import set_num_threads, share
from ggmlq.cpu.machine.jit import jit
from ggmlq.cpu.machine.memory import atomic_add, reader
from ggmlq.cpu.machine.workers import share_kernel
from ggmlq.errors import HostMemoryError

pytestmark = pytest.mark.slow

resource = pytest.importorskip("resource", reason="this system cannot limit a process's memory")

# One process, many limits: a soft limit can be raised again. Weights and warm code come first.
LIMITED = """
import resource, sys
import numpy as np
import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.formats import FORMATS

name, kernel, m, seed, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
n, k, rng = 64, 65536, np.random.default_rng(seed)
fmt = FORMATS[name]
q = gq.QuantArray.from_bytes(random_blocks(fmt, n, k // fmt.block_size, 0), fmt, (n, k))
x = rng.standard_normal((m, k), np.float32)
gq.set_num_threads(2)
out, kinds = np.empty((m, n), np.float32), {}
for threads in (1, 2):
    gq.set_num_threads(threads)
    want = gq.linear(x, q, kernel=kernel).copy()
size = lambda: int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
for step in range(steps):
    out[...] = np.nan
    resource.setrlimit(resource.RLIMIT_AS, (size() + int(rng.integers(0, 1 << 21)), hard))
    kind = "right"
    try:
        gq.linear(x, q, kernel=kernel, out=out)
    except MemoryError as error:
        kind = "HostMemoryError" if isinstance(error, gq.GGMLQError) else "MemoryError"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    assert kind != "right" or np.array_equal(out, want), f"step {step}: unwritten or wrong"
    kinds[kind] = kinds.get(kind, 0) + 1
    if kind != "right":
        gq.linear(x, q, kernel=kernel, out=out)
        assert np.array_equal(out, want), "the board is out of order"
print(kinds)
"""


@pytest.mark.parametrize(
    ("name", "kernel", "m"), [("q5_0", "auto", 1), ("q6_K", "auto", 16), ("q6_K", "cpu:tiles", 9)]
)
def test_limits(name, kernel, m, fresh, request):
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux says how much address space is in use")
    steps = "600" if request.config.option.long else "40"
    command = [sys.executable, "-c", LIMITED, name, kernel, str(m), str(fresh.integers(1 << 30)), steps]
    found = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert found.returncode == 0, found.stderr[-2000:]


class Failing(NamedTuple):
    count: int  # address of the parts done
    part: int  # the one that fails
    wrong: int  # 1: it is wrong, 0: it cannot allocate


failing = reader(Failing)


@jit
def _raise_in_one(arguments, start, stop):
    """Count the parts; one of them cannot allocate, or is wrong."""
    given = failing(arguments)
    for i in range(start, stop):
        atomic_add(given.count, 1)
        if i == given.part:
            if given.wrong:
                raise ValueError("not this one")
            np.empty(1 << 60, np.uint8)


@pytest.mark.parametrize("threads", [1, 2, 64])
def test_a_kernel_that_raises_in_one_part(threads):
    from ggmlq.base import threads as module

    before, asked = module._AVAILABLE, list(module._requested)
    module._AVAILABLE = 64
    try:
        set_num_threads(threads)
        count = np.zeros(1, np.int64)
        for bad in (0, 5, 63, *range(64)):
            with pytest.raises(HostMemoryError, match="64 pieces in"):
                share_kernel(_raise_in_one, Failing(count.ctypes.data, bad, 0), 64)
            with pytest.raises(ValueError, match="not this one"):
                share_kernel(_raise_in_one, Failing(count.ctypes.data, bad, 1), 64)
            count[:] = 0
            share_kernel(_raise_in_one, Failing(count.ctypes.data, -1, 0), 64)
            assert count[0] == 64
    finally:
        module._AVAILABLE, module._requested[:] = before, asked


def test_memory_errors_of_the_pool_have_words():
    def work(start, stop):
        np.empty(1 << 60, np.uint8)

    with pytest.raises(HostMemoryError, match=r"gq\.set_num_threads"):
        share(work, 64)
    assert issubclass(HostMemoryError, MemoryError)
    assert issubclass(HostMemoryError, gq.GGMLQError)


THREADS = """
import resource, time
from ggmlq.base import threads
threads._AVAILABLE, threads.PAUSE = 16, 0.0
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
for extra in (8_390_000, 8_400_000, 8_410_000, 8_450_000, 20_000_000):  # a stack, and hardly more
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + extra, hard))
    for _ in range(8):
        threads.share(lambda start, stop: time.sleep(0.0001), 64)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
from ggmlq.cpu.machine import kernels, loading, served
from ggmlq.errors import HostMemoryError
origin = kernels.kernel("machine.board.doer").origin
if (code := served.content(origin)) is not None:  # LLVM would end the process
    loading.load(str(origin), code)
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 20), hard))
    try:
        loading.load(str(origin), code)
    except HostMemoryError as error:
        assert "needs some 4 MiB of addresses, in 8 mappings" in str(error), error
    else:
        raise AssertionError("it was loaded")
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
print("done")
"""


def test_threads_without_memory_for_a_first_step_are_not_started():
    """Python would print the error of each on stderr, where nothing can catch it."""
    run = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.stdout, run.stderr, run.returncode) == ("done\n", "", 0)
