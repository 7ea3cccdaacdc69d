"""Calls of the rungs r3 and r4: the launches of a shape are recorded once, then repeated for new addresses.

A call of a hundred steps takes less than two hundred microseconds on the card, so the host's work before
its last launch counts as well. The first call of a shape records its launches; later calls only pass their
addresses. Memory comes from CuPy in each call, so nothing of a call stays on the
card but a row of counts.

A recording belongs to one call at a time; another thread's call with the same shape gets another one. While
a CUDA graph is recorded, and where constants are those of one call (``dynamic_x``), the same launches are
made directly.

Directions share nothing: where both fit the card the second one runs on a stream of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base.slots import Slot
from ...cuda.driver import device
from ...cuda.driver.launch import Kernel, Launch
from ...cuda.driver.recorded import RecordedLaunches, fork
from ..run import Call
from . import encode
from .call import (
    DeviceCall,
    Memory,
    Project,
    Steps,
    begin_call,
    end_call,
    last_states,
    memory,
    report_counts,
    walk,
)  # fmt: skip
from .layout import device_weights

MOST_SHAPES = 32  # shapes of a cell whose recordings are kept
X, H, Y, CODES, V, LAST, X_CODES, STATES, P, COUNTERS = range(10)  # numbers of a call's addresses
BYTES = 8 * encode.COUNTED
_lock = threading.Lock()


class StepsRung(NamedTuple):
    """The functions in which the rungs r3 and r4 differ."""

    name: str
    project: Project
    steps: Steps
    busy: Callable[[Call], int]  # multiprocessors that its steps occupy
    counters: Callable[
        [Call, int], int
    ]  # words that are 0 before the first step, for a number of steps at a time


class RecordedCall(NamedTuple):
    """The launches of a call of one shape."""

    launches: RecordedLaunches
    memory: Memory
    counters: int
    counts: Any  # on the device: zeros between calls
    host_counts: NDArray[np.int64]  # the counts of a call, in host memory that the device writes to
    owner: Any  # the owner of that memory


def run(calls: Sequence[Call], rung: StepsRung) -> None:
    """Run all steps of all directions."""
    gpu = device.driver()
    index = gpu.device()
    main = gpu.stream(index)
    waits = not (main.ptr and main.is_capturing())
    both = len(calls) > 1 and sum(map(rung.busy, calls)) <= device.multiprocessors()
    if not waits or any(call.plan.x is not call.cell.formats["x"] for call in calls):
        _launch_now(calls, rung, index, main, both)
        return
    borrowed = [_borrow(call, rung, index) for call in calls]
    memory_in_use: list[Any] = []
    try:
        if both:
            with fork(index, main) as side:
                for call, (_, program), stream in zip(calls, borrowed, (main, side), strict=True):
                    memory_in_use.append(_launch(call, program, stream.ptr))
        else:
            for call, (_, program) in zip(calls, borrowed, strict=True):
                memory_in_use.append(_launch(call, program, main.ptr))
    finally:
        device.wait_for(main)  # before anyone else gets the memory, errors or none
    counts_list = []
    for free, program in borrowed:
        counts_list.append(program.host_counts.tolist())
        free.append(program)
    for call, counts in zip(calls, counts_list, strict=True):
        report_counts(call, counts)


def _launch_now(calls: Sequence[Call], rung: StepsRung, index: int, main: Any, both: bool) -> None:
    def launched(call: Call) -> DeviceCall:
        chunk_steps = memory(call, device_weights(call)).p[0] // call.x.shape[1]
        work = begin_call(call, rung.counters(call, chunk_steps))
        walk(work, rung.project, rung.steps)
        return work

    if both:
        with fork(index, main) as side:
            works = [launched(calls[0])]
            with side:
                works.append(launched(calls[1]))
    else:
        works = [launched(call) for call in calls]
    for work in works:
        end_call(work.call, work.counts)


def _launch(call: Call, program: RecordedCall, stream: int) -> Any:
    """Queue all launches on a stream; returns the memory that they use."""
    empty = device.driver().empty
    codes, states, p = program.memory.allocate(empty)
    counters = empty(program.counters, np.uint32) if program.counters else None
    addresses = [
        0 if part is None else part.data.ptr
        for part in (call.x, call.h, call.y, call.codes, call.v, call.last, codes, states, p, counters)
    ]
    program.launches.launch(addresses, stream)
    return codes, states, p, counters


# --- recordings and their users -------------------------------------------------------------------


def _borrow(call: Call, rung: StepsRung, index: int) -> tuple[list[RecordedCall], RecordedCall]:
    """A recording that nobody else uses, and the list to which it returns."""
    x, h, lists = call.x, call.h, call.cell.cache
    h_key = None if h is None else (h.dtype.char, h.strides)
    key = (
        "cuda launches", index, rung.name, x.shape, x.dtype.char, x.strides, h_key, call.codes is None,
        call.v is None, call.even,
    )  # fmt: skip
    free: list[RecordedCall] | None = lists.get(key)
    if free is None:
        free = _free_list(lists, key)
    try:
        return free, free.pop()
    except IndexError:
        return free, _record(call, rung)


def _free_list(lists: dict[Any, Any], key: Any) -> list[RecordedCall]:
    """A list for the recordings of another shape, which may replace the oldest one."""
    with _lock:
        shapes = [shape for shape in lists if type(shape) is tuple and shape[0] == key[0]]
        if len(shapes) >= MOST_SHAPES:
            lists.pop(shapes[0], None)
        free: list[RecordedCall] = lists.setdefault(key, [])
        return free


def _record(call: Call, rung: StepsRung) -> RecordedCall:
    """The launches of a call, with slots for its addresses."""
    weights, launches = device_weights(call), []

    def launch(kernel: Kernel, grid: tuple[int, ...], *arguments: Any, cluster: int = 1) -> None:
        launches.append(Launch(kernel, grid, (kernel.threads,), arguments, cluster))

    sizes, cp = memory(call, weights), device.cupy()
    count = rung.counters(call, sizes.p[0] // call.x.shape[1])
    counts = device.once("counts of a GRU", lambda: cp.zeros(encode.COUNTED, np.int64))
    owner = cp.cuda.alloc_pinned_memory(BYTES)
    outputs = (
        Slot(Y),
        *(0 if part is None else Slot(at) for part, at in ((call.codes, CODES), (call.v, V))),
    )
    work = DeviceCall(
        call, weights, launch, Slot(X_CODES), Slot(STATES), Slot(P), counts, outputs,
        Slot(COUNTERS),
    )  # fmt: skip
    h = 0 if call.h is None else Slot(H)
    encode.begin(launch, call, weights, Slot(X), work.x, h, work.states, work.counters, count, counts)
    walk(work, rung.project, rung.steps)
    last_slot = Slot(Y if call.codes is None else CODES)
    source, size = last_states(call)
    offset = source - (call.y if call.codes is None else call.codes).data.ptr
    encode.end(launch, last_slot + offset, Slot(LAST), size, owner.ptr, counts)
    host_counts = np.frombuffer(owner, np.int64, encode.COUNTED)
    return RecordedCall(RecordedLaunches.of(launches), sizes, count, counts, host_counts, owner)
