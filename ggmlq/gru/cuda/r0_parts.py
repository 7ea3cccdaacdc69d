"""A step in three launches: products of the states, gates, new states.

Changed: nothing yet, this is the ground. A thread has one unit of one sequence; intermediate values of the
three parts go through memory. The input terms are computed beforehand, a product for many steps at once.

Limited by launches: three a step, each of which waits for the one before, and by each thread reading the
weights of its unit anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...cuda.driver import device
from ...dispatch.ladder import register
from ..run import Call
from . import plain
from .call import DeviceCall, project_plain, run, words


@register(__name__, __doc__, arithmetic="gru", accumulate="int32, int64")
def launch(calls: Sequence[Call]) -> None:
    run(calls, project_plain, steps)


def steps(work: DeviceCall, first: int, stop: int) -> None:
    """Run steps whose input terms are in p."""
    weights, n, narrow = work.weights, work.rows, work.weights.narrow
    number, padded = np.int32 if narrow else np.int64, weights.padded
    deviations, mid = (device.cupy().empty((n, count * padded), number) for count in (3, 4))
    products, gates, states = plain.products(narrow), plain.gates(narrow), plain.states(narrow)
    grid = plain.grid(n, padded)
    for t in range(first, stop):
        now, after = work.state(t), work.state(t + 1)
        work.launch(
            products, grid, words(weights.R, narrow), words(now, narrow), weights.rh_constants,
            deviations, work.counts,
            work.units, padded, weights.k,
        )  # fmt: skip
        work.launch(
            gates, grid, deviations, work.p, (t - first) * n, weights.biases, weights.tables, mid,
            work.counts,
            work.units, padded, weights.k,
        )  # fmt: skip
        work.launch(states, grid, mid, now, after, *work.outs(t), work.counts, padded, weights.k)
