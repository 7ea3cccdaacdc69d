"""The arguments of kernels on panels: addresses and sizes of weights, activations and results."""

from __future__ import annotations

from typing import NamedTuple

from ..machine.tables import Address


class Operands(NamedTuple):
    """Arguments of every kernel that multiplies, as addresses and sizes."""

    weights: Address  # uint8 [weight_rows, weight_bytes]: panels, or rows of a file's blocks
    weight_rows: int
    weight_bytes: int
    x_rows: Address  # m rows of activations in batches, see tile.py
    m: int
    row_bytes: int
    out: Address  # float32 [m, n]
    n: int
    runs: int  # of 32 columns: K / 32
    ahead: int = 0  # bytes ahead of which panels are prefetched, with few rows of activations; 0: not at all


class Activations(NamedTuple):
    """Arguments of a quantizer."""

    values: Address  # float32 [M, columns]
    x_rows: Address  # what they become, uint8 [rows, row_bytes]
    rows: int
    columns: int
    row_bytes: int
    most: int  # rows of a batch
    zero: int  # the number that the product has to take from every code of the weights
    start: int  # the first value of its sums of integers


class Splitting(NamedTuple):
    """Arguments of the kernel that splits rows of blocks."""

    raw: Address  # uint8 [rows, row_bytes]
    row_bytes: int
    columns: int
    codes: Address  # int8 [rows, columns]
    groups: int  # of a row
    scales: Address  # float32 [rows, groups]
    offsets: Address  # the same, where the format has offsets


class Assembly(NamedTuple):
    """Arguments of the kernel that lays rows of codes into panels of zeros."""

    codes: Address  # int8 [rows, columns]
    columns: int
    scales: Address  # uint8 [rows, groups of a row · width]: as panels hold them
    offsets: Address  # the same, where there are offsets
    width: int  # bytes of a scale
    above: Address  # uint8 [rows, supers · above_bytes]: halves above the scales, or none
    above_bytes: int  # bytes of these
    panels: Address  # uint8 [panels, panel_bytes]
    panel_bytes: int
    stored: Address  # uint8 [256]: the stored byte of each code, by code + 128
