"""A step in one launch: the thread that has the sums of a unit goes on to its gates and its state.

A thread has one unit of one sequence. The three rows of a unit belong to it, so gates need nothing of other
threads, and only states go through memory, in two buffers by turns. The input terms are computed beforehand,
a product for many steps at once. In three launches, products, gates and states, a step of 32 sequences takes
29 µs on an H200, and 26 so.

Limited by the launch, and by weights that come anew from the second cache in each step.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    step, grid = plain.one(narrow), plain.grid(n, weights.padded)
    r_words = words(weights.R, narrow)
    for t in range(first, stop):
        now, after = work.state(t), work.state(t + 1)
        work.launch(
            step, grid, r_words, words(now, narrow), now, after, weights.rh_constants, weights.biases,
            weights.tables,
            work.p, (t - first) * n, *work.outs(t), work.counts, weights.padded, weights.k,
        )  # fmt: skip
