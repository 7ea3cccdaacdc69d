"""Wrong rules for unpacking sub-scales, which the doctor imitates: tables of bits with their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

Field = tuple[str, int]  # ("scale" or "offset", group)
Bits = list[tuple[int, int]]  # address, weight; ascending by weight
Table = dict[Field, Bits]

FAULT = "sub-scale-unpack"


class Layout(NamedTuple):
    """Places of the integers of sub-scales, and their values with all bits clear."""

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

    def low(self, field: Field) -> Bits:
        return self.pieces(field)[0]

    def high(self, field: Field) -> Bits:
        return self.pieces(field)[1]

    def other(self, field: Field) -> Field:
        """The minimum beside a scale, and the reverse."""
        kind = "offset" if field[0] == "scale" and ("offset", field[1]) in self.bits else "scale"
        return kind, field[1]


def rules(layout: Layout) -> Iterator[tuple[str, str, Table, int]]:
    """Wrong rules: a fault, a name, a table of bits, and the factor of the constant."""
    if any(layout.base.values()):
        for factor, fault in ((0, "offset-missing"), (2, "offset-twice"), (-1, "offset-sign")):
            yield fault, "the constant of the sub-scales", layout.bits, factor
    tried = [layout.bits]
    for name, change in (*_everywhere(layout), *_in_two_places(layout)):
        whole = {field: change(field) for field in layout.bits}
        for part, belongs in _parts(layout):
            table = {field: (whole if belongs(field) else layout.bits)[field] for field in layout.bits}
            if table not in tried:
                tried.append(table)
                yield FAULT, f"{name}{part}", table, 1


def _parts(layout: Layout) -> Iterator[tuple[str, Callable[[Field], bool]]]:
    """Sub-scales in which a rule may be wrong: all, one kind, or groups that one line of a loop unpacks."""
    half = layout.groups // 2
    yield "", lambda field: True
    if ("offset", 0) in layout.bits:
        yield " (scales alone)", lambda field: field[0] == "scale"
        yield " (offsets alone)", lambda field: field[0] == "offset"
    yield " (odd groups)", lambda field: field[1] % 2 == 1
    yield " (even groups)", lambda field: field[1] % 2 == 0
    yield f" (groups from {half} on)", lambda field: field[1] >= half
    yield f" (groups below {half})", lambda field: field[1] < half


Change = Callable[[Field], Bits]


def _everywhere(layout: Layout) -> Iterator[tuple[str, Change]]:
    """Rules that are wrong in every group."""
    yield "scales and minima exchanged", lambda field: layout.bits[layout.other(field)]
    yield "signs ignored", lambda field: [(a, abs(w)) for a, w in layout.bits[field]]
    yield "bits of each reversed", lambda field: _as(layout.bits[field][::-1], layout.bits[field])


def _in_two_places(layout: Layout) -> Iterator[tuple[str, Change]]:
    """Rules that are wrong where an integer lies in two places."""
    if not any(layout.high(field) for field in layout.bits):
        return
    n, low, high, other = layout.groups, layout.low, layout.high, layout.other
    yield "high bits dropped", low
    yield "low bits dropped", lambda f: high(f) or low(f)
    yield "high bits of the other kind", _with_high(layout, other)
    yield "low bits of the other kind", _with_low(layout, other)
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
        yield f"high bits shifted by {shift:+}", partial(_with_shift, layout, shift)
        yield f"high bits read {shift:+} bits away", _read_beside(layout, shift)
    half = n // 2
    yield f"groups from {half} on repeat the first {half}", lambda f: layout.bits[f[0], f[1] % half]
    first = min(a for bits in layout.bits.values() for a, _ in bits) // 8
    width = max(len(bits) for bits in layout.bits.values())
    for step in range(-8, 9):
        for count in (width, 4, 8):
            yield f"{count} bits of byte g {step:+}", partial(_as_simple, layout, first, step, count)


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
    return lambda f: layout.low(f) + _as(layout.high(to(f)), layout.high(f))


def _with_low(layout: Layout, to: Callable[[Field], Field]) -> Change:
    """The high part right, the low part of another group."""

    def change(f: Field) -> Bits:
        low, high = layout.pieces(f)
        return _as(layout.low(to(f)), low) + high if high else low

    return change


def _with_shift(layout: Layout, by: int, field: Field) -> Bits:
    """The high part put to another place."""
    return layout.low(field) + _shifted(layout.high(field), by)


def _read_beside(layout: Layout, by: int) -> Change:
    """The high part made of the bits beside it; those outside the field are clear."""
    addresses = [a for field in layout.bits for a, _ in layout.high(field)]
    first, last = min(addresses, default=0) // 8 * 8, max(addresses, default=0) // 8 * 8 + 7
    return lambda f: layout.low(f) + [(a + by, w) for a, w in layout.high(f) if first <= a + by <= last]


def _as_simple(layout: Layout, first: int, step: int, count: int, field: Field) -> Bits:
    """The low bits of one byte, as simple groups have it."""
    byte = first + (field[1] + step) % 12
    simple = [(8 * byte + i, 1 << i) for i in range(count)]
    return simple if layout.high(field) else layout.low(field)


def _plus(step: int, n: int) -> Callable[[Field], Field]:
    return lambda field: (field[0], (field[1] + step) % n)


def _xor(flip: int, n: int) -> Callable[[Field], Field]:
    return lambda field: (field[0], (field[1] ^ abs(flip)) % n)


def _counted(bits: Bits) -> Bits:
    return [(address, 1 << i) for i, (address, _) in enumerate(bits)]


def _unmasked(bits: Bits) -> Bits:
    """Bits with all that lies above them in their byte."""
    first = bits[0][0]
    return [(first + i, 1 << i) for i in range(8 - first % 8)]


def _shifted(bits: Bits, by: int) -> Bits:
    return [(a, w << by if by > 0 else w >> -by) for a, w in bits if by > 0 or w >> -by]


def _as(source: Bits, weights: Bits) -> Bits:
    """Bits of one place with the weights of another; a missing source leaves them as they are."""
    return [(a, w) for (a, _), (_, w) in zip(source, weights, strict=False)] if source else weights
