"""What all rungs do around their steps: x to codes, what x brings, some steps at a time, counts to the host.

What x brings to the gates is one product for many steps at once. It is made for as many steps as fit the
second cache beside what else is there, then these run, then it is made for the next ones.

Counts, and whether x was finite, come to the host at the end of a call, which so waits for the device. While
a CUDA graph is recorded nothing can wait: then nothing is counted, and what is no number counts as 0.

Rungs say what they launch to ``work.launch``. Here it launches at once; ``prepared.py`` writes it down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...cuda.machine import device
from ...cuda.machine.launch import Kernel
from ...cuda.machine.prepared_launch import AddressSlot
from ..diagnostics import TALLIED
from ..run import ASKED, Call
from ..weights import refuse_not_finite
from . import encode, plain
from .layout import Kept, kept
from .plain import Outs

AHEAD = 24 << 20  # bytes of what x brings that are there at a time
SPARE = 128  # rows of states behind the last: tiles of rows may reach there
Address = Any  # an array, a number, or a Hole


class Memory(NamedTuple):
    """Shapes and dtypes of what a call works in."""

    codes: tuple[int, int]  # of x, [T · N, columns]
    states: tuple[int, int, int]  # [2, N and spare ones, padded]: step t reads those of t & 1
    kind: Any  # of both
    p: tuple[int, int]  # what x brings to some steps, [rows, 3 · padded]
    number: Any

    def made(self, empty: Callable[..., Any]) -> tuple[Any, Any, Any]:
        """Codes, states, p."""
        return empty(self.codes, self.kind), empty(self.states, self.kind), empty(self.p, self.number)


def memory(call: Call, given: Kept) -> Memory:
    """What a call needs."""
    t, n, _ = call.x.shape
    kind, number = (np.int8, np.int32) if given.narrow else (np.int32, np.int64)
    row = 3 * given.padded
    some = min(t, max(1, AHEAD // (n * row * np.dtype(number).itemsize)))
    return Memory((t * n, given.columns), (2, n + SPARE, given.padded), kind, (some * n, row), number)


class Work(NamedTuple):
    """What rungs are given, all on the device."""

    call: Call
    kept: Kept
    launch: Callable[..., None]  # (kernel, grid, *arguments, cluster=1)
    x: Address  # codes [T · N, columns]
    states: Address
    p: Address
    counts: Any  # int64, the order of ``TALLIED``
    outputs: tuple[Address, ...]  # y, codes, v; 0 where nobody asked for it
    counters: Address = 0

    @property
    def rows(self) -> int:
        """N."""
        return int(self.call.x.shape[1])

    @property
    def units(self) -> int:
        """H."""
        return int(self.call.cell.units)

    @property
    def some(self) -> int:
        """Steps that p has room for."""
        return memory(self.call, self.kept).p[0] // self.rows

    @property
    def between(self) -> int:
        """Bytes between both buffers of states."""
        return (self.rows + SPARE) * self.kept.padded * (1 if self.kept.narrow else 4)

    def state(self, t: int) -> Any:
        """The states [N, padded] that a step reads, where they are an array."""
        return self.states[t & 1, : self.rows]

    def codes_from(self, t: int) -> Address:
        """Codes of x from a step on."""
        first = t * self.rows
        if type(self.x) is AddressSlot:
            return self.x + first * self.kept.columns
        return self.x[first:]

    def counters_from(self, first: int) -> Address:
        """Those from one on."""
        return self.counters + 4 * first if type(self.counters) is AddressSlot else self.counters[first:]

    def outs(self, t: int) -> Outs:
        """Where the states of a step go."""
        h = self.call.plan.h
        scale = int(np.float32(np.ldexp(1.0, -h.exponent)).view(np.uint32))
        y, codes, v = self.outputs
        return Outs(y, codes, v, h.dtype.itemsize, scale, t * self.rows, self.units)


Project = Callable[[Work, int, int], None]  # (work, first, stop): what x brings to these steps, to p
Steps = Callable[[Work, int, int], None]  # (work, first, stop)


def at_once(kernel: Kernel, grid: tuple[int, ...], *arguments: Any, cluster: int = 1) -> None:
    """Launch it now."""
    kernel(grid, (kernel.threads,), *arguments, cluster=cluster)


def run(calls: Sequence[Call], project: Project, steps: Steps) -> None:
    """All steps of each direction, one after the other."""
    for call in calls:
        work = begun(call)
        walk(work, project, steps)
        ended(call, work.counts)


def walk(work: Work, project: Project, steps: Steps) -> None:
    """Some steps at a time."""
    t, some = work.call.x.shape[0], work.some
    for first in range(0, t, some):
        stop = min(first + some, t)
        project(work, first, stop)
        steps(work, first, stop)


def begun(call: Call, counters: int = 0) -> Work:
    """Codes of x, and the states before the first step; so many counters, if any."""
    cp, given = device.cupy(), kept(call)
    counts = cp.zeros(encode.COUNTED, np.int64)
    codes, states, p = memory(call, given).made(cp.empty)
    counting = cp.empty(counters, np.uint32) if counters else 0
    h = 0 if call.h is None else call.h
    encode.begin(at_once, call, given, call.x, codes, h, states, counting, counters, counts)
    outputs = tuple(0 if part is None else part.data.ptr for part in (call.y, call.codes, call.v))
    return Work(call, given, at_once, codes, states, p, counts, outputs, counting)


def ended(call: Call, counts: Any) -> None:
    """The last states, and counts to the host unless a graph is recorded."""
    source, size = last(call)
    encode.end(at_once, source, call.last, size, 0, counts)
    index = device.current()
    if not device.capturing(index):
        device.wait_for(device.driver().stream(index))
        told(call, counts.get().tolist())


def last(call: Call) -> tuple[int, int]:
    """Where the states of the last step are, and their bytes."""
    part = call.y if call.codes is None else call.codes
    each = part.nbytes // part.shape[0]
    return part.data.ptr + part.nbytes - each, each


def told(call: Call, found: list[int]) -> None:
    """Counts of a call that has ended; what is no number is an error."""
    if found[encode.NO_STATES]:
        refuse_not_finite(ASKED, call.h, "h0")
    if found[encode.NOT_FINITE]:
        refuse_not_finite(ASKED, call.x, "x")
    if any(found):
        call.counts[:] += found[: len(TALLIED)]


def words(array: Any, narrow: bool) -> Any:
    """Bytes by fours, or words as they are."""
    return array.view(np.int32) if narrow else array


def project_plainly(work: Work, first: int, stop: int) -> None:
    """What x brings, by the plain kernel."""
    given, narrow, rows = work.kept, work.kept.narrow, (stop - first) * work.rows
    work.launch(
        plain.project(narrow), plain.grid(rows, given.padded), words(given.W, narrow),
        words(work.codes_from(first)[:rows], narrow), given.of_wx, given.biases, work.p[:rows], work.counts,
        work.units, given.padded, given.k,
    )  # fmt: skip
