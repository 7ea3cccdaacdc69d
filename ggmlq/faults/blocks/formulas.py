"""The formulas of the doctor's report, the wrong and the right one, in the letters of a block format.

Formulas of codes in a wrong order are made from the place of each code in its block's bytes. Places are
found by flipping bits, so that no layout is written down twice; formats with one code a byte have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from ...formats import FORMATS, BlockFormat, Format
from ...formats.format import Blocks
from ..catalogue import Fault
from ..numbers import Index

CONSTANT = re.compile(r"\(q - (\d+)\)")  # of q4_0: d * (q - 8)
OFFSET = re.compile(r"^(?P<scaled>.+) (?P<sign>[-+]) (?P<term>[\w* ]+)$")  # of q4_K: … - dmin * m
EXAMPLE = re.compile(r"(\w+): ")  # a formula of the catalogue that is one format's
OF_VALUES = re.compile(r"\bd(min)?·|\bq\b|\bsc\[")  # formulas that are about what a value is
SHOWN = 4  # bytes that a formula must hold for


def formulas(fault: Fault, fmt: Format) -> tuple[str, str]:
    """The wrong and the right formula of a fault: this format's if it has the term, else the catalogue's."""
    if not isinstance(fmt, BlockFormat):
        return fault.wrong, fault.right
    right = fmt.formula
    wrong = _wrong(fault.id, fmt, right)
    if wrong is not None:
        return f"value = {wrong}", f"value = {right} ({fmt.name})"
    example = EXAMPLE.match(fault.right)
    if example is not None and example[1] in FORMATS and example[1] != fmt.name:
        return "", f"value = {right} ({fmt.name})"
    above = f"<< {low_bits(fmt) or 4}"  # where high bits lie
    value = f"; of {fmt.name}, value = {right}" if OF_VALUES.search(fault.right) else ""
    return fault.wrong.replace("<< 4", above), fault.right.replace("<< 4", above) + value


def _wrong(fault: str, fmt: BlockFormat, right: str) -> str | None:
    """The formula of a value with the fault in it, where it has the term that the fault is about."""
    offset, constant = OFFSET.match(right) if fmt.has_offset else None, CONSTANT.search(right)
    if offset is not None:
        scaled, sign, term = offset.group("scaled", "sign", "term")
        twice, other = f"{scaled} {sign} 2 * {term}", f"{scaled} {'+' if sign == '-' else '-'} {term}"
        by_fault = {"offset-missing": scaled, "offset-twice": twice, "offset-sign": other}
        by_fault |= {"sum-missing": scaled, "min-ignored": scaled}
    elif constant is not None:
        zero = int(constant[1])
        terms = {"missing": "q", "twice": f"(q - {2 * zero})", "sign": f"(q + {zero})"}
        by_fault = {f"offset-{name}": CONSTANT.sub(term, right) for name, term in terms.items()}
    else:
        return None
    return by_fault.get(fault)


# --- places of bits ---------------------------------------------------------------------------


def bits_a_byte(fmt: BlockFormat) -> int:
    """Bits of a code that the main field (qs, ql) holds; more than 4 where it is not packed."""
    name = main_field(fmt)
    if name not in (fmt.dtype.names or ()) or fmt.dtype[name].base != np.dtype("u1"):
        return 8
    bits = 8 * fmt.dtype[name].itemsize // fmt.block_size
    return bits if bits in (2, 4) else 8


def main_field(fmt: BlockFormat) -> str:
    return "ql" if "ql" in (fmt.dtype.names or ()) else "qs"


def low_bits(fmt: BlockFormat) -> int:
    """The number of bits of a code below its high bits; 0 if a format does not store high bits apart."""
    bits, names = bits_a_byte(fmt), fmt.dtype.names or ()
    return bits if bits < 8 and (fmt.zero or fmt.has_offset) and {"qh", "hmask"} & set(names) else 0


def one_bit_set(fmt: BlockFormat, addresses: Iterable[int]) -> Blocks:
    """An empty block, and for each address a block in which that bit alone is set."""
    addresses = list(addresses)
    raw = np.zeros((1 + len(addresses), 8 * fmt.dtype.itemsize), np.uint8)
    raw[np.arange(len(addresses)) + 1, addresses] = 1
    return np.packbits(raw, axis=-1, bitorder="little").view(fmt.dtype).reshape(-1)


class Packing(NamedTuple):
    """Places of elements [block]: the byte of the field, and the first bit in it."""

    field: str
    byte: Index
    shift: Index
    bits: int

    @property
    def places(self) -> Index:
        """The element in each part of each byte, [bytes, parts]."""
        order = np.lexsort((self.shift, self.byte))
        return order.reshape(-1, 8 // self.bits)


@cache
def packing(name: str) -> Packing | None:
    """The main field of a format, where each of its bits moves one element and each byte holds several."""
    fmt = FORMATS[name]
    if not isinstance(fmt, BlockFormat) or (bits := bits_a_byte(fmt)) == 8:
        return None
    assert fmt.dtype.fields is not None
    entry, start = fmt.dtype.fields[main_field(fmt)][:2]
    if 8 * entry.itemsize != bits * fmt.block_size:
        return None
    parts = range(8 * start, 8 * (start + entry.itemsize), bits)  # the first bit of each part of each byte
    with np.errstate(all="ignore"):
        codes = fmt.unpack(one_bit_set(fmt, parts)).codes
    moved = codes[1:] != codes[0]
    if not (moved.sum(axis=1) == 1).all() or not (moved.sum(axis=0) == 1).all():
        return None  # a grid: one index, several elements
    part = moved.argmax(axis=0)  # of each element
    return Packing(main_field(fmt), part * bits // 8, part * bits % 8, bits)


# --- codes in a wrong order -------------------------------------------------------------------


def exchanges_halves(packed: Packing, order: Index) -> bool:
    """True of orders that give each element what lies in the other half of its byte."""
    if packed.bits != 4:
        return False
    low, high = packed.places.T
    return bool((order[low] == high).all() and (order[high] == low).all())


def byte_formulas(packed: Packing, order: Index) -> tuple[str, str]:
    """The wrong and the right formula: the elements that are made of each byte."""
    places = packed.places
    takers = np.full(order.shape, -1)
    takers[order[::-1]] = np.arange(len(order))[::-1]  # the first element that each code goes to
    wrong, right = _formula(packed, takers[places]), _formula(packed, places)
    if wrong == right:  # the first bytes are read rightly
        b = int(np.flatnonzero((takers[places] != places).any(axis=1))[0])
        return _byte_formula(packed, takers[places][b], b), _byte_formula(packed, places[b], b)
    return wrong, right


def _formula(packed: Packing, elements: Index) -> str:
    """Elements [bytes, parts] as a + b·j where the first bytes j show that; else those of byte 0."""
    names = []
    for p, first in enumerate(elements[:SHOWN].T):
        step = int(first[1] - first[0])
        if (np.diff(first) != step).any() or (first < 0).any():
            return _byte_formula(packed, elements[0], 0)
        at = {0: "", 1: "j"}.get(step, f"{step}j" if step > 0 else f"{first[0]}{step}j")
        plus = f"{'+' if at else ''}{first[0]}" if step >= 0 and (first[0] or not at) else ""
        names.append(f"q[{at}{plus}] = {_source(packed, p, 'j')}")
    return ", ".join(names)


def _byte_formula(packed: Packing, elements: Index, byte: int) -> str:
    parts = [f"q[{e}] = {_source(packed, p, str(byte))}" for p, e in enumerate(elements) if e >= 0]
    return ", ".join(parts) or f"no element is made of {packed.field}[{byte}]"


def _source(packed: Packing, part: int, byte: str) -> str:
    """Part of a byte as C has it."""
    shift, mask = part * packed.bits, 2**packed.bits - 1
    value = f"{packed.field}[{byte}]" + (f" >> {shift}" if shift else "")
    return value if shift + packed.bits == 8 else f"{value} & {mask}"
