"""The arguments of decoders."""

from __future__ import annotations

from typing import NamedTuple

from ..machine.tables import Address


class Codes(NamedTuple):
    """Arguments: rows of codes, and where their values go."""

    codes: Address  # the first row
    pitch: int  # bytes from a row to the next
    columns: int
    first: int  # its number in the matrix
    r: int  # of a tile
    c: int
    scales: Address  # float32 [bands, tiles of a row]; 0: all are one
    zeros: Address  # int32, the same, where there are any
    floats: Address  # float32 rows
    floats_pitch: int
