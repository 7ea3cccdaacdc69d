"""The work around the steps of a GRU that all rungs for GPUs share: codes of x, input terms, counts.

The input terms of the gates are one product for many steps at once. It is computed for a chunk of steps,
whose terms fit the second cache beside other data; then these steps run, then the next chunk follows.

Counts, and whether x was finite, come to the host at the end of a call, which therefore waits for the
device. While a CUDA graph is recorded nothing can wait: then nothing is counted, and values that are not
finite count as 0.

Rungs pass their launches to ``work.launch``. Here it launches at once; in ``prepared.py`` it records them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...base.slots import Slot
from ...cuda.driver import device
from ...cuda.driver.launch import Kernel
from ..diagnostics import TALLIED
from ..run import REQUEST, Call
from ..weights import refuse_not_finite
from . import encode, plain
from .atoms import Outs
from .layout import DeviceWeights, device_weights

AHEAD = 24 << 20  # bytes of input terms that exist at a time
SPARE = 128  # rows of states behind the last, where tiles of rows may end
Address = Any  # an array, a number, or an Slot


class Memory(NamedTuple):
    """Shapes and dtypes of a call's memory."""

    codes: tuple[int, int]  # of x, [T · N, columns]
    states: tuple[int, int, int]  # [2, N and spare rows, padded]: step t reads buffer t & 1
    kind: Any  # of both
    p: tuple[int, int]  # input terms of some steps, [rows, 3 · padded]
    number: Any

    def allocate(self, empty: Callable[..., Any]) -> tuple[Any, Any, Any]:
        """Arrays for codes, states and p."""
        return empty(self.codes, self.kind), empty(self.states, self.kind), empty(self.p, self.number)


def memory(call: Call, weights: DeviceWeights) -> Memory:
    """The memory that a call needs."""
    t, n, _ = call.x.shape
    kind, number = (np.int8, np.int32) if weights.narrow else (np.int32, np.int64)
    row = 3 * weights.padded
    chunk_steps = min(t, max(1, AHEAD // (n * row * np.dtype(number).itemsize)))
    return Memory(
        (t * n, weights.columns), (2, n + SPARE, weights.padded), kind, (chunk_steps * n, row), number
    )


class DeviceCall(NamedTuple):
    """A call on the device, as rungs see it."""

    call: Call
    weights: DeviceWeights
    launch: Callable[..., None]  # (kernel, grid, *arguments, cluster=1)
    x: Address  # codes [T · N, columns]
    states: Address
    p: Address
    counts: Any  # int64, the order of ``TALLIED``
    outputs: tuple[Address, ...]  # y, codes, v; 0 for outputs that the call does not want
    counters: Address = 0

    @property
    def rows(self) -> int:
        """Rows of a step: N."""
        return int(self.call.x.shape[1])

    @property
    def units(self) -> int:
        """Hidden units of the cell: H."""
        return int(self.call.cell.units)

    @property
    def chunk_steps(self) -> int:
        """Steps of a chunk: p has room for their input terms."""
        return memory(self.call, self.weights).p[0] // self.rows

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one of the two buffers of states."""
        return (self.rows + SPARE) * self.weights.padded * (1 if self.weights.narrow else 4)

    def state(self, t: int) -> Any:
        """The states [N, padded] that a step reads, where they are an array."""
        return self.states[t & 1, : self.rows]

    def codes_from(self, t: int) -> Address:
        """Codes of x from a step on."""
        first = t * self.rows
        if type(self.x) is Slot:
            return self.x + first * self.weights.columns
        return self.x[first:]

    def counters_from(self, first: int) -> Address:
        """Counters from one on."""
        return self.counters + 4 * first if type(self.counters) is Slot else self.counters[first:]

    def outs(self, t: int) -> Outs:
        """The destinations of a step's states."""
        h = self.call.plan.h
        scale = int(np.float32(np.ldexp(1.0, -h.exponent)).view(np.uint32))
        y, codes, v = self.outputs
        return Outs(y, codes, v, h.dtype.itemsize, scale, t * self.rows, self.units)


Project = Callable[[DeviceCall, int, int], None]  # (work, first, stop): input terms of these steps, into p
Steps = Callable[[DeviceCall, int, int], None]  # (work, first, stop)


def launch_now(kernel: Kernel, grid: tuple[int, ...], *arguments: Any, cluster: int = 1) -> None:
    """Launch a kernel at once."""
    kernel(grid, (kernel.threads,), *arguments, cluster=cluster)


def run(calls: Sequence[Call], project: Project, steps: Steps) -> None:
    """Run all steps of each direction, one direction after the other."""
    for call in calls:
        work = begin_call(call)
        walk(work, project, steps)
        end_call(call, work.counts)


def walk(work: DeviceCall, project: Project, steps: Steps) -> None:
    """Run all steps in chunks: the input terms of a chunk, then its steps."""
    t, chunk_steps = work.call.x.shape[0], work.chunk_steps
    for first in range(0, t, chunk_steps):
        stop = min(first + chunk_steps, t)
        project(work, first, stop)
        steps(work, first, stop)


def begin_call(call: Call, counters: int = 0) -> DeviceCall:
    """Encode x, write the states before the first step, and clear ``counters`` counters."""
    cp, weights = device.cupy(), device_weights(call)
    counts = cp.zeros(encode.COUNTED, np.int64)
    codes, states, p = memory(call, weights).allocate(cp.empty)
    counting = cp.empty(counters, np.uint32) if counters else 0
    h = 0 if call.h is None else call.h
    encode.begin(launch_now, call, weights, call.x, codes, h, states, counting, counters, counts)
    outputs = tuple(0 if part is None else part.data.ptr for part in (call.y, call.codes, call.v))
    return DeviceCall(call, weights, launch_now, codes, states, p, counts, outputs, counting)


def end_call(call: Call, counts: Any) -> None:
    """Copy the last states, and the counts to the host unless a graph is recorded."""
    source, size = last_states(call)
    encode.end(launch_now, source, call.last, size, 0, counts)
    index = device.current()
    if not device.capturing(index):
        device.wait_for(device.driver().stream(index))
        report_counts(call, counts.get().tolist())


def last_states(call: Call) -> tuple[int, int]:
    """The address of the last step's states, and their bytes."""
    part = call.y if call.codes is None else call.codes
    step_bytes = part.nbytes // part.shape[0]
    return part.data.ptr + part.nbytes - step_bytes, step_bytes


def report_counts(call: Call, counts_list: list[int]) -> None:
    """Add the counts of a call that has ended; values that are not finite raise an error."""
    if counts_list[encode.NO_STATES]:
        refuse_not_finite(REQUEST, call.h, "h0")
    if counts_list[encode.NOT_FINITE]:
        refuse_not_finite(REQUEST, call.x, "x")
    if any(counts_list):
        call.counts[:] += counts_list[: len(TALLIED)]


def words(array: Any, narrow: bool) -> Any:
    """The array viewed as words of four bytes if ``narrow``, else as it is."""
    return array.view(np.int32) if narrow else array


def project_plain(work: DeviceCall, first: int, stop: int) -> None:
    """Compute the input terms of these steps by the plain kernel."""
    weights, narrow, rows = work.weights, work.weights.narrow, (stop - first) * work.rows
    work.launch(
        plain.project(narrow), plain.grid(rows, weights.padded), words(weights.W, narrow),
        words(work.codes_from(first)[:rows], narrow), weights.wx_constants, weights.biases, work.p[:rows],
        work.counts,
        work.units, weights.padded, weights.k,
    )  # fmt: skip
