"""The arguments of the kernels that decode codes with scales."""

from __future__ import annotations

from typing import NamedTuple

from ..machine.tables import Address


class Codes(NamedTuple):
    """Arguments: rows of codes, and where their values go."""

    codes: Address  # the first row
    pitch: int  # bytes from a row to the next
    columns: int
    first: int  # the number of this row in the matrix
    r: int  # of a tile
    c: int
    scales: Address  # float32 [bands, tiles of a row]; 0: without scales
    zeros: Address  # int32, the same, where there are any
    floats: Address  # float32 rows
    floats_pitch: int
