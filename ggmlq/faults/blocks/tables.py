"""Weights of tables and scales misread as the doctor imitates it: levels, shared exponents, halves.

iq4_nl, iq4_xs, mxfp4 and nvfp4 name 16 levels by their codes; scales are 8-bit floats, exponents or halves.
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
from .books import grid_of
from .formulas import packing
from .operand import Operand, from_parts, operand

Misread = Iterator[Mistake[Operand]]

LOST = 1 / 32  # of the largest offset


def of_tables(fmt: BlockFormat, blocks: Blocks, right: Operand) -> Misread:
    """Every mistake with a table of levels, or with a scale that is read as another number."""
    yield from _tables(fmt, blocks, right)
    yield from _exponents(fmt, blocks)
    yield from _halves(fmt, blocks)


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
                if which == names[1:] and _is_lost(changed[which[0]], blocks[which[0]]):
                    continue  # as good as no offset, which an entry of its own names
                yield Mistake("scale-misread", f"{' and '.join(which)} {name}", operand(fmt, changed))


def _is_lost(read: NDArray[Any], right: NDArray[Any]) -> bool:
    """True where numbers are read as next to nothing."""
    largest = np.abs(right.astype(np.float32)).max(initial=0)
    return bool(np.abs(read).max(initial=0) < LOST * largest)


def _as_normal(bits: NDArray[np.uint32]) -> NDArray[np.float32]:
    """A half by the formula of normal numbers, whatever its exponent."""
    value = np.ldexp(1 + (bits & 1023) / 1024, (bits >> 10 & 31).astype(int) - 15)
    signed: NDArray[np.float32] = np.where(bits >> 15, -value, value).astype(np.float32)
    return signed
