"""All steps in one kernel that fills the card: weights stay in registers, a counter in memory is the barrier.

Changed: nothing is launched between steps. Each block has 16 units for the whole call and keeps their
weights in the registers of its warps, which share the columns of h. Blocks with the same rows hand each other
states through the second cache, and wait for each other after each step at a counter of their own. All blocks
of the launch run at the same time, or it is refused.

Why it helps: weights are read once a call, not once a step, and a barrier takes less than a launch.

Limited by the barrier, a microsecond of messages to the second cache and back, and by reading all states of
the block's rows from there. More rows than the card holds at a time run one part after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...card import older_than
from ...gru.run import Call
from ...ladder import register
from ...problems import Gru
from ..machine import device
from ..machine.launch import Kernel, family
from . import steps as made
from .call import Work, run
from .layout import padded_units
from .project import project
from .r4_cluster import fewest_waves, wider_than_bytes
from .tile import UNITS, Shape

LEAST = (8, 0)
SHAPES = {  # by padded units, from few rows to many
    64: [Shape(1, 1, 1, 1, beside) for beside in (1, 4)],
    128: [Shape(2, 1, 1, 1, beside) for beside in (1, 4)],
    256: [Shape(4, 1, 1, 1, beside) for beside in (1, 4)],
    512: [Shape(4, 2, 1, 1, beside) for beside in (1, 4)],
    1024: [Shape(4, 4, 1), Shape(4, 4, 1, 2, 2)],
    2048: [Shape(4, 8, 1, 2)],
}
MOST = max(SHAPES)
APART = 32  # counters of 4 bytes: each has a line of its own


@family([(shape,) for shapes in SHAPES.values() for shape in shapes])
def kernel(shape: Shape) -> Kernel:
    return made.kernel(shape, False)


def refuses(problem: Gru) -> str | None:
    if problem.units > MOST:
        return f"takes up to {MOST} units"
    card = problem.card
    blocks = padded_units(problem.units) // UNITS
    if card is not None and card.multiprocessors < blocks:
        return f"needs {blocks} multiprocessors at the same time, this GPU has {card.multiprocessors}"
    return wider_than_bytes(problem) or older_than(card, LEAST)


@register(__name__, __doc__, arithmetic="gru", accumulate="int32", refuses=refuses)
def launch(call: Call) -> None:
    run(call, project, steps)


def steps(work: Work, p: Any, first: int, stop: int) -> None:
    """Steps whose part of x is in p: as many rows at a time as run together."""
    given, n, multiprocessors = work.kept, work.rows, device.multiprocessors()
    shape = fewest_waves(SHAPES[given.padded], n, multiprocessors)
    at_once = max(1, multiprocessors // shape.blocks)
    parts = -(-n // shape.rows)
    counters = device.cupy().zeros((parts, APART), np.uint32)
    for part in range(0, parts, at_once):
        grid = min(at_once, parts - part) * shape.blocks
        kernel(shape)(
            (grid,), (shape.threads,), given.R, given.of_rh, given.biases, given.tables,
            given.tables.shape[1], p, work.states, work.states.strides[0], *work.outs(first), work.counts,
            counters[part:], stop - first, first, n, part * shape.rows, given.k,
        )  # fmt: skip
