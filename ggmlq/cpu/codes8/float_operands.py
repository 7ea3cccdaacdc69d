"""What kernels of pairs are given."""

from __future__ import annotations

from typing import NamedTuple

from ..machine.tables import Address


class Operands(NamedTuple):
    """Arguments of what multiplies."""

    k: int  # how K is cut, see float_layout.py
    group: int
    groups: int
    run: int
    runs: int
    width: int
    codes: Address  # bytes [n, k] of weights
    pitch: int  # from a row to the next
    r: int  # of a tile of scales
    c: int
    scales: Address  # float32 [bands, tiles], of any strides
    scales_pitch: int  # bytes from a band to the next
    scales_step: int  # and from a tile to the next
    x: Address  # bfloat16 [m, row]
    x_pitch: int
    x_scales: Address  # float32 [m, runs of all groups]
    m: int
    n: int
    out: Address  # float32 [m, n]
    span: int  # columns that are decoded at once
    together: int  # runs of a piece
    near: int  # panels of a piece


class Rows(NamedTuple):
    """Arguments of what makes rows of bfloat16."""

    k: int  # how K is cut
    group: int
    groups: int
    run: int
    runs: int
    width: int
    codes: Address  # bytes [m, k]
    pitch: int
    r: int
    c: int
    scales: Address  # float32 [bands, tiles], of any strides
    scales_pitch: int
    scales_step: int
    made: Address  # bfloat16 [m, row]
    made_pitch: int
    by_run: Address  # float32 [m, runs of all groups]
