"""What all rungs do around their steps: x to codes, what x brings, some steps at a time, counts to the host.

What x brings to the gates is one product for many steps at once. It is made for as many steps as fit the
second cache beside what else is there, then these run, then it is made for the next ones.

Counts, and whether x was finite, come to the host at the end of a call, which so waits for the device. While
a CUDA graph is recorded nothing can wait: then nothing is counted, and what is no number counts as 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...gru.diagnostics import TALLIED
from ...gru.run import ASKED, Call
from ...gru.weights import refuse_not_finite
from ..machine import device
from . import encode, plain
from .layout import Kept, kept
from .plain import Outs

AHEAD = 24 << 20  # bytes of what x brings that are there at a time
SPARE = 128  # rows of states behind the last: tiles of rows may reach there


class Work(NamedTuple):
    """What rungs are given, all on the device."""

    call: Call
    kept: Kept
    x: Any  # codes [T · N, columns]
    states: Any  # [2, N and spare ones, padded]: step t reads those of t & 1
    counts: Any  # int64, the order of ``TALLIED``

    @property
    def rows(self) -> int:
        """N."""
        return int(self.states.shape[1]) - SPARE

    @property
    def units(self) -> int:
        """H."""
        return int(self.call.cell.units)

    def state(self, t: int) -> Any:
        """The states [N, padded] that a step reads."""
        return self.states[t & 1, : self.rows]

    def outs(self, t: int) -> Outs:
        """Where the states of a step go."""
        call = self.call
        scale = int(np.float32(np.ldexp(1.0, -call.plan.h.exponent)).view(np.uint32))
        codes, v = (0 if part is None else part.data.ptr for part in (call.codes, call.v))
        return Outs(
            call.y.data.ptr, codes, v, call.plan.h.dtype.itemsize, scale, t * self.rows, self.units
        )  # fmt: skip


Project = Callable[[Work, Any, Any], None]  # (work, rows of x, p): what x brings
Steps = Callable[[Work, Any, int, int], None]  # (work, p, first, stop)


def run(call: Call, project: Project, steps: Steps) -> None:
    """All steps of a direction."""
    work = begun(call)
    (t, n, _), cp = call.x.shape, device.cupy()
    number = np.int32 if work.kept.narrow else np.int64
    every = n * 3 * work.kept.padded * np.dtype(number).itemsize
    some = min(t, max(1, AHEAD // every))
    p = cp.empty((some * n, 3 * work.kept.padded), number)
    for first in range(0, t, some):
        stop = min(first + some, t)
        rows = (stop - first) * n
        project(work, work.x[first * n : stop * n], p[:rows])
        steps(work, p, first, stop)
    ended(call, work.counts)


def begun(call: Call) -> Work:
    """Codes of x, and the states before the first step."""
    cp, given = device.cupy(), kept(call)
    counts = cp.zeros(encode.COUNTED, np.int64)
    x = encode.encoded(call, given.x_shift, given.narrow, given.columns, counts)
    kind = np.int8 if given.narrow else np.int32
    n = call.x.shape[1]
    states = cp.full((2, n + SPARE, given.padded), given.first, kind)
    if call.h is not None:
        states[0, :n, : call.cell.units] = call.h.astype(np.int32) + given.h_shift
    return Work(call, given, x, states, counts)


def ended(call: Call, counts: Any) -> None:
    """Counts to the host, unless a graph is recorded."""
    if device.capturing(device.current()):
        return
    found = counts.get()
    if found[encode.NOT_FINITE]:
        refuse_not_finite(ASKED, call.x, "x")
    call.counts[: len(TALLIED)] += found[: len(TALLIED)]


def words(array: Any, narrow: bool) -> Any:
    """Bytes by fours, or words as they are."""
    return array.view(np.int32) if narrow else array


def project_plainly(work: Work, x: Any, p: Any) -> None:
    """What x brings, by the plain kernel."""
    given, narrow = work.kept, work.kept.narrow
    plain.project(narrow)(
        plain.grid(len(x), given.padded), (plain.THREADS,), words(given.W, narrow), words(x, narrow),
        given.of_wx, given.biases, p, work.counts, work.units, given.padded, given.k,
    )  # fmt: skip
