"""The formulas of the doctor's report, the wrong and the right one, in the letters of a block format."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...formats import FORMATS, BlockFormat, Format
from ..catalogue import Fault
from ..numbers import Index
from .orders import Order

CONSTANT = re.compile(r"\(q - (\d+)\)")  # of q4_0: d * (q - 8)
OFFSET = re.compile(r"^(?P<scaled>.+) (?P<sign>[-+]) (?P<term>[\w* ]+)$")  # of q4_K: … - dmin * m
EXAMPLE = re.compile(r"(\w+): ")  # a formula of the catalogue that is one format's
OF_VALUES = re.compile(r"\bd(min)?·|\bq\b|\bsc\[")  # formulas that are about what a value is
MISSING = ("offset-missing", "sum-missing", "min-ignored")


def formulas(fault: Fault, fmt: Format) -> tuple[str, str]:
    """The wrong and the right formula of a fault: this format's if it has the term, else the catalogue's."""
    if not isinstance(fmt, BlockFormat):
        return fault.wrong, fault.right
    right = fmt.formula
    wrong = _wrong(fault.id, fmt, right)
    if wrong is None:
        example = EXAMPLE.match(fault.right)
        if example is not None and example[1] in FORMATS and example[1] != fmt.name:
            return "", f"value = {right} ({fmt.name})"
        above = f"<< {low_bits(fmt) or 4}"  # where high bits lie
        pair = [text.replace("<< 4", above) for text in (fault.wrong, fault.right)]
        value = f"; of {fmt.name}, value = {right}" if OF_VALUES.search(fault.right) else ""
        return pair[0], pair[1] + value
    return f"value = {wrong}", f"value = {right} ({fmt.name})"


def _wrong(fault: str, fmt: BlockFormat, right: str) -> str | None:
    """The formula of a value with the fault in it, where it has the term that the fault is about."""
    offset = OFFSET.match(right) if fmt.has_offset else None
    if offset is not None:
        scaled, sign, term = offset.group("scaled", "sign", "term")
        other = "+" if sign == "-" else "-"
        twice = f"{scaled} {sign} 2 * {term}"
        return _by_fault(fault, scaled, twice, f"{scaled} {other} {term}")
    constant = CONSTANT.search(right)
    if constant is None or fault in ("sum-missing", "min-ignored"):
        return None
    zero = int(constant[1])
    wrong = (CONSTANT.sub(term, right) for term in ("q", f"(q - {2 * zero})", f"(q + {zero})"))
    return _by_fault(fault, *wrong)


def _by_fault(fault: str, missing: str, twice: str, sign: str) -> str | None:
    return missing if fault in MISSING else {"offset-twice": twice, "offset-sign": sign}.get(fault)


# The doctor's formulas of codes in a wrong order, made from the place of each code in its block's bytes.
#
# Places are found by flipping bits, so that no layout is written down twice. Only formats with several codes
# to a byte have them.
SHOWN = 4  # bytes that a formula must hold for


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
    fields: Any = fmt.dtype.fields or {}
    field = "ql" if "ql" in fields else "qs"
    if not isinstance(fmt, BlockFormat) or field not in fields or fields[field][0].base != np.dtype("u1"):
        return None
    start, width = fields[field][1], fields[field][0].itemsize
    bits = 8 * width // fmt.block_size
    if bits not in (2, 4) or 8 * width != bits * fmt.block_size:
        return None
    first = 8 * start + np.arange(0, 8 * width, bits)  # of each part of each byte
    raw = np.zeros((1 + len(first), 8 * fmt.dtype.itemsize), np.uint8)
    raw[np.arange(len(first)) + 1, first] = 1
    with np.errstate(all="ignore"):
        codes = fmt.unpack(np.packbits(raw, axis=-1, bitorder="little").view(fmt.dtype).reshape(-1)).codes
    moved = codes[1:] != codes[0]
    if not (moved.sum(axis=1) == 1).all() or not (moved.sum(axis=0) == 1).all():
        return None  # a grid: one index, several elements
    part = moved.argmax(axis=0)  # of each element
    return Packing(field, part * bits // 8, part * bits % 8, bits)


def exchanges_halves(packed: Packing, order: Order) -> bool:
    """True of orders that give each element what lies in the other half of its byte."""
    if packed.bits != 4:
        return False
    low, high = packed.places.T
    return bool((order[low] == high).all() and (order[high] == low).all())


def byte_formulas(packed: Packing, order: Order) -> tuple[str, str]:
    """The wrong and the right formula: the elements that are made of each byte."""
    places = packed.places
    takers = np.full(order.shape, -1)
    takers[order[::-1]] = np.arange(len(order))[::-1]  # the first element that was given each code
    wrong, right = _formula(packed, takers[places]), _formula(packed, places)
    if wrong == right:  # the first bytes are taken rightly
        b = int(np.flatnonzero((takers[places] != places).any(axis=1))[0])
        return _byte_formula(packed, takers[places][b], b), _byte_formula(packed, places[b], b)
    return wrong, right


def _formula(packed: Packing, elements: Index) -> str:
    """Elements [bytes, parts] as a + b·j where the first bytes j show that; else those of byte 0."""
    names = []
    for p, first in enumerate(elements[:SHOWN].T):
        source = _source(packed, p, "j")
        step = int(first[1] - first[0])
        if (np.diff(first) != step).any() or (first < 0).any():
            return _byte_formula(packed, elements[0], 0)
        at = {0: "", 1: "j"}.get(step, f"{step}j" if step > 0 else f"{first[0]}{step}j")
        plus = f"{'+' if at else ''}{first[0]}" if step >= 0 and (first[0] or not at) else ""
        names.append(f"q[{at}{plus}] = {source}")
    return ", ".join(names)


def _byte_formula(packed: Packing, elements: Index, byte: int) -> str:
    taken = [f"q[{e}] = {_source(packed, p, str(byte))}" for p, e in enumerate(elements) if e >= 0]
    return ", ".join(taken) or f"no element is made of {packed.field}[{byte}]"


def _source(packed: Packing, part: int, byte: str) -> str:
    """Part of a byte as C has it."""
    shift, mask = part * packed.bits, 2**packed.bits - 1
    value = f"{packed.field}[{byte}]" + (f" >> {shift}" if shift else "")
    return value if shift + packed.bits == 8 else f"{value} & {mask}"


def bits_a_byte(fmt: BlockFormat) -> int:
    """Bits of a code that the main field (qs, ql) holds; more than 4 where it is not packed."""
    assert fmt.dtype.fields is not None
    name = "ql" if "ql" in fmt.dtype.fields else "qs"
    if name not in fmt.dtype.fields or fmt.dtype[name].base != np.dtype("u1"):
        return 8
    bits = 8 * fmt.dtype[name].itemsize // fmt.block_size
    return bits if bits in (2, 4) else 8


def low_bits(fmt: BlockFormat) -> int:
    """The number of bits of a code below its high bits; 0 if a format does not store high bits apart."""
    names = fmt.dtype.names or ()
    plain = bits_a_byte(fmt) in (2, 4) and (fmt.zero or fmt.has_offset)
    return bits_a_byte(fmt) if plain and {"qh", "hmask"} & set(names) else 0
