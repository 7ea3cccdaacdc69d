"""Mistakes in unpacking sub-scales that the doctor imitates: they are made of the wrong bits.

The place of each bit of a sub-scale is found by trying: flip one bit of a block and see which scale
or minimum moves, and by how much. So no layout is written down a second time here. A rule, right
or wrong, is then a table: for each sub-scale the addresses of its bits and their weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from ...formats import FORMATS, BlockFormat
from ...formats.format import Blocks
from ..explanation import Mistake
from ..numbers import Index
from .operand import Operand, from_parts
from .subscale_rules import Bits, Layout, Table, rules


def wrongly_unpacked(fmt: BlockFormat, blocks: Blocks) -> Iterator[Mistake[Operand]]:
    """Weights whose sub-scales are put together wrongly, one mistake for each rule."""
    names = fmt.dtype.names or ()
    if fmt.block_size == fmt.group or "d" not in names or not any(n.startswith("scales") for n in names):
        return
    layout = _layout(fmt.name)
    raw = np.ascontiguousarray(blocks).view(np.uint8).reshape(*blocks.shape, -1)
    bits = np.unpackbits(raw, axis=-1, bitorder="little")
    codes = fmt.unpack(blocks).codes
    for fault, name, table, factor in rules(layout):
        parts = []
        for kind, field in (("scale", "d"), ("offset", "dmin")):
            if (kind, 0) in table:
                unit = blocks[field].astype(np.float64)[..., None]
                sub = [
                    _value(bits, table[kind, g], factor * layout.base[kind, g]) for g in range(layout.groups)
                ]
                parts.append(unit * np.stack(sub, axis=-1))
        weights = from_parts(fmt, codes, parts[0], parts[1] if len(parts) > 1 else None)
        formulas = partial(_formulas, fmt, layout, table) if factor == 1 else None
        yield Mistake(fault, name, weights, formulas=formulas)


def _value(bits: NDArray[np.uint8], places: Bits, base: int) -> Index:
    """The integer in these bits; where two have one weight they are combined as `|` does it."""
    value = np.zeros(bits.shape[:-1], np.int64)
    sign = np.zeros_like(value)
    for address, weight in places:
        if weight > 0:
            value |= bits[..., address].astype(np.int64) * weight
        else:
            sign += bits[..., address].astype(np.int64) * weight
    return value + sign + base


@cache
def _layout(name: str) -> Layout:
    """Flip every bit of the scale fields of an otherwise empty block whose d and dmin are 1."""
    fmt = FORMATS[name]
    assert isinstance(fmt, BlockFormat)
    assert fmt.dtype.fields is not None
    addresses = [
        8 * entry[1] + bit
        for field, entry in fmt.dtype.fields.items()
        if field.startswith("scales")
        for bit in range(8 * entry[0].itemsize)
    ]
    raw = np.zeros((1 + len(addresses), 8 * fmt.dtype.itemsize), np.uint8)
    raw[np.arange(len(addresses)) + 1, addresses] = 1
    blocks = np.packbits(raw, axis=-1, bitorder="little").view(fmt.dtype).reshape(-1)
    for field in ("d", "dmin"):
        if field in fmt.dtype.fields:
            blocks[field] = 1
    parts = fmt.unpack(blocks)
    layout = Layout({}, {}, fmt.block_size // fmt.group)
    for kind, values in (("scale", parts.scale), ("offset", parts.offset)):
        if values is None:
            continue
        moved = np.rint(values[1:] - values[0]).astype(int)
        for g in range(layout.groups):
            places = [(addresses[i], int(moved[i, g])) for i in np.flatnonzero(moved[:, g])]
            layout.bits[kind, g] = sorted(places, key=lambda place: abs(place[1]))
            layout.base[kind, g] = round(float(values[0, g]))
    return layout


def _formulas(fmt: BlockFormat, layout: Layout, table: Table) -> tuple[str, str]:
    """The first sub-scale that a rule changes, as C puts it together: wrongly and rightly."""
    field = next(field for field, bits in layout.bits.items() if table[field] != bits)
    name = f"{'sc' if field[0] == 'scale' else 'm'}[{field[1]}] = "
    return name + _expression(fmt, table[field]), name + _expression(fmt, layout.bits[field])


def _expression(fmt: BlockFormat, bits: Bits) -> str:
    """Bits of a block as parts of bytes, each shifted to its place."""
    parts: list[Bits] = []
    for address, weight in bits:
        last = parts[-1][-1] if parts else (-2, 0)
        if (address, abs(weight)) == (last[0] + 1, 2 * abs(last[1])) and address % 8:
            parts[-1].append((address, weight))
        else:
            parts.append([(address, weight)])
    return " | ".join(_part(fmt, part) for part in parts) or "0"


def _part(fmt: BlockFormat, bits: Bits) -> str:
    """Neighbouring bits of one byte."""
    assert fmt.dtype.fields is not None
    byte, shift = divmod(bits[0][0], 8)
    start, name = max((entry[1], name) for name, entry in fmt.dtype.fields.items() if entry[1] <= byte)
    value = f"{name}[{byte - start}]" + (f" >> {shift}" if shift else "")
    value += "" if shift + len(bits) == 8 else f" & {2 ** len(bits) - 1}"
    up = abs(bits[0][1]).bit_length() - 1
    value = f"({value}) << {up}" if up else value
    return f"{value} (signed)" if bits[-1][1] < 0 else value
