"""How a product is run again: its kernels on tables that are written already, but for some addresses.

What a product of a shape with the same weights does is the same each time. So the first one is watched
(``workers.recorded``), and the next only write where operands and result lie. That is for few rows: with many
this time does not matter, and the memory of a plan does. One thread does what is small, because the others
would take longer to wake.

Every address that a kernel is given has to be one of an operand, of the result, of memory that the
product took for itself, or of what is kept with the weights. Where one is not, there is no plan.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .kernels import Kernel
from .tables import addresses
from .workers import Call, Tape, recorded, share_table

SMALL = 1 << 18  # products of a weight and an activation: some 10 µs, which is what waking takes
MOST = (
    64 << 10
)  # bytes between kernels, such as codes of activations, of which each calling thread has its own
LINE = 64  # bytes of a cache line


class Word(NamedTuple):
    """A word of a table that is written anew: where it is, whose address it is, and how far behind that."""

    call: int
    word: int
    which: int
    behind: int


class Tables(NamedTuple):
    """What one call needs for itself."""

    fills: list[tuple[Any, ...]]  # table, word, which address, how far behind it
    alone: list[tuple[Any, int, int]]  # what to call, address of its table, how much to do
    shared: list[tuple[Any, int, int, int]]  # code, the same, grain
    memory: Any  # all of it


class Plan:
    """A product with weights; any number of threads may call it."""

    __slots__ = ("_alone", "_calls", "_free", "_given", "_own", "_scratch", "kept")

    def __init__(
        self,
        calls: list[Call],
        given: list[Word],
        own: list[Word],
        scratch: list[int],
        kept: Any,
        alone: bool,
    ) -> None:
        self._calls, self._given, self._own, self._scratch = calls, given, own, scratch
        self.kept = kept  # lies where tables say as long as the plan does
        self._alone = alone
        self._free: list[Tables] = []

    def __call__(self, *given: int) -> None:
        """With operands and a result at these addresses."""
        try:
            tables = self._free.pop()
        except IndexError:
            tables = self._tables()
        for table, word, which, behind in tables.fills:
            table[word] = given[which] + behind
        if self._alone:
            for call, at, whole in tables.alone:
                call(at, 0, whole)
        else:
            for code, at, whole, grain in tables.shared:
                share_table(code, at, whole, grain)
        self._free.append(tables)

    def _tables(self) -> Tables:
        memory = [np.empty(nbytes + LINE, np.uint8) for nbytes in self._scratch]
        starts = [each.ctypes.data + LINE - 1 & -LINE for each in memory]
        tables = [array("q", call.arguments) for call in self._calls]
        for call, word, which, behind in self._own:
            tables[call][word] = starts[which] + behind
        fills = [(tables[call], *rest) for call, *rest in self._given]
        shared = [
            (call.work.code, table.buffer_info()[0], call.whole, call.grain)
            for call, table in zip(self._calls, tables, strict=True)
        ]
        return Tables(fills, [(code.call, *rest[:2]) for code, *rest in shared], shared, (memory, tables))


def planned(
    run: Callable[[], object], operands: Sequence[Any], out: Any, keeping: Callable[[], Any], products: int
) -> Plan | None:
    """Run a product; the plan of what it did, or None where it did something else than plans do.

    ``keeping()``: arrays that stay with the weights once it has run, and tuples of such.
    """
    with recorded() as tape:
        run()
    if sum(each.nbytes for each in tape.scratch) > MOST or not all(_plain(call) for call in tape.calls):
        return None
    kept = list(_arrays(keeping()))
    given, own = _words(tape, [*operands, out], kept)
    if given is None or not any(word.which == len(operands) for word in given):
        return None
    return Plan(tape.calls, given, own, [each.nbytes for each in tape.scratch], kept, products <= SMALL)


def _plain(call: Call) -> bool:
    return isinstance(call.work, Kernel) and bool(addresses(type(call.arguments)))


def _words(tape: Tape, given: list[Any], kept: list[Any]) -> tuple[list[Word] | None, list[Word]]:
    """Addresses in tables: those of operands and result, or None; and those of the product's own memory."""
    found: list[Word] = []
    own: list[Word] = []
    for i, call in enumerate(tape.calls):
        for word in addresses(type(call.arguments)):
            at = call.arguments[word]
            for arrays, words in ((given, found), (tape.scratch, own)):
                which = _whose(at, arrays)
                if which is not None:
                    words.append(Word(i, word, which, at - arrays[which].ctypes.data))
                    break
            else:
                if at and _whose(at, kept) is None:
                    return None, own
    return found, own


def _whose(at: int, arrays: list[Any]) -> int | None:
    """In which array an address lies."""
    for i, each in enumerate(arrays):
        if each.ctypes.data <= at < each.ctypes.data + each.nbytes:
            return i
    return None


def _arrays(kept: Any) -> Iterator[Any]:
    if isinstance(kept, np.ndarray):
        yield kept
    elif isinstance(kept, tuple | list):
        for each in kept:
            yield from _arrays(each)
