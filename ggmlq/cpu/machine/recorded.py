"""Recorded launches of a product: a warm call runs its kernels on the same tables, at other addresses.

A product of one shape with the same weights does the same each time. Its first call is recorded
(workers.py), and the calls after it only write where operands and result lie. This is for few
rows: with many of them this time does not matter, and the memory of a recording does. A small product runs
on one thread, because the others would take longer to wake.

Each address in a table has a slot (base/slots.py), as those of operands, of the result and of memory in
between have, or it is the start of an array that is prepared with the weights; and each operand must be read.
Another product is not recorded.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...base.slots import Slot, labelled
from .kernels import Kernel
from .tables import SlotAddress, addresses
from .workers import Call, recorded, share_table

SMALL = 1 << 18  # products of a weight and an activation: some 10 µs, which is what waking takes
# The most bytes of scratch memory, such as codes of activations; each call under way has its own.
MOST = 64 << 10
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
        for table, word, number, offset in tables.fills:
            table[word] = starts[number] + offset
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
        for call, word, slot in self._scratch:
            tables[call][word] = starts[slot.number] + slot.offset
        fills = [(tables[call], word, *slot) for call, word, slot in self._operands]
        shared = [
            (call.work.code, table.buffer_info()[0], call.length, call.grain)
            for call, table in zip(self._calls, tables, strict=True)
        ]
        return Tables(fills, [(code.call, *rest[:2]) for code, *rest in shared], shared, (memory, tables))


def recorded_product(
    run: Callable[..., object], operands: Sequence[Any], out: Any, prepared: Callable[[], Any], products: int
) -> RecordedLaunches | None:
    """Run a product and record its launches; None if they cannot be repeated from addresses alone.

    ``run(*operands, out)`` gets labelled views. ``prepared()`` gives, once the product has run, the arrays
    that stay with its weights, in nested tuples.
    """
    count = len(operands) + 1
    with recorded(count) as tape:
        run(*(labelled(array, Slot(number)) for number, array in enumerate((*operands, out))))
    sizes = [block.nbytes for block in tape.scratch]
    if sum(sizes) > MOST or not all(_is_plain(call) for call in tape.calls):
        return None
    parts = [*_arrays(prepared())]
    starts = {0, *(part.ctypes.data for part in parts)}
    words = []
    for i, call in enumerate(tape.calls):
        for word in addresses(type(call.arguments)):
            at = call.arguments[word]
            if type(at) is SlotAddress:
                words.append(Word(i, word, at.slot))
            elif at not in starts:
                return None
    changing = [word for word in words if word.slot.number < count]
    if {word.slot.number for word in changing} != {*range(count)}:
        return None  # a copy of an operand was read, or somebody else wrote the result
    between = [
        Word(i, word, Slot(number - count, offset)) for i, word, (number, offset) in words if number >= count
    ]
    return RecordedLaunches(tape.calls, (changing, between), sizes, parts, products <= SMALL)


def _is_plain(call: Call) -> bool:
    return isinstance(call.work, Kernel) and bool(addresses(type(call.arguments)))


def _arrays(parts: Any) -> Iterator[Any]:
    if isinstance(parts, np.ndarray):
        yield parts
    elif isinstance(parts, tuple | list):
        for part in parts:
            yield from _arrays(part)
