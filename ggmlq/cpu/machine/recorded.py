"""Recorded launches of a product: a warm call runs its kernels on the same tables, at other addresses.

A product of one shape with the same weights does the same each time. One of its calls is recorded
(workers.py), and the calls after it only write where operands and result lie. A small product runs on one
thread, because the others would take longer to wake. Its memory in between, such as codes of activations, is
kept for the next call; that of a larger one is taken anew for each call, as without a recording.

Each address in a table has a slot (base/slots.py), as those of operands, of the result and of memory in
between have, or it is the start of an array that is prepared with the weights; and each operand must be read.
Another product is not recorded.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...arrays.buffers import address_of
from ...base.slots import Slot, labelled
from .kernels import Kernel
from .tables import SlotAddress, addresses
from .workers import SMALL, Call, recorded, share_table

KEPT = 64 << 10  # bytes of memory in between that are kept, once for each call under way
# Bytes of operands, or of memory in between, of a recorded product. With more the time of Python does not
# matter, and without a recording one part of the rows after another takes its memory.
MOST = 32 << 20
LINE = 64  # bytes of a cache line


class Word(NamedTuple):
    """A word of a table that calls write anew: its place, and its slot."""

    call: int
    word: int
    slot: Slot


class Tables(NamedTuple):
    """The tables of one running call, and its scratch memory."""

    fills: list[tuple[Any, ...]]  # table, word, number of an address, offset
    alone: list[tuple[Any, int, int]]  # function, address of its table, size of the work
    shared: list[tuple[Any, int, int, int]]  # code, address of its table, size of the work, grain
    memory: Any  # what the addresses lie in


class RecordedLaunches:
    """The launches of one product with its weights; any number of threads may run them."""

    __slots__ = ("_alone", "_calls", "_count", "_free", "_large", "_sizes", "_words", "prepared")

    def __init__(
        self, calls: list[Call], words: list[Word], count: int, sizes: list[int], prepared: Any, alone: bool
    ) -> None:
        self._calls, self._words, self._alone = calls, words, alone
        self._count, self._sizes = count, sizes  # numbers of slots from count on are of memory in between
        self._large = sum(sizes) > KEPT
        self.prepared = prepared  # arrays whose addresses the tables hold
        self._free: list[Tables] = []

    def __call__(self, *starts: int) -> None:
        """Run the product with operands and a result at these addresses."""
        try:
            tables = self._free.pop()
        except IndexError:
            tables = self._tables()
        if self._large:
            memory = self._between()  # until this call is over
            starts += _starts(memory)
        for table, word, number, offset in tables.fills:
            table[word] = starts[number] + offset
        if self._alone:
            for call, at, whole in tables.alone:
                call(at, 0, whole)
        else:
            for code, at, whole, grain in tables.shared:
                share_table(code, at, whole, grain)
        self._free.append(tables)

    def _between(self) -> list[Any]:
        """Memory for results in between."""
        return [np.empty(nbytes + LINE, np.uint8) for nbytes in self._sizes]

    def _tables(self) -> Tables:
        tables = [array("q", call.arguments) for call in self._calls]
        fills = [(tables[call], word, *slot) for call, word, slot in self._words]
        memory = []
        if not self._large:
            memory = self._between()
            starts = _starts(memory)
            for table, word, number, offset in fills:
                if number >= self._count:
                    table[word] = starts[number - self._count] + offset
            fills = [fill for fill in fills if fill[2] < self._count]
        shared = [
            (call.work.code, table.buffer_info()[0], call.length, call.grain)
            for call, table in zip(self._calls, tables, strict=True)
        ]
        return Tables(fills, [(code.call, *rest[:2]) for code, *rest in shared], shared, (memory, tables))


def _starts(memory: list[Any]) -> tuple[int, ...]:
    """The addresses of the first whole cache lines of some blocks."""
    return tuple(address_of(block) + LINE - 1 & -LINE for block in memory)


def recorded_product(
    run: Callable[..., object], operands: Sequence[Any], out: Any, prepared: Callable[[], Any], products: int
) -> RecordedLaunches | None:
    """Run a product and record its launches; None if they cannot be repeated from addresses alone.

    ``run(*operands, out)`` gets labelled views. ``prepared()`` gives, once the product has run, the arrays
    that stay with its weights, in nested tuples.
    """
    if sum(array.nbytes for array in operands) > MOST:
        run(*operands, out)
        return None
    count = len(operands) + 1
    with recorded(count) as tape:
        run(*(labelled(array, Slot(number)) for number, array in enumerate((*operands, out))))
    sizes = [block.nbytes for block in tape.scratch]
    if sum(sizes) > MOST or not all(_is_plain(call) for call in tape.calls):
        return None
    parts = _arrays(prepared())
    starts = {0, *map(address_of, parts)}
    words = []
    for i, call in enumerate(tape.calls):
        for word in addresses(type(call.arguments)):
            at = call.arguments[word]
            if type(at) is SlotAddress:
                words.append(Word(i, word, at.slot))
            elif at not in starts:
                return None
    if not {word.slot.number for word in words} >= {*range(count)}:
        return None  # a copy of an operand was read, or somebody else wrote the result
    return RecordedLaunches(tape.calls, words, count, sizes, parts, products <= SMALL)


def _is_plain(call: Call) -> bool:
    return isinstance(call.work, Kernel) and bool(addresses(type(call.arguments)))


def _arrays(parts: Any) -> list[Any]:
    """The arrays in nested tuples and lists."""
    arrays, left = [], [parts]
    for part in left:  # which grows meanwhile
        if isinstance(part, np.ndarray):
            arrays.append(part)
        elif isinstance(part, tuple | list):
            left += part
    return arrays
