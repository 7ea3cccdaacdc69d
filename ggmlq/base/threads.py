"""The pool of threads for work on the CPU: ``share`` cuts a loop into parts, for any number of callers.

Kernels release the global lock, so plain Python threads run them side by side. Numba's own
parallel loops are not used: some of its threading layers abort the process when two Python
threads enter them at once.

Work is cut into more parts than threads, and a free thread takes the next part. The caller starts with the
first part at once and never waits for a thread to wake, only for parts that a thread has begun. So small
work costs little, and on a busy machine or beside another caller it only gets less help.

An exception can arrive between any two steps of the main thread, and a handler of a signal can call this
module in the middle of a job. So nothing is locked: threads record themselves as inside a job, that record
alone counts, and an interrupted caller leaves nothing behind that matters.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import math
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from ..errors import HostMemoryError, ShapeError
from .forks import in_child
from .system import cores

# --- cores that this process may use ------------------------------------------------------------

GROUPS = Path("/sys/fs/cgroup")  # where Linux says how much processor time a container has
LIMITS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS")


def available(groups: Path = GROUPS, group_file: Path = Path("/proc/self/cgroup")) -> int:
    """The number of cores of this process's affinity, or fewer by a quota or environment variables."""
    return max(1, min([cores(), *_quotas(groups, group_file), *_limits()]))


def _limits() -> Iterator[int]:
    """Limits set by environment variables; the first number of OpenMP's list is for the outer level."""
    for name in LIMITS:
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdecimal() and int(first):
            yield int(first)


def _quotas(groups: Path, group_file: Path) -> Iterator[int]:
    """The quotas in cores, rounded up, of this process's group and of all groups above it."""
    try:
        lines = group_file.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _up(groups, path, _quota)
        elif "cpu" in controllers.split(","):
            for name in dict.fromkeys((controllers, "cpu")):
                yield from _up(groups / name, path, _old_quota)


def _up(top: Path, path: str, quota: object) -> Iterator[int]:
    """Quotas from a group up to the top; a container may see only the top, and not its own path."""
    assert callable(quota)
    here = top / path.lstrip("/")
    for folder in (here, *here.parents):
        try:
            allowed, period = quota(folder)
            if allowed > 0 < period:
                yield math.ceil(allowed / period)
        except (OSError, ValueError):  # no such group, or "max"
            pass
        if folder == top:
            return


def _quota(folder: Path) -> tuple[int, int]:
    allowed, period = (folder / "cpu.max").read_text().split()
    return int(allowed), int(period)


def _old_quota(folder: Path) -> tuple[int, int]:
    allowed, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(allowed), int(period)


# --- the pool -----------------------------------------------------------------------------------

PARTS = 4  # for each thread: the last part to finish leaves the others idle for a quarter at most
PAUSE = 1.0  # seconds until the system is asked for threads again that it refused
ROOM = 16 << 20  # bytes that a thread's stack and its first steps take at most; of addresses, not of memory
LOOK = 0.1  # seconds between two looks at the threads inside a job, should a word of theirs be lost

_requested: list[int] = []  # what set_num_threads was told last
_inside = threading.local()  # work started from within the pool runs where it is

_AVAILABLE = available()


def num_threads() -> int:
    """The number of threads that an operation uses."""
    most = getattr(_inside, "most", None) or (_requested[-1] if _requested else None)
    return min(most, _AVAILABLE) if most else _AVAILABLE


def requested_threads() -> int | None:
    """The argument of the last ``set_num_threads``, or None."""
    return _requested[-1] if _requested else None


@contextlib.contextmanager
def at_most(n: int | None) -> Iterator[None]:
    """A context in which operations of the calling thread use at most ``n`` threads; others are unchanged."""
    before = getattr(_inside, "most", None)
    _inside.most = n or before
    try:
        yield
    finally:
        _inside.most = before


def set_num_threads(n: int) -> None:
    """Use ``n`` threads from the next operation on, in the whole process.

    Never more than the cores that the process may use, nor than ``NUMBA_NUM_THREADS`` and
    ``OMP_NUM_THREADS`` allow. Products with ``f32``, ``f16`` and ``bf16`` weights follow NumPy's BLAS.
    """
    if isinstance(n, bool) or not hasattr(n, "__index__") or n.__index__() < 1:
        raise ShapeError(
            f"set_num_threads({n!r}): a number of threads is an integer of at least 1; "
            f"this process may use up to {_AVAILABLE}"
        )
    _requested[:] = [n.__index__()]


class Hands:
    """Threads that run one function for ever, started when they are first needed.

    Not ``threading.Thread``: its start waits for the new thread, which at the end of the process
    never comes, and holds a lock that a handler of a signal would wait for.
    """

    def __init__(self, serve: Callable[[], None]) -> None:
        self._serve = serve
        self._hired: list[None] = []
        self._not_before = 0.0

    def lack(self, count: int) -> bool:
        """True if fewer threads than this were started."""
        return len(self._hired) < count

    def hire(self, count: int) -> None:
        """Start threads up to this number, or fewer where the system refuses: then again after a pause."""
        now = time.monotonic()
        if len(self._hired) >= count or now < self._not_before:
            return
        self._not_before = now + PAUSE  # for other callers too; if this one is interrupted, it runs out
        try:
            while len(self._hired) < count:
                check_room()
                _thread.start_new_thread(self._work, ())
                self._hired.append(None)
        except (RuntimeError, MemoryError, OSError):
            return
        self._not_before = 0.0

    def _work(self) -> None:
        try:
            self._serve()
        except MemoryError:  # others are hired when there is memory again
            self._hired.pop()


def check_room(nbytes: int = ROOM, pieces: int = 1) -> None:
    """Raise OSError if the system refuses so many bytes of addresses, in so many mappings.

    By default those of a new thread, of which Python would print the error on stderr: no ``except`` is
    reached yet when it finds no memory for its first function.
    """
    with contextlib.ExitStack() as mappings:
        for _ in range(pieces):
            mappings.enter_context(mmap.mmap(-1, nbytes // pieces))


def need_room(problem: str, nbytes: int, pieces: int) -> None:
    """Raise an error that begins with ``problem`` where the system refuses so many addresses."""
    try:
        check_room(nbytes, pieces)
    except OSError as error:
        raise HostMemoryError(
            f"{problem} ({error}); it needs some {nbytes >> 20} MiB of addresses, in {pieces} mappings; free "
            "memory, or raise the limit of this process"
        ) from error


class _Job:
    """One call of ``share``: parts that any thread may take."""

    def __init__(self, work: Callable[[int, int], object], count: int, step: int) -> None:
        self._work, self._count, self._step = work, count, step
        self._parts = math.ceil(count / step)
        self._next = itertools.count()  # its next() is one step under the global lock
        self._over = False
        self._inside: set[int] = set()  # threads that may be at a part
        self._left: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._errors: list[BaseException] = []

    def help(self) -> None:
        """Take parts in a thread of the pool, where no exception can come from outside."""
        me = threading.get_ident()
        try:
            # In this order: a caller that has said "over" and sees nobody inside may go.
            self._inside.add(me)
            self.take()
        except BaseException as error:
            self._over = True
            self._errors.append(error)
        finally:
            self._inside.discard(me)
            self._left.put(None)

    def take(self) -> None:
        """Do parts until none is left."""
        while not self._over and (part := next(self._next)) < self._parts:
            self._work(part * self._step, min((part + 1) * self._step, self._count))

    def end(self) -> None:
        """Stop the start of further parts, and wait for those that run."""
        self._over = True
        while self._inside:
            with contextlib.suppress(queue.Empty):
                self._left.get(timeout=LOOK)

    def tell(self) -> None:
        """Raise the error of a part that another thread ran."""
        if self._errors:
            raise self._errors[0]


class _Pool:
    """Threads that wait for jobs."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._hands = Hands(self._serve)
        # By thread: what an interrupt leaves behind is gone with the next call of that thread.
        self._callers: dict[int, _Job] = {}

    def run(self, job: _Job, threads: int) -> None:
        me = threading.get_ident()
        try:
            self._callers[me] = job
            helpers = threads - len(self._callers)  # other callers are threads at work too
            self._hands.hire(helpers)
            for _ in range(helpers):
                self._jobs.put(job)
            job.take()
        finally:  # wherever an interrupt came: from the first put on others may be at work
            try:
                job.end()
            except BaseException:  # whatever a handler of a signal raises
                job.end()  # parts still write to memory of the caller; a second interrupt lets them
                raise
            finally:
                self._callers.pop(me, None)
        job.tell()

    def _serve(self) -> None:
        _inside.pool = True
        while True:
            self._jobs.get().help()


_pool = _Pool()


def _after_fork() -> None:
    """Replace the pool in a forked child, since threads do not survive a fork."""
    globals()["_pool"] = _Pool()


in_child(_after_fork)


def inside_pool() -> bool:
    """True for a thread of the pool: work that it starts runs in this thread alone."""
    return getattr(_inside, "pool", False)


def share(work: Callable[[int, int], object], count: int, grain: int = 1) -> None:
    """Call ``work(start, stop)`` on slices of ``range(count)``, each a multiple of ``grain``."""
    grains = math.ceil(count / grain)
    threads = min(num_threads(), grains)
    try:
        if threads > 1 and not inside_pool():
            step = math.ceil(grains / (PARTS * threads)) * grain
            _pool.run(_Job(work, count, step), threads)
        elif count:
            work(0, count)
    except MemoryError as error:
        no_memory(error, count, threads)


def no_memory(error: MemoryError, count: int, threads: int) -> NoReturn:
    """Raise an error about missing memory, unless the error is one already."""
    if isinstance(error, HostMemoryError):
        raise error
    raise HostMemoryError(
        f"work on {count} pieces in {threads} threads: {error or 'no memory left'}; each thread needs "
        "memory of its own; free some, raise the limit of this process, or take fewer threads with "
        "gq.set_num_threads"
    ) from error
