"""Compares the tensors of two models by workers of an executor; a task is a part of one tensor.

A worker compares bytes first, and values only if bytes differ. If some parts of a tensor differ and others do
not, the equal ones are read again in a second round: their values count in the NMSE too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from math import prod
from typing import NamedTuple

from .. import tasks
from ..arrays.array import QuantArray
from ..arrays.companion import same_scales
from ..gguf import GGUFFile
from ..tasks.rows import slices
from . import tensors
from .tensors import Tally, TensorDifference


class Part(NamedTuple):
    """A task: a range of elements in both tensors of a name."""

    name: str
    a: tasks.Rows
    b: tasks.Rows
    elements: tuple[int, int]
    by_bytes: bool  # whether equal bytes suffice

    @property
    def what(self) -> str:
        return f"tensor {self.name!r}, elements {self.elements[0]} to {self.elements[1] - 1}"


def examine(part: Part) -> Tally | None:
    """The tally of one part, None if all its bytes are the same; a worker calls it."""
    a, b = part.a.array(), part.b.array()
    assert isinstance(a, QuantArray)
    assert isinstance(b, QuantArray)
    same = tensors.same_slabs(a, b, part.elements, _nothing) if part.by_bytes else 0
    if same is None:
        return None
    tally = Tally()
    tally.walk(a, b, part.elements, _nothing, same)
    return tally


def _nothing(n: int) -> None:
    """Nobody looks at a worker's progress."""


def compare(
    executor: Executor, a: GGUFFile, b: GGUFFile, names: Iterable[str], advance: Callable[[int], None]
) -> dict[str, TensorDifference]:
    """The results of :func:`ggmlq.diff.tensors.compare`, by tensor."""
    results: dict[str, TensorDifference] = {}
    tallies: dict[str, dict[Part, Tally | None]] = {}

    def parts() -> Iterator[Part]:
        for name in names:
            result = tensors.at_once(name, a[name], b[name])
            if result is not None:
                results[name] = result
                advance(a[name].nbytes + b[name].nbytes)
                continue
            sides = tasks.rows_of(a[name]), tasks.rows_of(b[name])
            by_bytes = a[name].format is b[name].format and same_scales(a[name].scale, b[name].scale)
            tallies[name] = {
                Part(name, *sides, elements, by_bytes): None for elements in slices((prod(a[name].shape), 1))
            }
            yield from list(tallies[name])

    def take(part: Part, tally: Tally | None) -> None:
        tallies[part.name][part] = tally
        share = (part.elements[1] - part.elements[0]) / prod(part.a.shape)
        advance(round(share * (part.a.stretch.nbytes + part.b.stretch.nbytes)))

    tasks.run(executor, parts(), examine, take)
    mixed = [by_part for by_part in tallies.values() if any(by_part.values()) and not all(by_part.values())]
    again = [part for by_part in mixed for part, tally in by_part.items() if tally is None]
    old = {part._replace(by_bytes=False): part for part in again}
    tasks.run(executor, old, examine, lambda part, tally: tallies[part.name].update({old[part]: tally}))
    for name, by_part in tallies.items():
        results[name] = _joined(name, a[name], b[name], list(by_part.values()))
    return results


def _joined(name: str, a: QuantArray, b: QuantArray, parts: list[Tally | None]) -> TensorDifference:
    whole = Tally()
    for tally in parts:
        if tally is None:
            return tensors.equal_bytes(name, a, b)
        whole.take(tally)
    return tensors.differing(name, a, b, whole)
