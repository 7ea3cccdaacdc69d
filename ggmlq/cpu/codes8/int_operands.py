"""What kernels of panels are given."""

from __future__ import annotations

from typing import NamedTuple

from ..machine.tables import Address


class Operands(NamedTuple):
    """Arguments of what multiplies, as addresses and sizes."""

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


class Laid(NamedTuple):
    """Arguments of what lays rows of weights into panels."""

    k: int  # how K is cut, see int_layout.py
    group: int
    groups: int
    chunk: int
    chunks: int
    fours: int
    codes: Address  # bytes [rows, k]
    rows: int
    pitch: int  # bytes from a row to the next
    panels: Address
    panel_bytes: int
    flip: int  # bits that are turned


class Taken(NamedTuple):
    """Arguments of what is made of rows of codes; what has no address to go to is not made."""

    k: int  # how K is cut
    group: int
    groups: int
    chunk: int
    chunks: int
    fours: int
    codes: Address  # bytes [rows, k]
    pitch: int
    stored: Address  # bytes [rows, stored_pitch]: the same with bits turned, filled up to whole fours
    stored_pitch: int
    flip: int
    sums: Address  # int32 [rows, chunks of all groups]: (Σ codes + shift · their number) · factor
    shift: int
    factor: int
    r: int  # of a tile
    c: int
    scales: Address  # float32 [bands, tiles], of any strides
    scales_pitch: int  # bytes from a band to the next
    scales_step: int  # and from a tile to the next
    by_group: Address  # float32 [rows, groups]: those of each group
    zeros: Address  # int32 like the scales; 0 where all are 0
    zeros_pitch: int
    zeros_step: int
    stored_zeros: Address  # int32 [rows, groups]: with the shift
