"""The cases that kernels of the quantizer are compiled for, and their arguments."""

from __future__ import annotations

from typing import NamedTuple

from ..machine.tables import Address
from ..machine.target import Target

LANES = 16  # numbers at a time
WIDTH = {"float32": 4, "float16": 2, "bfloat16": 2}  # bytes of a number


class Kind(NamedTuple):
    """The case that a kernel from numbers to codes and scales is compiled for."""

    read: str  # dtype of the numbers
    code: str  # a name in CODES
    rounding: str
    zeros: bool
    scale: str  # "float32" or "e8m0"
    target: Target


class Numbers(NamedTuple):
    """The arguments of all kernels: numbers [rows, columns], their units, their results."""

    rows: int
    columns: int
    r: int  # of a tile
    c: int
    high: int  # of a unit, see units.py
    wide: int
    parts: int
    across: int
    numbers: Address  # the first of them
    pitch: int  # bytes from a row to the next
    codes: Address
    codes_pitch: int
    scales: Address  # [bands, tiles of a row]
    zeros: Address  # int32, the same; or 0
    eps: int  # the bits of a float32
    low: Address  # float32, one a unit: the least so far
    most: Address  # the same: the largest
