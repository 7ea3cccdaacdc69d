"""How a product is run again: its kernels on tables that are written already, but for some addresses.

What a product of a shape with the same weights does is the same each time. So the first one is watched
(``workers.recorded``), and the next only write where operands and result lie. That is for few rows: with many
this time does not matter, and the memory of a plan does. One thread does what is small, because the others
would take longer to wake.

Every address that a kernel is given has to be where one operand or one array that is kept with the weights
begins, or in the result, or in memory that the product took for itself; and each operand has to be read.
Where that is not so, or an address could be of two, there is no plan.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .kernels import Kernel
from .tables import addresses
from .workers import Call, recorded, share_table

SMALL = 1 << 18  # products of a weight and an activation: some 10 µs, which is what waking takes
# Bytes between kernels, such as codes of activations, of which each calling thread has its own.
MOST = 64 << 10
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


GIVEN, OWN, KEPT = "given", "own", "kept"


class Found(NamedTuple):
    """Whose an address is."""

    kind: str
    which: int = 0
    behind: int = 0  # bytes from where that begins


class _Where:
    """Whose addresses are, in a product that has just run."""

    def __init__(self, operands: Sequence[Any], out: Any, scratch: list[Any], kept: list[Any]) -> None:
        # Of operands and of what is kept only where they begin counts: strides may lead anywhere from there.
        self._starts = {(each.ctypes.data, Found(GIVEN, i)) for i, each in enumerate(operands)}
        self._starts |= {(each.ctypes.data, Found(KEPT)) for each in kept} | {(0, Found(KEPT))}
        self._whole = [(out, Found(GIVEN, len(operands)))]
        self._whole += [(each, Found(OWN, i)) for i, each in enumerate(scratch)]

    def of(self, at: int) -> Found | None:
        """Whose an address is; None where it is nobody's, or could be somebody else's."""
        found = [whose for start, whose in self._starts if start == at]
        for each, whose in self._whole:
            behind = at - each.ctypes.data
            if 0 <= behind < each.nbytes:
                found.append(whose._replace(behind=behind))
        return found[0] if len(found) == 1 else None


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
    kept = [*_arrays(keeping())]
    where = _Where(operands, out, tape.scratch, kept)
    given: list[Word] = []
    own: list[Word] = []
    for i, call in enumerate(tape.calls):
        for word in addresses(type(call.arguments)):
            found = where.of(call.arguments[word])
            if found is None:
                return None
            if found.kind in (GIVEN, OWN):
                (given if found.kind == GIVEN else own).append(Word(i, word, found.which, found.behind))
    if {word.which for word in given} != {*range(len(operands) + 1)}:
        return None  # a copy of an operand was read, or somebody else wrote the result
    sizes = [each.nbytes for each in tape.scratch]
    return Plan(tape.calls, given, own, sizes, kept, products <= SMALL)


def _plain(call: Call) -> bool:
    return isinstance(call.work, Kernel) and bool(addresses(type(call.arguments)))


def _arrays(kept: Any) -> Iterator[Any]:
    if isinstance(kept, np.ndarray):
        yield kept
    elif isinstance(kept, tuple | list):
        for each in kept:
            yield from _arrays(each)
