"""The arguments of the kernel of ``r4_lines.py``."""

from __future__ import annotations

from typing import NamedTuple

from ..machine.tables import Address


class Lines(NamedTuple):
    """Arguments: weights as codes, a few rows of activations as float32, scales of both."""

    codes: Address  # rows of weights
    pitch: int  # bytes from a row to the next
    w_scales: Address  # float32 [bands, tiles of a row]
    w_r: int  # of a tile
    w_c: int
    x: Address  # float32 [rows, k]
    k: int
    group: int  # columns that share both scales
    x_scales: Address  # float32 [bands, tiles of a row]
    x_first: int  # the number of the first row of activations
    x_r: int
    x_c: int
    out: Address  # float32 [rows, n]
    n: int
    ahead: int  # bytes ahead of which weights are prefetched; 0: not at all
