"""Weights of code books misread as the doctor imitates it: signs, rows of grids, tables, shared exponents.

All but the exponents are mistakes in codes: a sign taken from elsewhere, a row's number put together from
other bits, an entry that is another number. So each one serves every type that has such a part.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats import FORMATS, BlockFormat
from ...formats.format import Blocks
from ..findings import Mistake
from ..numbers import Index, Mask, Wide
from .formulas import packing
from .operand import Operand, from_parts, operand
from .orders import bit_orders, field_orders

Misread = Iterator[Mistake[Operand]]

EIGHTH = 8  # of iq1: a grid's number counts eight, and the shift beside it one


def of_books(fmt: BlockFormat, blocks: Blocks, right: Operand) -> Misread:
    """Every mistake with a code book, a table of levels, or a scale that is no plain product."""
    book = grid_of(fmt)
    if book is not None:
        shape = (-1, fmt.block_size)
        codes = (right.stored - right.zero).reshape(shape)
        yield from _signs(book, codes, right) if book.signed else _shifts(codes, right)
        yield from _rows(fmt, book, codes, right)
    yield from _tables(fmt, blocks, right)
    yield from _exponents(fmt, blocks)
    yield from _halves(fmt, blocks)


# --- grids --------------------------------------------------------------------------------------


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


# --- tables of levels -----------------------------------------------------------------------------


def table_of(fmt: BlockFormat) -> Wide | None:
    """The 16 levels that codes of 4 bits name; None where a code is its own value."""
    module = sys.modules[fmt.unpack.__module__]
    table = getattr(module, "IQ4", getattr(module, "FP4", None))
    return None if table is None else table.astype(np.float64)


def numbers_of(fmt: BlockFormat, blocks: Blocks) -> Index:
    """The 4-bit numbers of all weights [N, K], as the bytes hold them."""
    packed = packing(fmt.name)
    assert packed is not None
    field = np.ascontiguousarray(blocks).view(np.uint8).reshape(*blocks.shape, fmt.dtype.itemsize)
    assert fmt.dtype.fields is not None
    start = fmt.dtype.fields[packed.field][1]
    numbers: Index = (field[..., start + packed.byte] >> packed.shift & (2**packed.bits - 1)).astype(np.int64)
    return np.reshape(numbers, (len(blocks), -1))


class Levels(NamedTuple):
    """Codes as numbers of levels: ``signs * table[numbers]``."""

    table: Wide
    numbers: Index  # [N, K]
    signs: Wide  # 1 where the table holds them


def levels(fmt: BlockFormat, blocks: Blocks, right: Operand) -> Levels | None:
    """The table of levels behind all codes, where a format has one; of a grid its magnitudes."""
    table, book = table_of(fmt), grid_of(fmt)
    codes = right.stored - right.zero
    if table is not None:
        return Levels(table, numbers_of(fmt, blocks), np.ones_like(codes))
    if book is None:
        return None
    signs = np.where(codes < 0, -1.0, 1.0) if book.signed else np.ones_like(codes)
    table, numbers = np.unique(codes * signs, return_inverse=True)
    return Levels(table, numbers.reshape(codes.shape), signs)


def _tables(fmt: BlockFormat, blocks: Blocks, right: Operand) -> Misread:
    """Another table, the next entry, levels evenly spaced, codes without a table."""
    table = table_of(fmt)
    if table is None:
        return
    numbers, n = numbers_of(fmt, blocks), np.arange(16)
    signed = np.where(n > 7, n - 16, n).astype(np.float64)
    e2m1 = np.where(n & 7, 2.0 ** ((n & 7) >> 1) * (1 + (n & 1) / 2), 0) * np.where(n > 7, -1, 1)
    others: dict[str, Any] = {
        "the entry after": np.roll(table, -1), "the entry before": np.roll(table, 1),
        "no table: codes less 8": n - 8.0, "no table: codes as they are": n + 0.0,
        "no table: codes in two's complement": signed,
        "levels evenly spaced": np.linspace(table.min(), table.max(), 16) if table[0] else 12 / 7 * signed,
        "the table in reverse": table[::-1], "without signs": np.abs(table),
        "signs turned over": -table, "the eighth bit is no sign": table[n & 7],
        "e2m1 without its subnormal": np.where(n & 7, e2m1 * table.max() / 12, 0),
    }  # fmt: skip
    for other in FORMATS.values():
        of = table_of(other) if isinstance(other, BlockFormat) else None
        if of is not None and not np.array_equal(of, table):
            others[f"the table of {other.name}"] = of
            others.setdefault(f"half the table of {other.name}", of / 2)
    for name, values in others.items():
        if not np.array_equal(values, table):
            yield Mistake("code-book", name, right.but(stored=values[numbers]))


# --- scales ---------------------------------------------------------------------------------------


def _exponents(fmt: BlockFormat, blocks: Blocks) -> Misread:
    """A shared exponent, or an 8-bit float, with another bias, or read as another type."""
    table = fmt.scales.table
    field = next((name for name in ("e", "d") if name in (fmt.dtype.names or ())), None)
    if table is None or field is None:
        return
    byte = np.arange(len(table))
    wide = table.astype(np.float64)
    if wide[128] == 2 * wide[127] > 0:  # E8M0
        others: dict[str, Any] = {
            "as an integer": byte + 0.0, "2 to the power of -e": np.ldexp(1.0, 128 - byte),
            "two's complement": np.ldexp(1.0, np.where(byte > 127, byte - 256, byte)),
            "in steps of two": np.ldexp(1.0, 2 * (byte - 128).clip(-60, 60)),
        }  # fmt: skip
    else:  # UE4M3
        bits, fraction = byte >> 3 & 15, byte & 7
        others = {
            "without its fraction": np.ldexp(0.5, bits - 7), "subnormals as normal numbers":
            np.ldexp(0.5 + fraction / 16, bits - 7), "subnormals as zero": np.where(bits, wide, 0),
            "as e5m2": np.ldexp(0.5 + (byte & 3) / 8, (byte >> 2 & 31) - 15),
            "as E8M0": np.ldexp(1.0, byte - 128), "as an integer": byte + 0.0,
            "with a sign": np.where(byte > 127, -wide, wide),
        }  # fmt: skip
    for step, name in (
        (2.0, "one too high"),
        (0.5, "one too low"),
        (4.0, "two too high"),
        (0.25, "two too low"),
    ):
        others[name] = wide * step
        for odd in (0, 1):
            others[f"{name} where it is {'odd' if odd else 'even'}"] = np.where(
                byte % 2 == odd, wide * step, wide
            )
    codes = fmt.unpack(blocks).codes
    shape = (*blocks.shape, fmt.block_size // fmt.group)
    for name, values in others.items():
        scale = values[blocks[field]].reshape(shape)
        yield Mistake("exponent-bias", name, from_parts(fmt, codes, scale, None))


def _halves(fmt: BlockFormat, blocks: Blocks) -> Misread:
    """Halves of a block as bfloat16, in the other byte order, without sign, subnormals or infinity."""
    names = [n for n in fmt.dtype.names or () if fmt.dtype[n] == np.dtype("<f2")]
    if not names or fmt.name == "q8_1":
        return
    bits = {name: blocks[name].view("<u2").astype(np.uint32) for name in names}
    size = {name: np.abs(blocks[name]) for name in names}
    tiny: dict[str, Mask] = {name: (word & 0x7C00) == 0 for name, word in bits.items()}
    ways: dict[str, Any] = {
        "as bfloat16": lambda n: (bits[n] << 16).view(np.float32),
        "in the other byte order": lambda n: blocks[n].byteswap(),
        "without its sign": lambda n: size[n],
        "subnormal halves taken for zero": lambda n: np.where(
            tiny[n], np.float32(0), blocks[n].astype(np.float32)
        ),
        "subnormal halves taken for normal ones": lambda n: np.where(
            tiny[n], _as_normal(bits[n]), blocks[n].astype(np.float32)
        ),
        "without the low byte": lambda n: (bits[n] & 0xFF00).astype(np.uint16).view(np.float16),
    }
    wide = np.dtype(
        [(n, "f4" if n in names else fmt.dtype[n].base, fmt.dtype[n].shape) for n in fmt.dtype.names or ()]
    )
    for which in [names, *([n] for n in names if len(names) > 1)]:
        for name, way in ways.items():
            with np.errstate(all="ignore"):
                changed = np.empty(blocks.shape, wide)
                for n in wide.names or ():
                    changed[n] = blocks[n]
                for n in which:
                    changed[n] = way(n)
                yield Mistake("scale-misread", f"{' and '.join(which)} {name}", operand(fmt, changed))


def _as_normal(bits: NDArray[np.uint32]) -> NDArray[np.float32]:
    """A half by the formula of normal numbers, whatever its exponent."""
    value = np.ldexp(1 + (bits & 1023) / 1024, (bits >> 10 & 31).astype(int) - 15)
    signed: NDArray[np.float32] = np.where(bits >> 15, -value, value).astype(np.float32)
    return signed
