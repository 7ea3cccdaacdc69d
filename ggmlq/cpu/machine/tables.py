"""Tables of arguments: the words that a kernel reads, as named tuples of integers, some of them addresses.

A field that says ``Address`` is where an array begins, or 0 for none; all others are numbers. So a product
can be run again with other operands (``recorded.py``): addresses are all that changes.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, NamedTuple, get_type_hints

_MARK = "address"
Address = Annotated[int, _MARK]


def joined(name: str, *parts: type) -> Any:
    """A table of the fields of others, one after another: for arguments that several kernels share."""
    fields = [field for part in parts for field in get_type_hints(part, include_extras=True).items()]
    return NamedTuple(name, fields)


@cache
def addresses(kind: type) -> tuple[int, ...]:
    """The places of the addresses among the words of a table."""
    hints: dict[str, Any] = get_type_hints(kind, include_extras=True)
    fields: tuple[str, ...] = vars(kind)["_fields"]
    return tuple(i for i, name in enumerate(fields) if _MARK in getattr(hints[name], "__metadata__", ()))
