"""All steps in one kernel of clusters, which hand each other states through their shared memory.

Changed: up to 512 units are shared out to the blocks of a cluster, at most eight, and rows of the batch to
clusters. A cluster needs no other one: weights stay in its registers, states go from each block into the
shared memory of all its blocks, and the blocks meet in hardware after each step. Clusters never wait for one
another, so any number of them is right, and a small batch still uses many multiprocessors.

Why it helps: no launch between steps, no way through memory, and a barrier in hardware, the quickest kind.

Limited by the chain of a step: products, one gate after the other, the way to the neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...cuda.driver import device
from ...cuda.driver.launch import Kernel, family
from ...dispatch.card import older_than
from ...dispatch.ladder import register
from ...dispatch.problems import Gru
from ..run import Call
from . import steps as shared_steps
from .call import DeviceCall
from .layout import padded_units
from .prepared import StepsRung, run
from .project import project
from .tile import ENTRIES, StepTile

LEAST = (9, 0)
SHAPES = {  # by padded units, from few rows to many
    64: [StepTile(1, 1, 2, 1, row_warps) for row_warps in (1, 2, 4)],
    128: [StepTile(2, 1, 2, 1, row_warps) for row_warps in (1, 2, 4)],
    256: [StepTile(4, 1, 2, 1, row_warps) for row_warps in (1, 2, 4)],
    512: [StepTile(4, 2, 4, tiles) for tiles in (1, 2)],
}
MOST = max(SHAPES)


@family([(shape,) for shapes in SHAPES.values() for shape in shapes])
def kernel(shape: StepTile) -> Kernel:
    return shared_steps.kernel(shape, True)


def fewest_waves(shapes: list[StepTile], n: int, multiprocessors: int) -> StepTile:
    """The shape with the fewest rows a block that still lets all rows run at the same time, or the last."""
    for shape in shapes:
        if -(-n // shape.rows) * shape.blocks <= multiprocessors:
            return shape
    return shapes[-1]


def wider_than_bytes(problem: Gru) -> str | None:
    """The reason why kernels on bytes do not take a problem, or None."""
    if not problem.narrow or problem.bits > 8:
        return "takes codes of up to 8 bits, with sums that fit int32"
    if problem.entries > ENTRIES:
        return f"takes tables of up to {ENTRIES} entries"
    return None


def refuses(problem: Gru) -> str | None:
    if problem.units > MOST:
        return f"takes up to {MOST} units"
    return wider_than_bytes(problem) or older_than(problem.card, LEAST)


def clusters(call: Call) -> tuple[StepTile, int]:
    """The shape of a block, and the number of blocks."""
    n = call.x.shape[1]
    shape = fewest_waves(SHAPES[padded_units(call.cell.units)], n, device.multiprocessors())
    return shape, -(-n // shape.rows) * shape.blocks


def steps(work: DeviceCall, first: int, stop: int) -> None:
    """Run steps whose input terms are in p."""
    shape, blocks = clusters(work.call)
    shared_steps.launch_steps(work, kernel(shape), blocks, first, stop, cluster=shape.blocks)


RUNG = StepsRung("cluster", project, steps, lambda call: clusters(call)[1], lambda call, some: 0)


@register(__name__, __doc__, arithmetic="gru", accumulate="int32", refuses=refuses)
def launch(calls: Sequence[Call]) -> None:
    run(calls, RUNG)
