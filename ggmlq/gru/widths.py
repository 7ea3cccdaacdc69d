"""The tensors of a GRU, and the width of each: bits, with or without a sign, with or without a zero point.

    int8    8 bits everywhere
    mixed   16 bits for biases, Wx, Rh, Rh_add_br, rRh, old and new, 8 for the rest
    int16   16 bits everywhere

Gates after the sigmoid are unsigned: they lie between 0 and 1. Weights and biases have no zero point, so
that a product needs only one correction, for the zero point of the activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from ..base.text import short
from ..errors import ConfigError, DTypeError
from ..fixed.qformat import MOST_BITS

WEIGHTS = ("W", "R", "bx", "br")  # an exponent a row, no zero point
STEPS = ("x", "h")  # their ranges are averaged over the steps
GATES = ("z_out", "r_out", "g_out")
WIDEST = 0.5  # the least width of the ranges of gates
WIDE = ("bx", "br", "Wx", "Rh", "Rh_add_br", "rRh", "old", "new")  # 16 bits in "mixed"
NAMES = (
    "x", "h", "W", "R", "bx", "br", "Wx", "Rh", "z_pre", "r_pre", "g_pre", "z_out", "r_out", "g_out",
    "Rh_add_br", "rRh", "old", "new",
)  # fmt: skip


class Width(NamedTuple):
    """The bits of a tensor's codes, and their sign and zero point."""

    bits: int
    signed: bool
    symmetric: bool


def _usual(name: str, bits: int) -> Width:
    return Width(bits, name not in ("z_out", "r_out"), name in (*WEIGHTS, "g_out"))


NAMED: dict[str, dict[str, Width]] = {
    "int8": {name: _usual(name, 8) for name in NAMES},
    "mixed": {name: _usual(name, 16 if name in WIDE else 8) for name in NAMES},
    "int16": {name: _usual(name, 16) for name in NAMES},
}


def widths_of(request: str, config: Any) -> dict[str, Width]:
    """The widths of all tensors, from a name or a mapping; a mapping changes those of "mixed"."""
    if isinstance(config, str):
        if config not in NAMED:
            raise ConfigError(
                f"{request}: no such widths as {short(config)}; named are {', '.join(NAMED)}; pass one, or a "
                'mapping such as {"h": {"bits": 12}}'
            )
        return NAMED[config]
    if not isinstance(config, Mapping):
        raise DTypeError(
            f"{request}: widths are a {type(config).__name__}; they are a name ({', '.join(NAMED)}) or "
            "a mapping "
            'from tensors to {"bits", "signed", "symmetric"}; pass "mixed"'
        )
    widths = dict(NAMED["mixed"])
    for name, setting in config.items():
        if name not in widths:
            near = get_close_matches(str(name), NAMES, 1)
            hint = f"did you mean {near[0]!r}?" if near else "rename it"
            raise ConfigError(
                f"{request}: there is no tensor {short(name)}; they are {', '.join(NAMES)}; {hint}"
            )
        widths[name] = _checked(request, name, setting, widths[name])
    return widths


def _checked(request: str, name: str, setting: Any, usual: Width) -> Width:
    fields = Width._fields
    if not isinstance(setting, Mapping) or not set(setting) <= set(fields):
        raise ConfigError(
            f"{request}: {name} is to be {short(setting)}; a tensor takes a mapping with "
            f"{', '.join(fields)}; pass "
            '{"bits": 8}'
        )
    merged = usual._replace(**setting)
    bits = merged.bits
    if isinstance(bits, bool) or not hasattr(bits, "__index__") or not 2 <= bits.__index__() <= MOST_BITS:
        raise ConfigError(
            f"{request}: {name} is to have {short(bits)} bits; widths are 2 to {MOST_BITS}; pass one of these"
        )
    for field in fields[1:]:
        if not isinstance(getattr(merged, field), bool):
            raise ConfigError(
                f"{request}: {field} of {name} is {short(getattr(merged, field))}; it is True or False"
            )
    if name in WEIGHTS and not (merged.signed and merged.symmetric):
        raise ConfigError(
            f"{request}: {name} is to be {'asymmetric' if merged.signed else 'unsigned'}; weights and "
            "biases are "
            "signed and have no zero point, so that a product needs one correction only; leave these out"
        )
    return merged._replace(bits=bits.__index__())


def named(widths: Mapping[str, Any]) -> str:
    """The name of the widths that formats have, or "other"."""
    bits = {name: (width.bits, width.signed) for name, width in widths.items()}
    for name, usual_widths in NAMED.items():
        if bits == {tensor: (width.bits, width.signed) for tensor, width in usual_widths.items()}:
            return name
    return "other"
