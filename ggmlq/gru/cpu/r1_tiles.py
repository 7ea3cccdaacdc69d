"""Keep the weights in the order of the dot product and a step of 32 units in vectors, from product to state.

Changed: rows of the three gates of 16 units lie side by side, four codes at a time, so one instruction adds
four products to each of 16 sums, and the gates of a unit have all their sums in one place. The atoms of a
step are compiled for vectors of 32 units. No step leaves compiled code, threads have sequences of their own.

Why it helps: products are int8 dot products at the rate of the machine, weights are read once for eight
sequences, and numbers between products and gates never go to memory. With few sequences the input
terms are computed beforehand, for many steps at once.

Limited by the dot products with many sequences; with one by reading R from the second cache in each step.
Codes of more than 8 bits go the same way in int64, one sequence at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.threads import num_threads, share
from ...cpu.machine.target import target
from ...dispatch.ladder import register
from ..run import INTERMEDIATE, Call
from ..step import COUNTED
from .encode import encode
from .layout import TileCell, tile_cell
from .step_loop import COUNTS, KINDS, MOST, projector, step_loop
from .vectors import LANES

AHEAD = 4 << 20  # bytes of input terms that are held at a time
SUMS = 1 << 25  # products of x and W that a thread takes at a time: fewer take less than to wake it


@register(__name__, __doc__, arithmetic="gru", accumulate="int32, int64")
def launch(calls: Sequence[Call]) -> None:
    directions = [_Direction(call, len(calls)) for call in calls]
    steps, length = len(calls[0].x), min(direction.at_once for direction in directions)
    runs = [slice(first, min(first + length, steps)) for first in range(0, steps, length)]
    _all([job for direction in directions for job in direction.x_jobs(runs[0])])
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        jobs = [job for direction in directions for job in direction.step_jobs(run)]
        if following:
            jobs += [job for direction in directions for job in direction.x_jobs(following)]
        _all(jobs)
    for direction in directions:
        direction.end()


def _all(jobs: list[Callable[[], None]]) -> None:
    """Run jobs by all threads, the first ones first."""

    def work(first: int, stop: int) -> None:
        for job in jobs[first:stop]:
            job()

    share(work, len(jobs))


class _Direction:
    """A direction of a call that runs: jobs for threads, which share nothing."""

    def __init__(self, call: Call, beside: int) -> None:
        self.call, self.cell, threads = call, _tile_cell(call), num_threads()
        most, (steps, n, c) = MOST[target().registers], call.x.shape
        self.x = encode(call, *self.cell.x_storage)
        padded, storage = self.cell.h_storage.pitch, self.cell.h_storage
        self.states = np.zeros((2, n, padded), storage.dtype)
        self.states[0, :, : call.cell.units] = call.h.astype(np.int64) + storage.shift
        self.ahead = self.cell.narrow and n < most * 2
        self.at_once = steps
        if self.ahead:
            self.at_once = max(2, AHEAD // (12 * padded * n) & ~1)  # even, so that states[0] begins again
        self.rows = -(-SUMS // (3 * padded * c * 64)) * 64  # of x, for a thread
        self.grain = -(-n * beside // (threads * most)) * most  # sequences for a thread
        self.x_terms: dict[int, NDArray[Any]] = {}
        self.counted: list[NDArray[Any]] = []
        self.v: list[tuple[slice, NDArray[Any]]] = []

    def _counts(self) -> NDArray[Any]:
        """Counts for one job: threads never share them."""
        self.counted.append(np.zeros((KINDS, COUNTS), self.cell.k.dtype))
        return self.counted[-1]

    def x_jobs(self, run: slice) -> list[Callable[[], None]]:
        """Jobs that compute the input terms of a run of steps, unless the steps do it themselves."""
        if not self.ahead:
            return []
        n, cell, project = self.states.shape[1], self.cell, projector(True, target())
        x = self.x[run.start * n : run.stop * n]
        terms = np.empty((len(x), 3 * cell.h_storage.pitch), cell.k.dtype)
        self.x_terms[run.start] = terms
        return [
            partial(
                project, x, cell.W, cell.wx, cell.biases, cell.k, terms, self.call.cell.units,
                self._counts(), first, min(first + self.rows, len(x)),
            )
            for first in range(0, len(x), self.rows)
        ]  # fmt: skip

    def step_jobs(self, run: slice) -> list[Callable[[], None]]:
        """Jobs that compute the steps of a run."""
        call, cell, (_, n, padded) = self.call, self.cell, self.states.shape
        y, x = call.y[run], self.x[run.start * n : run.stop * n]
        x_terms = self.x_terms.pop(run.start, np.zeros(0, cell.k.dtype))
        v = np.zeros((0, 0, 4, 0), np.int32)
        if call.v is not None:
            v = np.empty((len(y), n, 4, padded), np.int32)
            self.v.append((run, v))
        run_steps, h = step_loop(cell.narrow, self.ahead, target()), call.plan.h
        zero, scale = h.zero + cell.h_storage.shift, np.float32(2.0**-h.exponent)
        return [
            partial(
                run_steps, x, cell.W, cell.R, cell.wx, cell.rh, cell.biases, cell.bias_added, cell.tables,
                cell.k, self.states, zero, scale, x_terms, y, v, self._counts(), first,
                min(first + self.grain, n),
            )
            for first in range(0, n, self.grain)
        ]  # fmt: skip

    def end(self) -> None:
        """Write states, codes, intermediates and counts into the call."""
        call, storage, units = self.call, self.cell.h_storage, self.call.cell.units
        steps, n, _ = call.x.shape
        call.h[...] = self.states[steps & 1, :, :units].astype(np.int64) - storage.shift
        if call.codes is not None:
            f = call.plan.h
            call.codes[...] = np.rint(np.ldexp(call.y, f.exponent)) + f.zero
        zeros = np.array([call.cell.formats[name].zero for name in INTERMEDIATE], np.int32)
        for run, v in self.v:
            np.add(v[..., :units], zeros[:, None], out=call.v[run].reshape(len(v), n, 4, units))
        counts = sum(self.counted[1:], self.counted[0].astype(np.int64))
        whole, last = counts.reshape(KINDS, len(COUNTED), LANES)  # lanes without a unit are no saturation
        call.counts[: len(COUNTED)] += whole.sum(1) + last[:, : units % LANES].sum(1)


def _tile_cell(call: Call) -> TileCell:
    if call.plan.x is call.cell.formats["x"]:
        cell: TileCell = call.cell.prepared("tiles", lambda cell: tile_cell(cell, call.plan, target()))
        return cell
    return tile_cell(call.cell, call.plan, target())
