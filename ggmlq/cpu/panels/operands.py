"""What a product is given: where weights, activations and results lie, and how large they are."""

from __future__ import annotations

from typing import NamedTuple

from ..machine.arguments import reader


class Operands(NamedTuple):
    """Arguments of every kernel that multiplies, as addresses and sizes."""

    weights: int  # address of uint8 [weight_rows, weight_bytes]: panels, or rows of a file's blocks
    weight_rows: int
    weight_bytes: int
    records: int  # address of uint8 [m, row_bytes]: rows of activations, see tile.py
    m: int
    row_bytes: int
    out: int  # address of float32 [m, n]
    n: int
    runs: int  # of 32 columns: K / 32


operands = reader(Operands)
