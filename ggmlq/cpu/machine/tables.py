"""The table of a kernel's arguments, declared as a named tuple of integers, some of them addresses.

A field that says ``Address`` is where an array begins, or 0 for none; all others are numbers. So a product
can be run again with other operands (``recorded.py``): addresses are all that changes. While it is recorded,
the address of an operand has its slot (base/slots.py).
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np

from ...arrays.buffers import address_of
from ...base.slots import Slot, slot_of

_MARK = "address"
Address = Annotated[int, _MARK]


def joined(name: str, *parts: type) -> Any:
    """A new kind of table, with the fields of several others in order: for arguments that kernels share."""
    fields = [field for part in parts for field in get_type_hints(part, include_extras=True).items()]
    return NamedTuple(name, fields)


@cache
def addresses(kind: type) -> tuple[int, ...]:
    """The positions, from 0, of the fields of a table that are addresses."""
    hints: dict[str, Any] = get_type_hints(kind, include_extras=True)
    fields: tuple[str, ...] = vars(kind)["_fields"]
    return tuple(i for i, name in enumerate(fields) if _MARK in getattr(hints[name], "__metadata__", ()))


class SlotAddress(int):
    """An address, with the slot through which each call of a recording brings it."""

    slot: Slot

    def __new__(cls, at: int, slot: Slot) -> SlotAddress:
        address = super().__new__(cls, at)
        address.slot = slot
        return address

    def __add__(self, nbytes: int) -> SlotAddress:
        return SlotAddress(int(self) + nbytes, self.slot + nbytes)


def address(array: Any) -> int:
    """The address of an array for a table of arguments; of a labelled one with its slot."""
    at = address_of(array)
    if type(array) is np.ndarray and array.base is None:
        return at
    slot = slot_of(array, at)
    return at if slot is None else SlotAddress(at, slot)
