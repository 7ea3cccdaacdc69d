"""Sub-scales of super-blocks put together from the wrong bits.

Where each bit of a scale lies is found by trying: flip one bit of a block and see which scale or
minimum moves, and by how much. So no layout is written down a second time here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from ..formats import FORMATS, BlockFormat
from ..formats.format import Blocks
from .operand import Operand, from_parts
from .readings import Wide

Field = tuple[str, int]  # ("scale" or "offset", group)


class Layout(NamedTuple):
    """Where the integers of sub-scales lie: for each, bit addresses and weights, and the base."""

    bits: dict[Field, list[tuple[int, float]]]  # ascending by weight
    base: dict[Field, float]


def wrongly_unpacked(fmt: BlockFormat, blocks: Blocks) -> Iterator[tuple[str, str, Operand]]:
    """Fault, variant and weights for each way to put the integers together wrongly."""
    if fmt.block_size == fmt.group or not any(n.startswith("scales") for n in fmt.dtype.names or ()):
        return
    layout = _layout(fmt.name)
    bits = np.unpackbits(
        np.ascontiguousarray(blocks).view(np.uint8).reshape(*blocks.shape, -1), axis=-1, bitorder="little"
    ).astype(np.float64)
    for fault, name, values in _readings(fmt, layout, bits):
        d = blocks["d"].astype(np.float64)
        scale = np.stack([values("scale", g) for g in _groups(fmt)], axis=-1) * d[..., None]
        offset = None
        if fmt.has_offset:
            dmin = blocks["dmin"].astype(np.float64)
            offset = np.stack([values("offset", g) for g in _groups(fmt)], axis=-1) * dmin[..., None]
        yield fault, name, from_parts(fmt, fmt.unpack(blocks).codes, scale, offset)


def _groups(fmt: BlockFormat) -> range:
    return range(fmt.block_size // fmt.group)


@cache
def _layout(name: str) -> Layout:
    """Flip every bit of the scale fields of an otherwise empty block whose d and dmin are 1."""
    fmt = FORMATS[name]
    assert isinstance(fmt, BlockFormat)
    assert fmt.dtype.fields is not None
    addresses = [
        8 * (entry[1] + byte) + bit
        for field, entry in fmt.dtype.fields.items()
        if field.startswith("scales")
        for byte in range(entry[0].itemsize)
        for bit in range(8)
    ]
    raw = np.zeros((1 + len(addresses), 8 * fmt.dtype.itemsize), np.uint8)
    raw[np.arange(len(addresses)) + 1, addresses] = 1
    blocks = np.packbits(raw, axis=-1, bitorder="little").view(fmt.dtype).reshape(-1)
    for field in ("d", "dmin"):
        if field in fmt.dtype.fields:
            blocks[field] = 1
    parts = fmt.unpack(blocks)
    bits: dict[Field, list[tuple[int, float]]] = {}
    base: dict[Field, float] = {}
    for kind, values in (("scale", parts.scale), ("offset", parts.offset)):
        for g in _groups(fmt) if values is not None else ():
            assert values is not None
            moved = values[1:, g] - values[0, g]
            found = [(addresses[i], float(moved[i])) for i in np.flatnonzero(moved)]
            bits[kind, g] = sorted(found, key=lambda pair: abs(pair[1]))
            base[kind, g] = float(values[0, g])
    return Layout(bits, base)


Values = Callable[[str, int], Wide]


def _readings(fmt: BlockFormat, layout: Layout, bits: Wide) -> Iterator[tuple[str, str, Values]]:
    """Each wrong rule as a function of kind and group."""

    def total(pairs: list[tuple[int, float]], base: float) -> Wide:
        out = np.full(bits.shape[:-1], base)
        for address, weight in pairs:
            out += weight * bits[..., address]
        return out

    def pieces(field: Field) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """Low and high part of an integer that lies in two bytes (or two places of one)."""
        pairs = layout.bits[field]
        cut = next(
            (i for i in range(1, len(pairs)) if pairs[i][0] != pairs[i - 1][0] + 1), len(pairs)
        )
        return pairs[:cut], pairs[cut:]

    def rule(change: Callable[[str, int], list[tuple[int, float]]]) -> Values:
        return lambda kind, g: total(change(kind, g), layout.base[kind, g])

    def other(kind: str) -> str:
        return "offset" if kind == "scale" and fmt.has_offset else "scale"

    n = len(_groups(fmt))
    fault = "sub-scale-unpack"
    composite = any(pieces(field)[1] for field in layout.bits)
    if fmt.has_offset:
        yield fault, "scales and minima exchanged", rule(lambda kind, g: layout.bits[other(kind), g])
    if any(base for base in layout.base.values()):
        for factor, name in ((0, "offset-missing"), (2, "offset-twice"), (-1, "offset-sign")):
            yield (
                name, "the constant in the sub-scales",
                lambda kind, g, f=factor: total(layout.bits[kind, g], f * layout.base[kind, g]),
            )  # fmt: skip
    if any(weight < 0 for pairs in layout.bits.values() for _, weight in pairs):
        yield fault, "signed sub-scales taken as unsigned", rule(
            lambda kind, g: [(a, abs(w)) for a, w in layout.bits[kind, g]]
        )
    if not composite:
        return

    def with_high(source: Callable[[str, int], Field]) -> Values:
        """The low part right, the high part of another."""

        def change(kind: str, g: int) -> list[tuple[int, float]]:
            low, high = pieces((kind, g))
            return low + _as(pieces(source(kind, g))[1], high)

        return rule(change)

    def with_low(source: Callable[[str, int], Field]) -> Values:
        def change(kind: str, g: int) -> list[tuple[int, float]]:
            low, high = pieces((kind, g))
            return _as(pieces(source(kind, g))[0], low) + high if high else low

        return rule(change)

    yield fault, "high bits dropped", rule(lambda kind, g: pieces((kind, g))[0])
    for step in (1, -1, 2, -2, 4, 8):
        at = lambda g, s=step: (g + s) % n  # noqa: E731
        yield fault, f"high bits of group {step:+}", with_high(lambda k, g, at=at: (k, at(g)))
        yield fault, f"low bits of group {step:+}", with_low(lambda k, g, at=at: (k, at(g)))
    for flip in (1, 2, 3, 4, 5, 6, 7, 8, 12, 15):
        if flip < n:
            at = lambda g, f=flip: g ^ f  # noqa: E731
            yield fault, f"high bits of group xor {flip}", with_high(lambda k, g, at=at: (k, at(g)))
            yield fault, f"low bits of group xor {flip}", with_low(lambda k, g, at=at: (k, at(g)))
    yield fault, "high bits of the other kind", with_high(lambda k, g: (other(k), g))
    yield fault, "low bits of the other kind", with_low(lambda k, g: (other(k), g))
    for factor in (0.25, 0.5, 2.0, 4.0):
        def shifted(kind: str, g: int, f: float = factor) -> list[tuple[int, float]]:
            low, high = pieces((kind, g))
            return low + [(a, w * f) for a, w in high]

        yield fault, f"high bits at {factor:g} times their weight", rule(shifted)

    def exchanged(kind: str, g: int) -> list[tuple[int, float]]:
        low, high = pieces((kind, g))
        if not high:
            return low
        places = [a for a, _ in high + low]
        return [(a, 2.0**i) for i, a in enumerate(places)]

    yield fault, "high and low bits exchanged", rule(exchanged)
    yield from _as_simple(fmt, layout, pieces, rule)


def _as_simple(fmt, layout, pieces, rule):  # type: ignore[no-untyped-def]
    """Composite groups read as the simple ones are: low bits of one byte, or of a simple group."""
    fault = "sub-scale-unpack"
    n = len(_groups(fmt))
    simple = [field for field in layout.bits if not pieces(field)[1]]
    entry = (fmt.dtype.fields or {})["scales" if "scales" in (fmt.dtype.names or ()) else "scales_l"]
    size = entry[0].itemsize
    if simple:
        half = n // 2
        yield fault, f"groups from {half} on repeat the first {half}", rule(
            lambda kind, g: layout.bits[kind, g % half]
        )
    width = max(len(pairs) for pairs in layout.bits.values())
    for shift in (-8, -4, 0, 4, 8):
        for mask in (width, 4, 8):

            def flat(kind: str, g: int, s: int = shift, m: int = mask) -> list[tuple[int, float]]:
                if not pieces((kind, g))[1]:
                    return list(layout.bits[kind, g])
                byte = (g + s + (4 if kind == "offset" else 0)) % size
                return [(8 * (entry[1] + byte) + i, 2.0**i) for i in range(m)]

            yield fault, f"{mask} bits of byte g {shift:+}", rule(flat)


def _as(source: list[tuple[int, float]], weights: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Bits of one place with the weights of another; a missing source leaves them as they are."""
    if not source:
        return weights
    return [(a, w) for (a, _), (_, w) in zip(source, weights, strict=False)]
