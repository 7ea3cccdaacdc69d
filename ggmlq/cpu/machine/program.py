"""``Program``: the kernels of a whole step in one table, which one call of compiled code runs.

A step of a model is walked once, and each kernel that it runs is noted with its table of arguments
(``workers.recorded``). All tables become one array of words. Most words stay: sizes, and addresses of weights
and of memory between kernels, which the program owns. The others are *holes*, which a call fills at once:
addresses that it brings, by their slots (``base/slots.py``), and numbers that follow from the positions of
sequences. Then ``board.runner`` runs the kernels one after the other, with the threads awake between them.

A step is no program if anything but these kernels computed in it: then some kernel reads memory that is
neither of the program, nor of the weights, nor a hole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays.buffers import address_of
from ...base.slots import Rows
from .kernels import Kernel, compiled
from .tables import SlotAddress, addresses
from .workers import Tape, run_program

WORDS = 4  # of a call: code, table, range, grain


class Program:
    """Kernels with their tables; one thread runs it at a time.

    ``result``: the array that the last kernel writes.
    """

    def __init__(
        self, words: NDArray[np.int64], calls: int, holes: Sequence[tuple[int, int, int]],
        numbers: Sequence[tuple[int, Callable[[Any], int]]], kept: Any, result: Any,
    ) -> None:  # fmt: skip
        self._words, self._calls, self._kept, self.result = words, calls, kept, result
        places = np.array(holes, np.int64).reshape(-1, 3).T
        self._places, self._slots, self._offsets = places
        self._functions = list(dict.fromkeys(function for _, function in numbers))
        self._numbered = np.array([place for place, _ in numbers], np.int64)
        self._of = np.array([self._functions.index(function) for _, function in numbers], np.int64)
        self._first = (len(words) - calls * WORDS - 1) * 8 + address_of(words)
        self.lock = Lock()

    def __call__(self, starts: NDArray[np.int64], positions: Sequence[int]) -> None:
        """Run all kernels; the caller has the lock.

        ``starts``: the addresses for the slots. ``positions``: how many each sequence has.
        """
        words = self._words
        words[self._places] = starts[self._slots] + self._offsets
        if self._functions:
            numbers = np.array([function(positions) for function in self._functions])
            words[self._numbered] = numbers[self._of]
        run_program(self._first, self._calls)


class _Ranges:
    """The memory of some arrays, in which an address is looked up."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        listed = sorted((address_of(array), array.nbytes, i) for i, array in enumerate(arrays))
        self._starts = [start for start, _, _ in listed]
        self._ends = [start + nbytes for start, nbytes, _ in listed]
        self._numbers = [number for _, _, number in listed]

    def __contains__(self, at: int) -> bool:
        return self.holds(at, len(self._starts))

    def holds(self, at: int, first: int) -> bool:
        """True for an address in one of the ``first`` arrays."""
        i = bisect_right(self._starts, at) - 1
        return i >= 0 and at < self._ends[i] and self._numbers[i] < first


def program_of(tape: Tape, constants: Sequence[Any], result: Any) -> Program | None:
    """The program of a recorded step; None if something else computed in it.

    ``constants``: arrays that were there before and stay, such as weights in the layouts of their kernels.
    What something else computed lies in none of them, nor in memory that the recording had by then; it may
    lie where memory of a later kernel is.
    """
    fixed, between = _Ranges(constants), _Ranges(tape.scratch)

    def is_known(at: int, blocks: int) -> bool:
        return not at or at in fixed or between.holds(at, blocks)

    if not between.holds(address_of(result), len(tape.scratch)):
        return None
    if not all(_is_plain(call.work, call.arguments) for call in tape.calls):
        return None
    tables, rows, holes, numbers = list[int](), list[int](), list[Any](), list[Any]()
    size = sum(len(call.arguments) for call in tape.calls)
    words = np.zeros(size + WORDS * len(tape.calls) + 1, np.int64)
    base = address_of(words)
    for i, (work, arguments, length, grain, blocks) in enumerate(tape.calls):
        first, where = len(tables), set(addresses(type(arguments)))
        for place, word in enumerate(arguments):
            if type(word) is SlotAddress and word.slot.number < tape.first:
                holes.append((first + place, *word.slot))
            elif type(word) is Rows:
                numbers.append((first + place, word.of))
            elif place in where and not is_known(int(word), blocks):
                return None
            tables.append(int(word))
        if type(length) is Rows:
            numbers.append((size + WORDS * i + 2, length.of))
        code = work.code.address or compiled(work.code.call)
        rows += (code, base + 8 * first, int(length), grain)
    words[:size], words[size:-1] = tables, rows
    return Program(words, len(tape.calls), holes, numbers, (tape.scratch, constants), result)


def _is_plain(work: Any, arguments: tuple[int, ...]) -> bool:
    return isinstance(work, Kernel) and bool(addresses(type(arguments)))
