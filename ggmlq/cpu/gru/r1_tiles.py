"""Keep the weights in the order of the dot product and a step of 32 units in vectors, from product to state.

Changed: rows of the three gates of 16 units lie side by side, four codes at a time, so one instruction makes
16 sums longer by four products, and the gates of a unit have all their sums in one place. The atoms of a step
are compiled for vectors of 32 units. No step leaves compiled code, threads have sequences of their own.

Why it helps: products are int8 dot products at the rate of the machine, weights are read once for eight
sequences, and what lies between products and gates never goes to memory. With few sequences what x brings
is computed beforehand, for many steps at once.

Limited by the dot products with many sequences; with one by reading R from the second cache in each step.
Codes of more than 8 bits go the same way in int64, one sequence at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...gru.run import INTERMEDIATE, Call
from ...gru.step import COUNTED
from ...ladder import register
from ...threads import num_threads, share
from ..machine.target import target
from .encode import encode
from .layout import Kept, kept
from .vectors import LANES
from .walk import COUNTS, KINDS, MOST, projector, walker

AHEAD = 4 << 20  # bytes of what x brings that are held at a time
ROWS = 64  # of x that a thread takes at a time


@register(__name__, __doc__, arithmetic="gru", accumulate="int32, int64")
def launch(calls: Sequence[Call]) -> None:
    for call in calls:
        _launch(call)


def _launch(call: Call) -> None:
    given = _kept(call)
    most, (steps, n, _) = MOST[target().registers], call.x.shape
    x = encode(call, *given.x_stored)
    states = np.zeros((2, n, given.h_stored.pitch), given.h_stored.dtype)
    states[0, :, : call.cell.units] = call.h.astype(np.int64) + given.h_stored.shift
    ahead = given.narrow and n < most * 2
    padded = given.h_stored.pitch
    at_once = max(1, AHEAD // (12 * padded * n)) if ahead else steps
    for start in range(0, steps, at_once):
        stop = min(start + at_once, steps)
        _some(call, given, x[start * n : stop * n], states, slice(start, stop), ahead)
        if (stop - start) & 1:
            states = states[::-1]
    call.h[...] = states[0, :, : call.cell.units].astype(np.int64) - given.h_stored.shift
    if call.codes is not None:
        f = call.plan.h
        call.codes[...] = np.rint(np.ldexp(call.y, f.exponent)) + f.zero


def _kept(call: Call) -> Kept:
    if call.plan.x == call.cell.formats["x"]:
        found: Kept = call.cell.prepared("tiles", lambda cell: kept(cell, call.plan, target()))
        return found
    return kept(call.cell, call.plan, target())


def _some(call: Call, given: Kept, x: Any, states: Any, steps: slice, ahead: bool) -> None:
    """A run of steps."""
    y, n, padded = call.y[steps], states.shape[1], given.h_stored.pitch
    kind = given.k.dtype
    none = np.zeros(0, kind)
    brought = np.empty((len(x), 3 * padded), kind) if ahead else none
    if ahead:
        counts = np.zeros((len(x), KINDS, COUNTS), kind)
        project = projector(given.narrow, target())

        def before(first: int, stop: int) -> None:
            project(
                x, given.W, given.wx, given.biases, given.k, brought, call.cell.units, counts, first, stop
            )

        share(before, len(x), ROWS)
        _count(call, counts)
    counts = np.zeros((n, KINDS, COUNTS), kind)
    v = np.empty((len(y), n, 4, padded), np.int32) if call.v is not None else np.zeros((0, 0, 4, 0), np.int32)
    walk = walker(given.narrow, ahead, target())
    zero, scale = call.plan.h.zero + given.h_stored.shift, np.float32(np.ldexp(1.0, -call.plan.h.exponent))

    def work(first: int, stop: int) -> None:
        walk(x, given.W, given.R, given.wx, given.rh, given.biases, given.bias_added, given.tables, given.k,
             states, zero, scale, brought, y, v, counts, first, stop)  # fmt: skip

    most = MOST[target().registers]
    share(work, n, -(-n // (num_threads() * most)) * most)
    _count(call, counts)
    if call.v is not None:
        zeros = np.array([call.cell.formats[name].zero for name in INTERMEDIATE], np.int32)
        units = call.cell.units
        np.add(v[..., :units], zeros[:, None], out=call.v[steps].reshape(len(y), n, 4, units))


def _count(call: Call, counts: Any) -> None:
    """Lanes without a unit are no saturation."""
    whole, last = counts.reshape(-1, KINDS, len(COUNTED), LANES).sum(0, dtype=np.int64)
    call.counts[: len(COUNTED)] += whole.sum(1) + last[:, : call.cell.units % LANES].sum(1)
