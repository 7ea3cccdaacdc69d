"""Weights of grids misread as the doctor imitates it: signs, numbers of rows, orders, entries.

All are mistakes in codes: a sign taken from elsewhere, a row's number put together from other bits, another
grid. So each one serves every type that has such a part.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ...formats import FORMATS, BlockFormat
from ..findings import Mistake
from ..numbers import Index, Wide
from .operand import Operand
from .orders import bit_orders, field_orders

Misread = Iterator[Mistake[Operand]]

EIGHTH = 8  # of iq1: a grid's number counts eight, and the shift beside it one


def of_grids(fmt: BlockFormat, right: Operand) -> Misread:
    """Every mistake with a grid, for formats that have one."""
    book = grid_of(fmt)
    if book is not None:
        codes = (right.stored - right.zero).reshape(-1, fmt.block_size)
        yield from _signs(book, codes, right) if book.signed else _shifts(codes, right)
        yield from _rows(fmt, book, codes, right)


class Book(NamedTuple):
    """The grid of a format: rows of a few neighbouring codes."""

    rows: Wide  # [rows, width]: magnitudes, or the codes of iq1 without their shift
    signed: bool  # signs stand beside the row

    @property
    def width(self) -> int:
        return int(self.rows.shape[1])


def grid_of(fmt: BlockFormat) -> Book | None:
    """The grid by which a format names several codes at once; None where each has bits of its own."""
    grid = getattr(sys.modules[fmt.unpack.__module__], "GRID", None)
    if grid is None:
        return None
    rows = grid.astype(np.float64)
    return Book(rows, True) if rows.min() > 0 else Book(rows * EIGHTH, False)


def _without_sign(book: Book, codes: Wide) -> Wide:
    return np.abs(codes) if book.signed else np.rint(codes / EIGHTH) * EIGHTH


def row_numbers(book: Book, codes: Wide) -> Index:
    """The row of the grid behind each run of codes: [blocks, rows of a block]."""
    key = np.random.default_rng(0).standard_normal(book.width)
    keys = book.rows @ key
    order = np.argsort(keys)
    wanted = _without_sign(book, codes).reshape(len(codes), -1, book.width) @ key
    at = np.clip(np.searchsorted(keys[order], wanted - 1e-9), 0, len(keys) - 1)
    numbers: Index = order[at]
    return numbers


def _signs(book: Book, codes: Wide, right: Operand) -> Misread:
    """Signs ignored, turned over, without the eighth of each run, or those of other elements."""
    size, minus = np.abs(codes), codes < 0
    block = codes.shape[1]
    place = np.arange(block)
    eighth = place % 8 == 7
    changed: dict[str, Any] = {
        "none is read: every weight is positive": minus & False,
        "turned over: a set bit taken for plus": ~minus,
        "the eighth of each 8 is always plus: its parity is not made": minus & ~eighth,
        "the eighth of each 8 turned over: odd parity for even": minus ^ eighth,
    }
    for name, order in (*bit_orders(block), ("halves of each byte exchanged", place ^ 4)):
        changed.setdefault(f"sign {name.removeprefix('bit ')}", minus[:, order])
    for name, bits in changed.items():
        stored = np.where(bits, -size, size).reshape(right.stored.shape)
        yield Mistake("sign-bits", name, right.but(stored=stored))


def _shifts(codes: Wide, right: Operand) -> Misread:
    """The eighth that iq1 adds or takes off: with the other sign, or that of another group."""
    whole = np.rint(codes / EIGHTH) * EIGHTH
    shift = codes - whole
    changed = {
        "with the other sign": -shift,
        "always added": np.abs(shift),
        "always taken off": -np.abs(shift),
    }
    for run in (8, 16, 32):
        groups = shift.reshape(len(shift), -1, run)
        for name, order in _group_steps(groups.shape[1]):
            changed[f"that of the group {name}, {run} a group"] = groups[:, order].reshape(shift.shape)
    for name, other in changed.items():
        yield Mistake(
            "sign-bits", f"the eighth {name}", right.but(stored=(whole + other).reshape(right.stored.shape))
        )


def _group_steps(n: int) -> Iterator[tuple[str, Index]]:
    i = np.arange(n)
    for step in (1, -1, 2, -2):
        yield f"{step:+}", (i + step) % n
    yield from (("xor 1", i ^ 1), ("0 for all", i * 0), ("in reverse", i[::-1]))


def _rows(fmt: BlockFormat, book: Book, codes: Wide, right: Operand) -> Misread:
    """Rows of the grid by a wrong number, in a wrong order, or with their codes in one."""
    rest = np.where(codes < 0, -1.0, 1.0) if book.signed else codes - _without_sign(book, codes)
    numbers, count, width = row_numbers(book, codes), len(book.rows), book.width

    def mistake(fault: str, name: str, taken: Wide) -> Mistake[Operand]:
        values = taken.reshape(codes.shape)
        stored = values * rest if book.signed else values + rest
        return Mistake(fault, name, right.but(stored=stored.reshape(right.stored.shape)))

    low, high = numbers & 255, numbers >> 8
    bits = max((count - 1).bit_length() - 8, 0)
    if bits:
        for name, other in _high_bits(high, bits, low):
            yield mistake("high-bits", name, book.rows[(low | other << 8) % count])
    for name, other in _numbers(numbers, low, high):
        yield mistake("grid-index", name, book.rows[other % count])
    for name, order in field_orders(numbers.shape[1]):
        yield mistake("grid-index", f"rows of the grid {name}", book.rows[numbers[:, order]])
    every = np.arange(numbers.shape[1])
    for span, i, step in product((4, 8, 16), range(16), (-1, 1)):  # one of a vector is a neighbour's
        if i < span and 0 <= i + step < span:
            order = every + step * (every % span == i)
            name = f"rows of the grid {i + step} for {i} of each {span}"
            yield mistake("grid-index", name, book.rows[numbers[:, order]])
    place = np.arange(width)
    for name, order in (
        ("in reverse", place[::-1]), ("in neighbours", place ^ 1), ("in pairs", place ^ 2),
        ("in halves", place ^ (width // 2)), ("interleaved by 2", place.reshape(2, -1).T.ravel()),
    ):  # fmt: skip
        yield mistake("grid-index", f"codes of each row exchanged {name}", book.rows[numbers][..., order])
    yield from (
        mistake("code-book", name, rows[numbers % len(rows)]) for name, rows in _other_grids(fmt, book)
    )


def _high_bits(high: Index, bits: int, low: Index) -> Iterator[tuple[str, Index]]:
    """High bits of row numbers that are dropped, exchanged, shifted, or those of other rows."""
    most = 2**bits - 1
    yield "of the row's number dropped", high * 0
    yield "of the row's number always set", high * 0 + most
    yield "of the row's number turned over", most - high
    yield "of the row's number one place too far", high << 1 & most
    if bits > 1:
        yield "of the row's number one place too little", high >> 1
        reverse = sum(((high >> b) & 1) << (bits - 1 - b) for b in range(bits))
        yield "of the row's number in reverse", np.asarray(reverse)
        for b in range(bits):
            yield f"of the row's number without bit {b}", high & ~(1 << b)
            yield f"of the row's number but for {b}, dropped", high & ((1 << b) - 1)
    n = high.shape[1]
    for name, order in (
        *bit_orders(n),
        *(("halves exchanged in each " + str(2 * s), np.arange(n) ^ s) for s in (2, 4)),
    ):
        yield f"of the rows, {name}", high[:, order]
    yield (
        "all set where the low byte has its top bit: a byte read with its sign",
        np.where(low > 127, most, high),
    )


def _numbers(numbers: Index, low: Index, high: Index) -> Iterator[tuple[str, Index]]:
    yield "the row after", numbers + 1
    yield "the row before", numbers - 1
    yield "seven bits for eight", numbers & ~128
    yield "half the number", numbers >> 1
    yield "twice the number", numbers << 1
    yield "halves of the low byte exchanged", (low >> 4 | (low & 15) << 4) | high << 8
    turned = np.zeros_like(low)
    for b in range(8):
        turned |= (low >> b & 1) << (7 - b)
    yield "bits of the low byte in reverse", turned | high << 8
    for step in (1, -1, 2, -2, 4, -4, 8, -8):
        yield f"the low byte of row {step:+}", np.roll(low, -step, axis=1) | high << 8


def _other_grids(fmt: BlockFormat, book: Book) -> Iterator[tuple[str, Wide]]:
    """Grids of other types, and this one with its levels evenly spaced."""
    for other in FORMATS.values():
        of = grid_of(other) if isinstance(other, BlockFormat) else None
        if of is not None and of.signed == book.signed and of.width == book.width and other.name != fmt.name:
            for factor in dict.fromkeys((1.0, book.rows.min() / of.rows.min())):
                if len(of.rows) < 2 or not np.array_equal(of.rows * factor, book.rows):
                    yield f"the grid of {other.name}", of.rows * factor
    levels = np.unique(book.rows)
    steps = np.arange(len(levels)) * 2 + 1
    even = (steps * levels[0])[np.searchsorted(levels, book.rows)]
    if not np.array_equal(even, book.rows):
        yield "its levels evenly spaced", even
