"""``Programs``: the steps of a model on the CPU that are one call of compiled code each, by their sizes.

The first step of a size is walked part by part, which prepares weights for it. The next one is recorded on
the way. From the third on a step fills in where the keys and values of its sequence lie, its tokens and its
position, and runs (``cpu/machine/program.py``). A program serves every cache of the model's types whose
length has the same power of two above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.buffers import address_of
from ..errors import NonFiniteError
from .arithmetic.host import Host
from .arithmetic.kernels import Array
from .caches import CACHE, END, Part, wide

ROWS, MOST = 16, 24  # tokens of a step that is recorded; programs of a model

Walk = Callable[[Any, NDArray[np.int64]], Iterator[Array]]


class Programs:
    """The recorded steps of a model; ``walk(part, tokens)`` yields what the layers give, the logits last."""

    def __init__(self, a: Host, walk: Walk, vocabulary: Callable[[], int]) -> None:
        self._a, self._walk, self._vocabulary = a, walk, vocabulary
        # By sizes: a program and its tokens, or what the weights were in the last step, or None.
        self._there: dict[Any, Any] = {}

    def __call__(self, part: Part, tokens: NDArray[np.int64]) -> Array | None:
        """Logits [1, vocabulary] behind tokens of a sequence; None where the step is no program."""
        if not 0 < len(tokens) <= ROWS or not part.memory.repeats or not self._are_rows(tokens):
            return None
        key = len(tokens), wide(part.memory.room), part.memory.kind
        there = self._there.get(key, ())
        if type(there) is not _Step:
            return None if there is None else self._recorded(key, part, tokens, there)
        if not there.program.lock.acquire(blocking=False):
            return None
        program, ids = there
        try:
            ids[...] = tokens
            start = len(part)
            part.end[0] = end = start + len(tokens)
            words = part.memory.words(part.number)
            starts = np.zeros(CACHE + len(words), np.int64)
            self._a.fill(starts, start, len(tokens))
            starts[END], starts[CACHE:] = address_of(part.end), words
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    program(starts, end)
            except NonFiniteError:
                return None  # part by part it is known in which layer
            logits: Array = program.result.copy()
        finally:
            program.lock.release()
        part.advance(len(tokens))
        return logits

    def _are_rows(self, tokens: NDArray[np.int64]) -> bool:
        """True for tokens that the embedding has; with others the walk raises an error."""
        return bool(0 <= tokens.min() <= tokens.max() < self._vocabulary())

    def _recorded(self, key: Any, part: Part, tokens: NDArray[np.int64], before: Sequence[Any]) -> Array:
        """The step part by part; its program, if all weights were prepared for it ``before``."""
        workers, programs = (import_module(f"ggmlq.cpu.machine.{name}") for name in ("workers", "program"))
        with workers.recorded(CACHE + 4 * len(part.memory.layers)) as tape:
            ids = workers.scratch(tokens.shape, np.int64)
            ids[...] = tokens
            for x in self._walk(part, ids):
                logits = x
        constants: list[Any] = []
        for operand in tape.kept:
            constants += _arrays(operand) if isinstance(operand, QuantArray) else [operand]
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


def _arrays(q: QuantArray) -> list[Any]:
    """The arrays of weights and of their prepared copies."""
    arrays, left = list[Any](), list[Any]([q.parts() if q.has_bytes else (), q.prepared_copies()])
    for part in left:  # which grows meanwhile
        if isinstance(part, np.ndarray):
            arrays.append(part)
        elif isinstance(part, tuple | list):
            left += part
    return arrays
