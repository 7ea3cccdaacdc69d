"""Mistakes in unpacking sub-scales that the doctor imitates: they are made of the wrong bits.

The place of each bit of a sub-scale is found by trying: flip one bit of a block and see which scale
or minimum moves, and by how much. So no layout is written down a second time here. A rule, right
or wrong, is then a table: for each sub-scale the addresses of its bits and their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats import FORMATS, BlockFormat
from ...formats.format import Blocks
from ..findings import Mistake
from ..numbers import Wide
from .formulas import one_bit_set
from .operand import Operand, from_parts

FAULT = "sub-scale-unpack"
Field = tuple[str, int]  # ("scale" or "offset", group)
Bits = list[tuple[int, int]]  # address, weight; ascending by weight
Table = dict[Field, Bits]
Change = Callable[[Field], Bits]


def wrongly_unpacked(fmt: BlockFormat, blocks: Blocks) -> Iterator[Mistake[Operand]]:
    """Weights whose sub-scales are put together wrongly, one mistake for each rule."""
    if fmt.block_size == fmt.group or fmt.scales.sub is None or fmt.scales.table is not None:
        return
    layout = _layout(fmt.name)
    raw = np.ascontiguousarray(blocks).view(np.uint8).reshape(*blocks.shape, -1)
    bits = np.unpackbits(raw, axis=-1, bitorder="little")
    codes = fmt.unpack(blocks).codes
    for fault, name, table, factor in _rules(layout):
        parts = []
        for kind, field in (("scale", "d"), ("offset", "dmin")):
            if (kind, 0) in table:
                unit = layout.unit * _whole(fmt, blocks, field)[..., None]
                sub = [
                    _value(bits, table[kind, g], factor * layout.base[kind, g]) for g in range(layout.groups)
                ]
                parts.append(unit * np.stack(sub, axis=-1))
        weights = from_parts(fmt, codes, parts[0], parts[1] if len(parts) > 1 else None)
        formulas = partial(_formulas, fmt, layout, table) if factor == 1 else None
        yield Mistake(fault, name, weights, formulas=formulas)


def _whole(fmt: BlockFormat, blocks: Blocks, field: str) -> Wide:
    """The halves that all sub-scales of a block are multiplied with."""
    if field in (fmt.dtype.names or ()):
        return blocks[field].astype(np.float64)
    assert fmt.scales.d is not None
    raw = np.ascontiguousarray(blocks).view(np.uint8).reshape(-1, fmt.dtype.itemsize)
    halves = np.array([fmt.scales.d(block) for block in raw], np.uint16).view(np.float16)
    return halves.astype(np.float64).reshape(blocks.shape)


def _value(bits: NDArray[np.uint8], places: Bits, base: float) -> Wide:
    """The number in these bits, with its constant; where two have one weight `|` combines them."""
    value = np.zeros(bits.shape[:-1], np.int64)
    sign = np.zeros_like(value)
    for address, weight in places:
        if weight > 0:
            value |= bits[..., address].astype(np.int64) * weight
        else:
            sign += bits[..., address].astype(np.int64) * weight
    number: Wide = value + sign + np.float64(base)
    return number


class Layout(NamedTuple):
    """Places of the integers of sub-scales, and their values with all bits clear."""

    bits: Table
    base: dict[Field, float]
    groups: int
    unit: float = 1.0  # of the integers

    def pieces(self, field: Field) -> tuple[Bits, Bits]:
        """Low and high part of an integer that lies in two places."""
        bits = self.bits[field]
        for i in range(1, len(bits)):
            if bits[i][0] != bits[i - 1][0] + 1:
                return bits[:i], bits[i:]
        return bits, []

    def low(self, field: Field) -> Bits:
        return self.pieces(field)[0]

    def high(self, field: Field) -> Bits:
        return self.pieces(field)[1]

    def other(self, field: Field) -> Field:
        """The minimum beside a scale, and the reverse."""
        kind = "offset" if field[0] == "scale" and ("offset", field[1]) in self.bits else "scale"
        return kind, field[1]


@cache
def _layout(name: str) -> Layout:
    """Flip every bit of an otherwise empty block whose d and dmin are 1, but for their own bits."""
    fmt = FORMATS[name]
    assert isinstance(fmt, BlockFormat)
    assert fmt.dtype.fields is not None
    addresses = [
        8 * entry[1] + bit
        for entry in fmt.dtype.fields.values()
        if entry[0].kind != "f"
        for bit in range(8 * entry[0].itemsize)
    ]
    addresses = [address for address in addresses if address not in _of_d(fmt)]
    blocks = one_bit_set(fmt, addresses)
    for field in ("d", "dmin"):
        if field in fmt.dtype.fields:
            blocks[field] = 1
    if fmt.scales.d is not None:
        _set_to_one(fmt, blocks)
    parts = fmt.unpack(blocks)
    groups = fmt.block_size // fmt.group
    layout = Layout({}, {}, groups, float(fmt.scales.unit * 2) if _odd(fmt) else 1.0)
    for kind, values in (("scale", parts.scale), ("offset", parts.offset)):
        if values is None:
            continue
        moved = np.rint((values[1:] - values[0]) / layout.unit).astype(int)
        for g in range(groups):
            places = [(addresses[i], int(moved[i, g])) for i in np.flatnonzero(moved[:, g])]
            layout.bits[kind, g] = sorted(places, key=lambda place: abs(place[1]))
            layout.base[kind, g] = float(values[0, g]) / layout.unit
    return layout


def _odd(fmt: BlockFormat) -> bool:
    """True of formats whose sub-scales are odd numbers, 2 s + 1: s + 1/2 in units of two."""
    assert fmt.scales.sub is not None
    return fmt.scales.sub(np.zeros(fmt.dtype.itemsize, np.uint8), 0) == 1


@cache
def _of_d(fmt: BlockFormat) -> dict[int, int]:
    """The bits of d by their addresses, where no field holds it."""
    if fmt.scales.d is None:
        return {}
    every = one_bit_set(fmt, range(8 * fmt.dtype.itemsize)).view(np.uint8).reshape(-1, fmt.dtype.itemsize)[1:]
    return {address: int(d) for address, block in enumerate(every) if (d := fmt.scales.d(block))}


def _set_to_one(fmt: BlockFormat, blocks: Blocks) -> None:
    raw = blocks.view(np.uint8).reshape(-1, fmt.dtype.itemsize)
    for address, bit in _of_d(fmt).items():
        if bit & 0x3C00:  # 1 as a half
            raw[:, address // 8] |= 1 << address % 8


# --- rules --------------------------------------------------------------------------------------


def _rules(layout: Layout) -> Iterator[tuple[str, str, Table, int]]:
    """Wrong rules: a fault, a name, a table of bits, and the factor of the constant.

    A rule may be wrong in all sub-scales, in one kind, or in groups that one line of a loop unpacks.
    """
    if any(layout.base.values()):
        for factor, fault in ((0, "offset-missing"), (2, "offset-twice"), (-1, "offset-sign")):
            yield fault, "the constant of the sub-scales", layout.bits, factor
    half = layout.groups // 2
    parts: dict[str, Callable[[Field], bool]] = {
        "": lambda field: True,
        " (scales alone)": lambda field: field[0] == "scale",
        " (offsets alone)": lambda field: field[0] == "offset",
        " (odd groups)": lambda field: field[1] % 2 == 1,
        " (even groups)": lambda field: field[1] % 2 == 0,
        f" (groups from {half} on)": lambda field: field[1] >= half,
        f" (groups below {half})": lambda field: field[1] < half,
    }
    if ("offset", 0) not in layout.bits:
        del parts[" (scales alone)"], parts[" (offsets alone)"]
    tried = [layout.bits]
    for name, change in (*_everywhere(layout), *_in_two_places(layout)):
        whole = {field: change(field) for field in layout.bits}
        for part, belongs in parts.items():
            table = {field: (whole if belongs(field) else layout.bits)[field] for field in layout.bits}
            if table not in tried:
                tried.append(table)
                yield FAULT, f"{name}{part}", table, 1


def _everywhere(layout: Layout) -> Iterator[tuple[str, Change]]:
    """Rules that are wrong in every group."""
    yield "scales and minima exchanged", lambda field: layout.bits[layout.other(field)]
    yield "signs ignored", lambda field: [(a, abs(w)) for a, w in layout.bits[field]]
    yield "bits of each reversed", lambda field: _as(layout.bits[field][::-1], layout.bits[field])
    if any(layout.high(field) for field in layout.bits):
        return
    yield "the mask forgotten", lambda field: _unmasked(layout.bits[field])
    yield "without the highest bit", lambda field: layout.bits[field][:-1]
    yield "without the lowest bit", lambda field: layout.bits[field][1:]
    yield "one place too far", lambda field: [(a, 2 * w) for a, w in layout.bits[field]]
    yield "one place too little", lambda field: [(a, w // 2) for a, w in layout.bits[field][1:]]


def _in_two_places(layout: Layout) -> Iterator[tuple[str, Change]]:
    """Rules that are wrong where an integer lies in two places."""
    if not any(layout.high(field) for field in layout.bits):
        return
    low, high = layout.low, layout.high
    yield "high bits dropped", low
    yield "low bits dropped", lambda f: high(f) or low(f)
    yield from _of(layout, "the other kind", layout.other)
    yield (
        "the mask forgotten where a byte holds all",
        lambda f: low(f) + high(f) if high(f) else _unmasked(low(f)),
    )
    yield (
        "the mask forgotten where low bits share a byte",
        lambda f: _unmasked(low(f)) + high(f) if high(f) else low(f),
    )
    yield "high and low bits exchanged", lambda f: _as(high(f) + low(f), _counted(layout.bits[f]))
    for label, order in _group_orders(layout).items():
        yield from _of(layout, label, partial(_in_order, order))
    first, last = (end // 8 * 8 for end in _ends([high(f) for f in layout.bits]))
    for by in (-4, -3, -2, -1, 1, 2, 3, 4):
        yield f"high bits shifted by {by:+}", partial(_with_shift, layout, by)
        beside = partial(_read_beside, layout, by, first, last + 7)
        yield f"high bits read {by:+} bits away", beside
    half = layout.groups // 2
    yield f"groups from {half} on repeat the first {half}", lambda f: layout.bits[f[0], f[1] % half]
    byte = _ends(list(layout.bits.values()))[0] // 8
    width = max(len(bits) for bits in layout.bits.values())
    for step in range(-8, 9):
        for count in (width, 4, 8):
            yield f"{count} bits of byte g {step:+}", partial(_as_simple, layout, byte, step, count)


def _ends(every: list[Bits]) -> tuple[int, int]:
    """The first and the last address."""
    addresses = [address for bits in every for address, _ in bits]
    return min(addresses), max(addresses)


def _of(layout: Layout, label: str, to: Callable[[Field], Field]) -> Iterator[tuple[str, Change]]:
    """Rules that take one part of an integer from another sub-scale, the other part rightly."""
    low, high = layout.low, layout.high
    yield f"high bits of {label}", lambda f: low(f) + _as(high(to(f)), high(f))
    yield f"low bits of {label}", lambda f: _as(low(to(f)), low(f)) + high(f) if high(f) else low(f)


def _group_orders(layout: Layout) -> dict[str, list[int]]:
    """Wrong groups for all, or for those that lie in two places among themselves: moved round, transposed."""
    n = layout.groups
    i = np.arange(n)
    orders = {}
    for move in (*range(1, n), *range(-n + 1, 0)):
        orders[f"group {move:+}"] = (i + move) % n
        orders[f"group xor {move}"] = (i ^ abs(move)) % n
    two = np.array([g for g in range(n) if layout.high(("scale", g))])
    many = len(two)
    among = {}
    if many < n:  # moves round all groups are there already
        among = {f"the {many} groups in two places, {m:+}": np.roll(two, -m) for m in range(1, many)}
    for rows in range(2, many):
        if many % rows == 0:
            among[f"group i·{rows} + j for j·{many // rows} + i"] = two.reshape(rows, -1).T.ravel()
    for name, order in among.items():
        orders[name] = i.copy()
        orders[name][two] = order
    return {name: order.tolist() for name, order in orders.items()}


def _as_simple(layout: Layout, first: int, step: int, count: int, field: Field) -> Bits:
    """The low bits of one byte, as simple groups have it."""
    byte = first + (field[1] + step) % 12
    return [(8 * byte + i, 1 << i) for i in range(count)] if layout.high(field) else layout.low(field)


def _in_order(order: list[int], field: Field) -> Field:
    return field[0], order[field[1]]


def _with_shift(layout: Layout, by: int, field: Field) -> Bits:
    """The high part put to another place."""
    high = layout.high(field)
    return layout.low(field) + [(a, w << by if by > 0 else w >> -by) for a, w in high if by > 0 or w >> -by]


def _read_beside(layout: Layout, by: int, first: int, last: int, field: Field) -> Bits:
    """The high part made of the bits beside it; those outside the scales' bytes are clear."""
    return layout.low(field) + [(a + by, w) for a, w in layout.high(field) if first <= a + by <= last]


def _counted(bits: Bits) -> Bits:
    return [(address, 1 << i) for i, (address, _) in enumerate(bits)]


def _unmasked(bits: Bits) -> Bits:
    """Bits with all that lies above them in their byte."""
    first = bits[0][0]
    return [(first + i, 1 << i) for i in range(8 - first % 8)]


def _as(source: Bits, weights: Bits) -> Bits:
    """Bits of one place with the weights of another; a missing source leaves them as they are."""
    return [(a, w) for (a, _), (_, w) in zip(source, weights, strict=False)] if source else weights


# --- formulas -----------------------------------------------------------------------------------


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
