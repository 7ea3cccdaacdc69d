"""Recorded launches of a product: a warm call runs its kernels on the same tables, at other addresses.

A product of one shape with the same weights does the same each time. Its first call is recorded
(``workers.recorded``), and the calls after it only write where operands and result lie. This is for few
rows: with many of them this time does not matter, and the memory of a recording does. A small product runs
on one thread, because the others would take longer to wake.

Each address in a table must be the start of one operand or of one array that is prepared with the weights,
or lie in the result or in scratch memory of the product; and each operand must be read. A product in which
an address is none of these, or could be two of them, is not recorded.
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
# The most bytes of scratch memory, such as codes of activations; each call under way has its own.
MOST = 64 << 10
LINE = 64  # bytes of a cache line
OPERAND, SCRATCH, PREPARED = range(3)  # the kinds of arrays that an address may belong to


class Word(NamedTuple):
    """A word of a table that calls write anew: its place, the array it points into, the offset in bytes."""

    call: int
    word: int
    array: int
    behind: int


class Tables(NamedTuple):
    """The tables of one running call, and its scratch memory."""

    fills: list[tuple[Any, ...]]  # table, word, number of an address, bytes behind it
    alone: list[tuple[Any, int, int]]  # function, address of its table, size of the work
    shared: list[tuple[Any, int, int, int]]  # code, address of its table, size of the work, grain
    memory: Any  # what the addresses lie in


class RecordedLaunches:
    """The launches of one product with its weights; any number of threads may run them."""

    __slots__ = ("_alone", "_calls", "_free", "_operands", "_scratch", "_sizes", "prepared")

    def __init__(
        self, calls: list[Call], words: tuple[list[Word], list[Word]], sizes: list[int], prepared: Any,
        alone: bool,
    ) -> None:  # fmt: skip
        self._calls, self._sizes, self._alone = calls, sizes, alone
        self._operands, self._scratch = words
        self.prepared = prepared  # arrays whose addresses the tables hold
        self._free: list[Tables] = []

    def __call__(self, *starts: int) -> None:
        """Run the product with operands and a result at these addresses."""
        try:
            tables = self._free.pop()
        except IndexError:
            tables = self._tables()
        for table, word, number, behind in tables.fills:
            table[word] = starts[number] + behind
        if self._alone:
            for call, at, whole in tables.alone:
                call(at, 0, whole)
        else:
            for code, at, whole, grain in tables.shared:
                share_table(code, at, whole, grain)
        self._free.append(tables)

    def _tables(self) -> Tables:
        memory = [np.empty(nbytes + LINE, np.uint8) for nbytes in self._sizes]
        starts = [block.ctypes.data + LINE - 1 & -LINE for block in memory]
        tables = [array("q", call.arguments) for call in self._calls]
        for call, word, number, behind in self._scratch:
            tables[call][word] = starts[number] + behind
        fills = [(tables[call], *rest) for call, *rest in self._operands]
        shared = [
            (call.work.code, table.buffer_info()[0], call.length, call.grain)
            for call, table in zip(self._calls, tables, strict=True)
        ]
        return Tables(fills, [(code.call, *rest[:2]) for code, *rest in shared], shared, (memory, tables))


class Owner(NamedTuple):
    """The array that an address belongs to."""

    kind: int
    number: int = 0
    behind: int = 0  # bytes from where the array begins


class _Memory:
    """The arrays of a product that has just run, to find the owner of an address."""

    def __init__(self, operands: Sequence[Any], out: Any, scratch: list[Any], prepared: list[Any]) -> None:
        # Strides of operands and of prepared arrays may lead anywhere, so only their first bytes count.
        self._starts = {(operand.ctypes.data, Owner(OPERAND, i)) for i, operand in enumerate(operands)}
        self._starts |= {(part.ctypes.data, Owner(PREPARED)) for part in prepared} | {(0, Owner(PREPARED))}
        self._whole = [(out, Owner(OPERAND, len(operands)))]
        self._whole += [(block, Owner(SCRATCH, i)) for i, block in enumerate(scratch)]

    def owner(self, at: int) -> Owner | None:
        """The owner of an address; None if it has none, or if it could have two."""
        owners = [owner for start, owner in self._starts if start == at]
        for block, owner in self._whole:
            behind = at - block.ctypes.data
            if 0 <= behind < block.nbytes:
                owners.append(owner._replace(behind=behind))
        return owners[0] if len(owners) == 1 else None


def recorded_product(
    run: Callable[[], object], operands: Sequence[Any], out: Any, prepared: Callable[[], Any], products: int
) -> RecordedLaunches | None:
    """Run a product and record its launches; None if they cannot be repeated from addresses alone.

    ``prepared()`` gives, once the product has run, the arrays that stay with its weights, in nested tuples.
    """
    with recorded() as tape:
        run()
    sizes = [block.nbytes for block in tape.scratch]
    if sum(sizes) > MOST or not all(_is_plain(call) for call in tape.calls):
        return None
    parts = [*_arrays(prepared())]
    memory = _Memory(operands, out, tape.scratch, parts)
    words: tuple[list[Word], list[Word]] = [], []
    for i, call in enumerate(tape.calls):
        for word in addresses(type(call.arguments)):
            owner = memory.owner(call.arguments[word])
            if owner is None:
                return None
            if owner.kind != PREPARED:
                words[owner.kind].append(Word(i, word, owner.number, owner.behind))
    if {word.array for word in words[OPERAND]} != {*range(len(operands) + 1)}:
        return None  # a copy of an operand was read, or somebody else wrote the result
    return RecordedLaunches(tape.calls, words, sizes, parts, products <= SMALL)


def _is_plain(call: Call) -> bool:
    return isinstance(call.work, Kernel) and bool(addresses(type(call.arguments)))


def _arrays(parts: Any) -> Iterator[Any]:
    if isinstance(parts, np.ndarray):
        yield parts
    elif isinstance(parts, tuple | list):
        for part in parts:
            yield from _arrays(part)
