"""All steps in one kernel of clusters, which hand each other states through their shared memory.

Changed: units of up to 512 are shared out to the blocks of a cluster, at most eight, and rows of the batch to
clusters. A cluster is all that its rows need: weights stay in its registers, states go from each block into
the shared memory of all eight, and the blocks meet in hardware after each step. Clusters never wait for one
another, so any number of them is right, and a small batch still uses many multiprocessors.

Why it helps: no launch, no way through memory, and a meeting in hardware, the quickest there is.

Limited by the chain of a step: products, one gate after the other, the way to the neighbours.
"""

from __future__ import annotations

from typing import Any

from ...card import older_than
from ...gru.run import Call
from ...ladder import register
from ...problems import Gru
from ..machine import device
from ..machine.launch import Kernel, family
from . import steps as made
from .call import Work, run
from .project import project
from .tile import ENTRIES, Shape

LEAST = (9, 0)
SHAPES = {  # by padded units, from few rows to many
    64: [Shape(1, 1, 2, 1, beside) for beside in (1, 2, 4)],
    128: [Shape(2, 1, 2, 1, beside) for beside in (1, 2, 4)],
    256: [Shape(4, 1, 2, 1, beside) for beside in (1, 2, 4)],
    512: [Shape(4, 2, 4, tiles) for tiles in (1, 2)],
}
MOST = max(SHAPES)


@family([(shape,) for shapes in SHAPES.values() for shape in shapes])
def kernel(shape: Shape) -> Kernel:
    return made.kernel(shape, True)


def fewest_waves(shapes: list[Shape], n: int, multiprocessors: int) -> Shape:
    """The one with the fewest rows a block that still lets all rows run at the same time, or the last."""
    for shape in shapes:
        if -(-n // shape.rows) * shape.blocks <= multiprocessors:
            return shape
    return shapes[-1]


def wider_than_bytes(problem: Gru) -> str | None:
    """Why kernels on bytes do not take a problem, or None."""
    if not problem.narrow or problem.bits > 8:
        return "takes codes of up to 8 bits, with sums that fit int32"
    if problem.entries > ENTRIES:
        return f"takes tables of up to {ENTRIES} entries"
    return None


def refuses(problem: Gru) -> str | None:
    if problem.units > MOST:
        return f"takes up to {MOST} units"
    return wider_than_bytes(problem) or older_than(problem.card, LEAST)


@register(__name__, __doc__, arithmetic="gru", accumulate="int32", refuses=refuses)
def launch(call: Call) -> None:
    run(call, project, steps)


def steps(work: Work, p: Any, first: int, stop: int) -> None:
    """Steps whose part of x is in p."""
    given, n = work.kept, work.rows
    shape = fewest_waves(SHAPES[given.padded], n, device.multiprocessors())
    grid = -(-n // shape.rows) * shape.blocks
    kernel(shape)(
        (grid,), (shape.threads,), given.R, given.of_rh, given.biases, given.tables, given.tables.shape[1],
        p, work.states, work.states.strides[0], *work.outs(first), work.counts, 0, stop - first, first, n, 0,
        given.k, cluster=shape.blocks,
    )  # fmt: skip
