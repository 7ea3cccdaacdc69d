"""A conversion in tasks: each worker encodes some rows of a tensor and writes them into the new file.

If workers did not write themselves, all bytes of a model would pass through the process that distributes
tasks, and on a cluster twice through its network port. Ranges are disjoint and every worker makes the same
bytes, so a task may be repeated, even while a worker that was thought dead still writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import tasks
from ..arrays.array import QuantArray
from ..base.progress import Progress
from ..formats import FORMATS, Format
from ..gguf.inputs import Described, slabs
from ..gguf.prepared import Place
from ..gguf.tensors import piece
from ..ops.quantize import prepare
from ..tasks import rows
from ..tasks.rows import slices
from .step import Plan, Step
from .stream import Tally, converted


class Fill(NamedTuple):
    """A task: rows of a tensor, and their place in the new file."""

    source: tasks.Rows
    step: Step  # with the weights of these rows
    part: tuple[int, int]  # rows, or elements of a tensor that stays as it is
    number: int  # of the part in its tensor
    origin: int  # the matrix that the weights begin with
    place: Place
    byteorder: str
    encoded: int  # elements of the whole file that become this type: whether compiling is worth it

    @property
    def what(self) -> str:
        kind = "rows" if self.step.changes else "elements"
        return f"tensor {self.step.name!r}, {kind} {self.part[0]} to {self.part[1] - 1}"


class Filled(NamedTuple):
    """The result of a worker: sums of each row, and the encoder's warnings."""

    sums: list[NDArray[np.float64]]
    warnings: list[str]


def fill(task: Fill) -> Filled:
    """Encode the rows of a task and write them into the new file; runs in a worker."""
    q = task.source.array()
    assert isinstance(q, QuantArray)
    tally = Tally(keep=True)
    if task.step.changes:
        prepare_once(task.step.after, task.step.weights is not None, task.encoded)
        at = task.part[0] * task.step.after.row_bytes(q.shape[-1] if q.shape else 1)
        parts: Any = converted(q, task.step, tally, task.part, task.origin)
    else:
        fmt, (first, last) = task.step.after, task.part
        at = first // fmt.block_size * fmt.dtype.itemsize
        parts = [piece(q, first, (last - first,))]
    task.place.write(at, (slab for part in parts for slab in _bytes(part, task.byteorder)))
    return Filled(tally.rows or [], list(tally.warnings))


def _bytes(part: QuantArray, byteorder: str) -> Iterator[Any]:
    return slabs(part, Described("", part.format, part.shape), byteorder)


_prepared: set[tuple[str, bool]] = set()


def prepare_once(fmt: Format, weighted: bool, elements: int) -> None:
    """Load the compiled encoder, once in a worker, if the elements of all tasks repay it."""
    if (fmt.name, weighted) not in _prepared:
        _prepared.add((fmt.name, weighted))
        prepare(fmt, elements, weighted)


def carry_out(
    executor: Executor, plan: Plan, places: dict[str, Place], sums: dict[tuple[Format, bool], int]
) -> dict[str, Tally]:
    """Let the workers write all tensors; gives the tallies that a conversion without workers would give."""
    gathered = _Gathered(plan)
    try:
        tasks.run(executor, _tasks(plan, places, sums), fill, gathered.take)
    finally:
        gathered.progress.close()
    return gathered.tallies


def _tasks(plan: Plan, places: dict[str, Place], sums: dict[tuple[Format, bool], int]) -> Iterator[Fill]:
    for step in plan.steps:
        if not prod(step.shape):
            continue
        source = tasks.rows_of(plan.file[step.name])
        encoded = sums.get((step.after, step.weights is not None), 0)
        for number, (part, small, origin) in enumerate(_parts(step)):
            yield Fill(source, small, part, number, origin, places[step.name], plan.file.byteorder, encoded)


def _parts(step: Step) -> Iterator[tuple[tuple[int, int], Step, int]]:
    """The parts of a tensor, each with only the importance that it needs."""
    if not step.changes:
        plain = replace(step, weights=None)
        yield from ((part, plain, 0) for part in slices((prod(step.shape), 1)))
        return
    if step.weights is None or len(step.weights) == 1:
        yield from ((part, step, 0) for part in slices(step.shape))
        return
    count = step.shape[-2]
    if prod(step.shape[-2:]) > rows.ELEMENTS:  # a matrix is a tensor of its own to whoever cuts it
        for matrix in range(prod(step.shape[:-2])):
            matrix_step = replace(step, weights=step.weights[[matrix % len(step.weights)]])
            for first, last in slices(step.shape[-2:]):
                yield (matrix * count + first, matrix * count + last), matrix_step, matrix
        return
    for first, last in slices(step.shape, count):
        matrices = np.arange(first // count, last // count)
        yield (
            (first, last),
            replace(step, weights=step.weights[matrices % len(step.weights)]),
            int(matrices[0]),
        )


class _Gathered:
    """Collects results of workers, and adds them to tallies in the order of the file."""

    def __init__(self, plan: Plan) -> None:
        self.tallies = {step.name: Tally() for step in plan.steps}
        self.progress = Progress(sum(step.bytes_after for step in plan.steps), "writing GGUF")
        self._waiting: dict[tuple[str, int], Filled] = {}
        self._next = dict.fromkeys(self.tallies, 0)

    def take(self, task: Fill, result: Filled) -> None:
        name = task.step.name
        self._waiting[name, task.number] = result
        while (ready := self._waiting.pop((name, self._next[name]), None)) is not None:
            self._next[name] += 1
            for sums in ready.sums:
                self.tallies[name].take(sums)
            self.tallies[name].warnings.update(dict.fromkeys(ready.warnings))
        self.progress.advance(_nbytes(task))


def _nbytes(task: Fill) -> int:
    fmt, count = FORMATS[task.step.after.name], task.part[1] - task.part[0]
    columns = task.step.shape[-1] if task.step.changes and task.step.shape else 1
    return count * columns // fmt.block_size * fmt.dtype.itemsize
