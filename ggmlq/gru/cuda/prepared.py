"""Calls as lists of launches, written once for a shape and then only filled in.

A call of a hundred steps takes less than two hundred microseconds on the card, so what the host does before
its last launch counts as well. A rung whose call is a few launches has them written down here: the first call
of a shape makes the list, later ones bring addresses, and nothing of theirs is computed again. Memory comes
from CuPy in each call, so nothing of a call stays on the card but a line of counts.

A list belongs to one call at a time; the next call with the same shape, in another thread, gets another one.
Where there is nothing to wait for (a CUDA graph is recorded) and where constants are those of one call
(``dynamic_x``) the same launches are made at once.

Directions share nothing: where both fit the card the second one runs on a stream of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cuda.machine import device
from ...cuda.machine.launch import Kernel
from ...cuda.machine.prepared_launch import AddressSlot, PreparedLaunch
from ...cuda.machine.side_stream import fork
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

MOST_SHAPES = 32  # shapes of a cell; lists of those used last
X, H, Y, CODES, V, LAST, X_CODES, STATES, P, COUNTERS = range(10)  # addresses that a call brings
BYTES = 8 * encode.COUNTED
_lock = threading.Lock()


class StepsRung(NamedTuple):
    """What of a rung is different from others."""

    name: str
    project: Project
    steps: Steps
    busy: Callable[[Call], int]  # multiprocessors that its steps hold
    counters: Callable[[Call, int], int]  # words that are 0 before the first step, for steps at a time


class RecordedCall(NamedTuple):
    """The launches of a call of one shape."""

    launches: tuple[PreparedLaunch, ...]
    memory: Memory
    counters: int
    counts: Any  # on the device: nothing between calls
    host_counts: NDArray[np.int64]  # the same for the host, in memory that the device writes to
    owner: Any  # of that memory


def run(calls: Sequence[Call], rung: StepsRung) -> None:
    """All steps of all directions."""
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
    """Everything onto a stream; gives the memory that it works in."""
    empty = device.driver().empty
    codes, states, p = program.memory.made(empty)
    counters = empty(program.counters, np.uint32) if program.counters else None
    addresses = [
        0 if part is None else part.data.ptr
        for part in (call.x, call.h, call.y, call.codes, call.v, call.last, codes, states, p, counters)
    ]
    for each in program.launches:
        each.launch(addresses, stream)
    return codes, states, p, counters


# --- lists and who has them -----------------------------------------------------------------------


def _borrow(call: Call, rung: StepsRung, index: int) -> tuple[list[RecordedCall], RecordedCall]:
    """A list of launches that nobody else has, and where it goes afterwards."""
    x, h, made = call.x, call.h, call.cell.made
    of_h = None if h is None else (h.dtype.char, h.strides)
    key = (
        "cuda launches", index, rung.name, x.shape, x.dtype.char, x.strides, of_h, call.codes is None,
        call.v is None, call.even,
    )  # fmt: skip
    free: list[RecordedCall] | None = made.get(key)
    if free is None:
        free = _free_list(made, key)
    try:
        return free, free.pop()
    except IndexError:
        return free, _record(call, rung)


def _free_list(made: dict[Any, Any], key: Any) -> list[RecordedCall]:
    """Room for the lists of another shape, which may take that of the oldest."""
    with _lock:
        shapes = [each for each in made if type(each) is tuple and each[0] == key[0]]
        if len(shapes) >= MOST_SHAPES:
            made.pop(shapes[0], None)
        counts_list: list[RecordedCall] = made.setdefault(key, [])
        return counts_list


def _record(call: Call, rung: StepsRung) -> RecordedCall:
    """The launches of a call, with holes for its addresses."""
    weights, launches = device_weights(call), []

    def launch(kernel: Kernel, grid: tuple[int, ...], *arguments: Any, cluster: int = 1) -> None:
        launches.append(kernel.prepare(grid, (kernel.threads,), *arguments, cluster=cluster))

    sizes, cp = memory(call, weights), device.cupy()
    count = rung.counters(call, sizes.p[0] // call.x.shape[1])
    counts = device.once("counts of a GRU", lambda: cp.zeros(encode.COUNTED, np.int64))
    owner = cp.cuda.alloc_pinned_memory(BYTES)
    outputs = (
        AddressSlot(Y),
        *(0 if part is None else AddressSlot(at) for part, at in ((call.codes, CODES), (call.v, V))),
    )
    work = DeviceCall(
        call, weights, launch, AddressSlot(X_CODES), AddressSlot(STATES), AddressSlot(P), counts, outputs,
        AddressSlot(COUNTERS),
    )  # fmt: skip
    h = 0 if call.h is None else AddressSlot(H)
    encode.begin(launch, call, weights, AddressSlot(X), work.x, h, work.states, work.counters, count, counts)
    walk(work, rung.project, rung.steps)
    of_last = AddressSlot(Y if call.codes is None else CODES)
    source, size = last_states(call)
    offset = source - (call.y if call.codes is None else call.codes).data.ptr
    encode.end(launch, of_last + offset, AddressSlot(LAST), size, owner.ptr, counts)
    counts_list = np.frombuffer(owner, np.int64, encode.COUNTED)
    return RecordedCall(tuple(launches), sizes, count, counts, counts_list, owner)
