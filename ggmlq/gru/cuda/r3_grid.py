"""All steps in one kernel that fills the card: weights stay in registers, a counter in memory is the barrier.

Changed: nothing is launched between steps. Each block has 16 units for the whole call and keeps their
weights in the registers of its warps, which share the columns of h. Blocks with the same rows exchange
states through the second cache, and wait for each other after each step at a counter of their own. All blocks
of the launch run at the same time, or it is refused.

Why it helps: weights are read once a call, not once a step, and a barrier takes less than a launch.

Limited by the barrier, a microsecond of messages to the second cache and back, and by reading all states of
the block's rows from there. More rows than the card holds at a time run one part after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
from .r4_cluster import fewest_waves, wider_than_bytes
from .tile import UNITS, StepTile

LEAST = (8, 0)
SHAPES = {  # by padded units, from few rows to many
    64: [StepTile(1, 1, 1, 1, row_warps) for row_warps in (1, 4)],
    128: [StepTile(2, 1, 1, 1, row_warps) for row_warps in (1, 4)],
    256: [StepTile(4, 1, 1, 1, row_warps) for row_warps in (1, 4)],
    512: [StepTile(4, 2, 1, 1, row_warps) for row_warps in (1, 4)],
    1024: [StepTile(4, 4, 1), StepTile(4, 4, 1, 2, 2)],
    2048: [StepTile(4, 8, 1, 2)],
}
MOST = max(SHAPES)
APART = 32  # counters of 4 bytes: each has a line of its own


@family([(shape,) for shapes in SHAPES.values() for shape in shapes])
def kernel(shape: StepTile) -> Kernel:
    return shared_steps.kernel(shape, False)


def refuses(problem: Gru) -> str | None:
    if problem.units > MOST:
        return f"takes up to {MOST} units"
    card = problem.card
    blocks = padded_units(problem.units) // UNITS
    if card is not None and card.multiprocessors < blocks:
        return f"needs {blocks} multiprocessors at the same time, this GPU has {card.multiprocessors}"
    return wider_than_bytes(problem) or older_than(card, LEAST)


class RowBlocks(NamedTuple):
    """The rows of a call in blocks."""

    shape: StepTile
    total: int  # blocks of rows, each with a counter of its own
    concurrent: int  # blocks of rows that run at the same time

    @staticmethod
    def of(call: Call) -> RowBlocks:
        """The blocks of rows of a call, in the shape that needs the fewest waves."""
        n, multiprocessors = call.x.shape[1], device.multiprocessors()
        shape = fewest_waves(SHAPES[padded_units(call.cell.units)], n, multiprocessors)
        return RowBlocks(shape, -(-n // shape.rows), max(1, multiprocessors // shape.blocks))

    @property
    def blocks(self) -> int:
        """Thread blocks that run at the same time."""
        return min(self.concurrent, self.total) * self.shape.blocks


def counters(call: Call, some: int) -> int:
    """Words for counters: one for each row block, in each of the launches."""
    runs = -(-int(call.x.shape[0]) // some)
    return APART * RowBlocks.of(call).total * runs


def steps(work: DeviceCall, first: int, stop: int) -> None:
    """Run steps whose input terms are in p, as many rows at a time as fit the card."""
    row_blocks = RowBlocks.of(work.call)
    shape, begin = row_blocks.shape, first // work.chunk_steps * row_blocks.total
    for part in range(0, row_blocks.total, row_blocks.concurrent):
        blocks = min(row_blocks.concurrent, row_blocks.total - part) * shape.blocks
        counting = work.counters_from(APART * (begin + part))
        shared_steps.launch_steps(work, kernel(shape), blocks, first, stop, counting, part * shape.rows)


RUNG = StepsRung("grid", project, steps, lambda call: RowBlocks.of(call).blocks, counters)


@register(__name__, __doc__, arithmetic="gru", accumulate="int32", refuses=refuses)
def launch(calls: Sequence[Call]) -> None:
    run(calls, RUNG)
