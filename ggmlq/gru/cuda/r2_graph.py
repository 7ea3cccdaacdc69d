"""A step in one launch, and 32 of them at once, as a CUDA graph.

A thread has one unit of one sequence. The three rows of a unit belong to it, so gates need nothing of other
threads, and only states go through memory, in two buffers by turns. The input terms are computed beforehand,
a product for many steps at once.

Launches of 32 steps are recorded once, with memory of their own for input terms and outputs, and replayed
for each 32 steps; the rest of a call is launched step by step. A cell keeps the graph of the last number of
rows, and records another one when that changes. So the host launches once for 32 steps, and the card goes
from one kernel to the next by itself.

Limited by the steps themselves: a kernel still begins, reads its weights and ends in each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...cuda.driver import device
from ...dispatch.ladder import register
from ..run import Call
from . import plain
from .call import DeviceCall, begin_call, end_call, run, words
from .project import project

RECORDED = 32  # steps, an even number, so that each replay begins with the first buffer of states


class Replay(NamedTuple):
    """A graph, and the memory that it works in."""

    key: tuple[Any, ...]
    graph: Any
    work: DeviceCall
    done: Any  # event: the last call with this memory has ended


@register(__name__, __doc__, arithmetic="gru", accumulate="int32, int64")
def launch(calls: Sequence[Call]) -> None:
    for call in calls:
        if call.x.shape[0] < RECORDED or device.capturing(device.current()):
            run([call], project, steps)
        else:
            _replayed(call)


def steps(work: DeviceCall, first: int, stop: int) -> None:
    """Run steps whose input terms are in p."""
    weights, n, narrow = work.weights, work.rows, work.weights.narrow
    step, grid = plain.one(narrow), plain.grid(n, weights.padded)
    r_words = words(weights.R, narrow)
    for t in range(first, stop):
        now, after = work.state(t), work.state(t + 1)
        work.launch(
            step, grid, r_words, words(now, narrow), now, after, weights.rh_constants, weights.biases,
            weights.tables,
            work.p, (t - first) * n, *work.outs(t), work.counts, weights.padded, weights.k,
        )  # fmt: skip


def _replayed(call: Call) -> None:
    t = call.x.shape[0]
    work = begin_call(call)
    replay, stream = _replay(work), device.driver().stream(device.current())
    stream.wait_event(replay.done)
    inner, whole = replay.work, t // RECORDED * RECORDED
    inner.states[...] = work.states
    inner.counts[...] = 0
    into = work._replace(p=inner.p)
    for first in range(0, whole, RECORDED):
        project(into, first, first + RECORDED)
        replay.graph.launch(stream)
        for to, source in zip(_outputs(call), _outputs(inner.call), strict=True):
            to[first : first + RECORDED] = source
    work.counts[...] += inner.counts
    if whole < t:
        work.states[...] = inner.states
        project(into, whole, t)
        steps(into, whole, t)
    replay.done.record(stream)
    end_call(call, work.counts)


def _outputs(call: Call) -> list[Any]:
    """The outputs that the call wants."""
    return [part for part in (call.y, call.codes, call.v) if part is not None]


def _replay(work: DeviceCall) -> Replay:
    """The cell's graph for this number of rows and these outputs, recorded anew if it is another one."""
    call, key = work.call, ("cuda graph", device.current())
    shape_key = (work.rows, work.weights.narrow, call.codes is None, call.v is None)
    replay: Replay | None = call.cell.cache.get(key)
    if replay is None or replay.key != shape_key:
        replay = call.cell.cache[key] = _recorded(work, shape_key)
    return replay


def _recorded(work: DeviceCall, key: tuple[Any, ...]) -> Replay:
    call, weights, cp = work.call, work.weights, device.cupy()
    outs = [None if part is None else cp.empty((RECORDED, *part.shape[1:]), part.dtype)
            for part in (call.y, call.codes, call.v)]  # fmt: skip
    number = np.int32 if weights.narrow else np.int64
    inner = work._replace(
        call=call._replace(h=None, y=outs[0], codes=outs[1], v=outs[2], last=None), x=None,
        states=cp.empty(work.states.shape, work.states.dtype), counts=cp.empty(work.counts.shape, np.int64),
        p=cp.empty((RECORDED * work.rows, 3 * weights.padded), number),
        outputs=tuple(0 if part is None else part.data.ptr for part in outs),
    )  # fmt: skip
    plain.one(weights.narrow).load()
    stream, done = cp.cuda.Stream(non_blocking=True), cp.cuda.Event(disable_timing=True)
    with stream:
        stream.begin_capture()
        steps(inner, 0, RECORDED)
        graph = stream.end_capture()
    inner = inner._replace(call=inner.call._replace(x=None))
    return Replay(key, graph, inner, done)
