"""Sub-scales of super-blocks put together from the wrong bits.

Where each bit of a sub-scale lies is found by trying: flip one bit of a block and see which scale
or minimum moves, and by how much. So no layout is written down a second time here. A rule, right
or wrong, is then a table: for each sub-scale the addresses of its bits and their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..formats import FORMATS, BlockFormat
from ..formats.format import Blocks
from .operand import Operand, from_parts

Field = tuple[str, int]  # ("scale" or "offset", group)
Bits = list[tuple[int, int]]  # address, weight; ascending by weight
Table = dict[Field, Bits]

FAULT = "sub-scale-unpack"


class Layout(NamedTuple):
    """Where the integers of sub-scales lie, and what they are with all bits clear."""

    bits: Table
    base: dict[Field, int]
    groups: int

    def pieces(self, field: Field) -> tuple[Bits, Bits]:
        """Low and high part of an integer that lies in two places."""
        bits = self.bits[field]
        for i in range(1, len(bits)):
            if bits[i][0] != bits[i - 1][0] + 1:
                return bits[:i], bits[i:]
        return bits, []

    def other(self, field: Field) -> Field:
        """The minimum beside a scale, and the reverse."""
        kind = "offset" if field[0] == "scale" and ("offset", field[1]) in self.bits else "scale"
        return kind, field[1]


def wrongly_unpacked(fmt: BlockFormat, blocks: Blocks) -> Iterator[tuple[str, str, Operand]]:
    """Fault, variant and weights for each way to put the integers together wrongly."""
    names = fmt.dtype.names or ()
    if fmt.block_size == fmt.group or "d" not in names or not any(n.startswith("scales") for n in names):
        return
    layout = _layout(fmt.name)
    raw = np.ascontiguousarray(blocks).view(np.uint8).reshape(*blocks.shape, -1)
    bits = np.unpackbits(raw, axis=-1, bitorder="little")
    codes = fmt.unpack(blocks).codes
    for fault, name, table, factor in _rules(layout):
        parts = []
        for kind, field in (("scale", "d"), ("offset", "dmin")):
            if (kind, 0) in table:
                unit = blocks[field].astype(np.float64)[..., None]
                sub = [
                    _value(bits, table[kind, g], factor * layout.base[kind, g]) for g in range(layout.groups)
                ]
                parts.append(unit * np.stack(sub, axis=-1))
        yield fault, name, from_parts(fmt, codes, parts[0], parts[1] if len(parts) > 1 else None)


def _value(bits: NDArray[np.uint8], places: Bits, base: int) -> NDArray[np.int64]:
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
            found = [(addresses[i], int(moved[i, g])) for i in np.flatnonzero(moved[:, g])]
            layout.bits[kind, g] = sorted(found, key=lambda place: abs(place[1]))
            layout.base[kind, g] = round(float(values[0, g]))
    return layout


# --- rules ----------------------------------------------------------------------------------


def _rules(layout: Layout) -> Iterator[tuple[str, str, Table, int]]:
    """Fault, name, table, and what becomes of the constant."""
    if any(layout.base.values()):
        for factor, fault in ((0, "offset-missing"), (2, "offset-twice"), (-1, "offset-sign")):
            yield fault, "the constant of the sub-scales", layout.bits, factor
    two_kinds = ("offset", 0) in layout.bits
    for name, change in (*_of_all(layout), *_of_composites(layout)):
        table = {field: change(field) for field in layout.bits}
        if table == layout.bits:
            continue
        yield FAULT, name, table, 1
        for kind in ("scale", "offset") if two_kinds else ():
            part = {field: table[field] if field[0] == kind else bits for field, bits in layout.bits.items()}
            yield FAULT, f"{name} ({kind}s alone)", part, 1


Change = Callable[[Field], Bits]


def _of_all(layout: Layout) -> Iterator[tuple[str, Change]]:
    """Rules that are wrong in every group."""
    yield "scales and minima exchanged", lambda field: layout.bits[layout.other(field)]
    yield "signs ignored", lambda field: [(a, abs(w)) for a, w in layout.bits[field]]
    yield "bits of each reversed", lambda field: _as(layout.bits[field][::-1], layout.bits[field])


def _of_composites(layout: Layout) -> Iterator[tuple[str, Change]]:
    """Rules that are wrong where an integer lies in two places."""
    if not any(layout.pieces(field)[1] for field in layout.bits):
        return
    n = layout.groups

    def low(field: Field) -> Bits:
        return layout.pieces(field)[0]

    def high(field: Field) -> Bits:
        return layout.pieces(field)[1]

    yield "high bits dropped", low
    yield "low bits dropped", lambda field: high(field) or low(field)
    yield "high bits of the other kind", lambda f: low(f) + _as(high(layout.other(f)), high(f))
    yield (
        "low bits of the other kind",
        lambda f: _as(low(layout.other(f)), low(f)) + high(f) if high(f) else low(f),
    )
    yield (
        "the mask forgotten where a byte holds all",
        lambda f: low(f) + high(f) if high(f) else _unmasked(low(f)),
    )
    yield (
        "the mask forgotten where low bits share a byte",
        lambda f: _unmasked(low(f)) + high(f) if high(f) else low(f),
    )
    yield "high and low bits exchanged", lambda f: _as(high(f) + low(f), _counted(layout.bits[f]))
    for move in (*range(1, n), *range(-n + 1, 0)):
        for label, to in ((f"{move:+}", _plus(move, n)), (f"xor {move}", _xor(move, n))):
            yield f"high bits of group {label}", _with_high(layout, to)
            yield f"low bits of group {label}", _with_low(layout, to)
    for label, to in _among(layout):
        yield f"high bits of {label}", _with_high(layout, to)
        yield f"low bits of {label}", _with_low(layout, to)
    for shift in (-4, -3, -2, -1, 1, 2, 3, 4):
        yield f"high bits shifted by {shift:+}", _with_shift(layout, shift)
    half = n // 2
    yield f"groups from {half} on repeat the first {half}", lambda f: layout.bits[f[0], f[1] % half]
    first = min(a for bits in layout.bits.values() for a, _ in bits) // 8
    width = max(len(bits) for bits in layout.bits.values())
    for step in range(-8, 9):
        for count in (width, 4, 8):
            yield f"{count} bits of byte g {step:+}", _as_simple(layout, first, step, count)


def _among(layout: Layout) -> Iterator[tuple[str, Callable[[Field], Field]]]:
    """Other orders of the groups that lie in two places: round among themselves, or transposed."""
    groups = [g for g in range(layout.groups) if layout.pieces(("scale", g))[1]]
    many = len(groups)
    orders = {f"the {many} groups in two places, {m:+}": np.roll(groups, -m) for m in range(1, many)}
    if many == layout.groups:
        orders = {}  # moves round all groups are tried as such
    for rows in range(2, many):
        if many % rows == 0:
            orders[f"group i·{rows} + j for j·{many // rows} + i"] = np.reshape(groups, (rows, -1)).T.ravel()
    for name, order in orders.items():
        yield name, _mapped(dict(zip(groups, order.tolist(), strict=True)))


def _mapped(to: dict[int, int]) -> Callable[[Field], Field]:
    return lambda field: (field[0], to.get(field[1], field[1]))


def _with_high(layout: Layout, to: Callable[[Field], Field]) -> Change:
    """The low part right, the high part of another group."""

    def change(field: Field) -> Bits:
        low, high = layout.pieces(field)
        return low + _as(layout.pieces(to(field))[1], high)

    return change


def _with_low(layout: Layout, to: Callable[[Field], Field]) -> Change:
    """The high part right, the low part of another group."""

    def change(field: Field) -> Bits:
        low, high = layout.pieces(field)
        return _as(layout.pieces(to(field))[0], low) + high if high else low

    return change


def _with_shift(layout: Layout, by: int) -> Change:
    """The high part put to another place."""

    def change(field: Field) -> Bits:
        low, high = layout.pieces(field)
        return low + _shifted(high, by)

    return change


def _as_simple(layout: Layout, first: int, step: int, count: int) -> Change:
    """The low bits of one byte, as simple groups have it."""

    def change(field: Field) -> Bits:
        low, high = layout.pieces(field)
        byte = first + (field[1] + step) % 12
        return [(8 * byte + i, 1 << i) for i in range(count)] if high else low

    return change


def _plus(step: int, n: int) -> Callable[[Field], Field]:
    return lambda field: (field[0], (field[1] + step) % n)


def _xor(flip: int, n: int) -> Callable[[Field], Field]:
    return lambda field: (field[0], (field[1] ^ abs(flip)) % n)


def _counted(bits: Bits) -> Bits:
    return [(address, 1 << i) for i, (address, _) in enumerate(bits)]


def _unmasked(bits: Bits) -> Bits:
    """With all that lies above them in their byte."""
    first = bits[0][0]
    return [(first + i, 1 << i) for i in range(8 - first % 8)]


def _shifted(bits: Bits, by: int) -> Bits:
    return [(a, w << by if by > 0 else w >> -by) for a, w in bits if by > 0 or w >> -by]


def _as(source: Bits, weights: Bits) -> Bits:
    """Bits of one place with the weights of another; a missing source leaves them as they are."""
    return [(a, w) for (a, _), (_, w) in zip(source, weights, strict=False)] if source else weights
