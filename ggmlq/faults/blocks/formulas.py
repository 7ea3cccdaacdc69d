"""The formulas of the doctor's report, the wrong and the right one, in the letters of a block format."""

from __future__ import annotations

import re

from ...formats import FORMATS, BlockFormat, Format
from ..catalogue import Fault
from .misread import low_bits

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
