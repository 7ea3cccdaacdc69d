"""The arguments of the kernels of integer codes."""

from __future__ import annotations

from typing import NamedTuple

from ..machine.tables import Address, joined
from .int_layout import Cut


class Operands(NamedTuple):
    """The arguments of a product, as addresses and sizes."""

    panel_bytes: int
    panels: Address
    w_scales: Address
    w_zeros: Address
    w_sums: Address
    x: Address
    x_pitch: int
    x_scales: Address
    x_zeros: Address
    x_sums: Address
    m: int
    n: int
    out: Address
    groups: int
    chunks: int
    fours: int


class Panels(NamedTuple):
    """Rows of weights, and the panels that they become."""

    codes: Address  # bytes [rows, k]
    rows: int
    pitch: int  # bytes from a row to the next
    panels: Address
    panel_bytes: int
    flip: int  # bits that are inverted


class Rows(NamedTuple):
    """Rows of codes and the results of their conversion; a result without an address is left out."""

    codes: Address  # bytes [rows, k]
    pitch: int
    stored: Address  # bytes [rows, stored_pitch]: the same with bits inverted, filled up to whole fours
    stored_pitch: int
    flip: int
    sums: Address  # int32 [rows, chunks of all groups]: (Σ codes + shift · their number) · factor
    shift: int
    factor: int
    r: int  # of a scale tile
    c: int
    scales: Address  # float32 [bands, tiles], of any strides
    scales_pitch: int  # bytes from a band to the next
    scales_step: int  # and from a tile to the next
    by_group: Address  # float32 [rows, groups]: those of each group
    zeros: Address  # int32 like the scales; 0 where all are 0
    zeros_pitch: int
    zeros_step: int
    stored_zeros: Address  # int32 [rows, groups]: with the shift


Interleaving = joined("Interleaving", Cut, Panels)
Conversion = joined("Conversion", Cut, Rows)
