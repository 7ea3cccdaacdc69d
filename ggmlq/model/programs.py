"""``Programs``: the steps of a model on the CPU that are one call of compiled code each, by their sizes.

The first step of a size is walked part by part, which prepares weights for it. The next one is recorded on
the way. From the third on a step fills in where the keys and values of its sequences lie, its tokens and its
positions, and runs (``cpu/machine/program.py``). A program serves every cache of the model's types whose
length has the same power of two above it. Of several sequences it takes a token each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.buffers import address_of
from ..base.threads import num_threads
from ..errors import NonFiniteError
from .arithmetic.host import Host
from .arithmetic.kernels import Array
from .caches import CACHE, END, Part, wide

ROWS, MOST = 16, 24  # tokens of a step that is recorded; programs of a model

Places = Sequence[tuple[Part, int]]  # sequences, and how many of a step's tokens each has
Walk = Callable[[Places, NDArray[np.int64], bool], Iterator[Array]]


class Programs:
    """The recorded steps of a model; ``walk(places, tokens, last)`` yields what layers give, then logits."""

    def __init__(self, a: Host, walk: Walk, vocabulary: Callable[[], int]) -> None:
        self._a, self._walk, self._vocabulary = a, walk, vocabulary
        # By sizes: a program and its tokens, or what the weights were in the last step, or None.
        self._there: dict[Any, Any] = {}

    def __call__(self, places: Places, tokens: NDArray[np.int64], last: bool) -> Array | None:
        """Logits behind tokens, or the last ones of sequences; None where the step is no program."""
        memories = [part.memory for part, _ in places]
        if not 0 < len(tokens) <= ROWS or not all(memory.repeats for memory in memories):
            return None
        if 1 < len(places) < len(tokens) or not self._are_rows(tokens):
            return None
        # Kernels are recorded with work units for so many threads.
        last |= len(tokens) == len(places)
        key = num_threads(), len(tokens), last, *((wide(memory.room), memory.kind) for memory in memories)
        there = self._there.get(key, ())
        if type(there) is not _Step:
            return None if there is None else self._recorded(key, places, tokens, last, there)
        if not there.program.lock.acquire(blocking=False):
            return None
        program, ids = there
        try:
            ids[...] = tokens
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    program(self._starts(places), [int(part.end[0]) for part, _ in places])
            except NonFiniteError:
                return None  # part by part it is known in which layer
            logits: Array = program.result.copy()
        finally:
            program.lock.release()
        for part, count in places:
            part.advance(count)
        return logits

    def _starts(self, places: Places) -> NDArray[np.int64]:
        """The addresses for the slots of all sequences."""
        each = []
        for part, count in places:
            start = len(part)
            part.end[0] = start + count
            starts = np.zeros(CACHE, np.int64)
            self._a.fill(starts, start, count)
            starts[END] = address_of(part.end)
            each += [starts, part.memory.words(part.number), part.state.words()]
        return np.concatenate(each)

    def _are_rows(self, tokens: NDArray[np.int64]) -> bool:
        """True for tokens that the embedding has; with others the walk raises an error."""
        return bool(0 <= tokens.min() <= tokens.max() < self._vocabulary())

    def _recorded(
        self, key: Any, places: Places, tokens: NDArray[np.int64], last: bool, before: Sequence[Any]
    ) -> Array:  # fmt: skip
        """The step part by part; its program, if all weights were prepared for it ``before``."""
        workers, programs = (import_module(f"ggmlq.cpu.machine.{name}") for name in ("workers", "program"))
        for place, (part, _) in enumerate(places):
            part.place = place
        with workers.recorded(len(places) * places[0][0].memory.slots) as tape:
            ids = workers.scratch(tokens.shape, np.int64)
            ids[...] = tokens
            for x in self._walk(places, ids, last):
                logits = x
        constants = _arrays(tape.kept)
        if len(self._there) >= MOST:
            self._there.pop(next(iter([*self._there])), None)  # another thread may have done so
        program = programs.program_of(tape, before, logits) if before else None
        if program is not None:
            self._there[key] = _Step(program, ids)
        else:
            news = {*map(address_of, constants)} != {*map(address_of, before)}
            self._there[key] = constants if news else None
        return np.array(logits)


class _Step(NamedTuple):
    """A program, and the array of its tokens."""

    program: Any
    ids: NDArray[np.int64]


def _arrays(operands: Sequence[Any]) -> list[Any]:
    """The arrays of operands, of weights with those of their prepared copies."""
    arrays, left = list[Any](), [*operands]
    for part in left:  # which grows meanwhile
        if isinstance(part, np.ndarray):
            arrays.append(part)
        elif isinstance(part, tuple | list):
            left += part
        elif isinstance(part, QuantArray):
            left += [part.parts() if part.has_bytes else (), part.prepared_copies()]
    return arrays
