"""The arguments of the kernel of ``r8_floats.py``."""

from __future__ import annotations

from typing import NamedTuple

from ..machine.tables import Address

BAND = 16  # rows of weights that meet all activations before the next of these


class Floats(NamedTuple):
    """Arguments: rows of weights as the file has them, rows of float32, and the result."""

    weights: Address  # rows of k numbers
    pitch: int  # bytes from a row to the next
    x: Address  # float32 [m, k]
    m: int
    k: int
    out: Address  # float32 [m, n]
    n: int
