"""The arguments of kernels on the matrix unit: addresses and sizes of operands and results."""

from __future__ import annotations

from typing import NamedTuple

NUMBERS = "float32", "float16", "bfloat16"  # of results


class Rows(NamedTuple):
    """Arguments of the kernel that makes tiles of activations."""

    values: int  # address of the first row
    m: int
    pitch: int  # bytes from a row to the next
    steps: int  # tiles along K
    blocks: int  # of 32 rows
    chunk: int  # steps that lie together for all blocks; the last may have fewer
    tiles: int  # address of chunks [blocks, steps, 2, 16, 64 bytes]


class Operands(NamedTuple):
    """Arguments of a product of floats with panels of blocks (``amx/product.py``)."""

    weights: int  # address of uint8 [panels, panel_bytes]
    panels: int
    panel_bytes: int
    tiles: int  # as above
    blocks: int
    runs: int  # of 32 columns: K / 32
    out: int  # address of numbers [m, n]
    number: int  # which, by its place in NUMBERS
    m: int
    n: int
    chunk: int  # runs that are decoded before they are multiplied
    near: int  # pairs of panels whose sums wait in memory


class CodeOperands(NamedTuple):
    """Arguments of a product of 8-bit codes with panels of codes (``codes8/int_amx.py``)."""

    panels: int  # address of [panel_count, panel_bytes]
    panel_count: int
    panel_bytes: int
    w_scales: int  # addresses: float32 and int32 [panel_count, 16]
    w_zeros: int
    w_sums: int
    tiles: int  # as above
    blocks: int
    steps: int  # of 64 columns
    x_scales: int  # addresses: float32 and int32 [m]
    x_zeros: int
    x_sums: int
    out: int  # address of float32 [m, n]
    m: int
    n: int
    chunk: int  # steps that are multiplied before the next pair of panels
    near: int  # pairs of panels whose sums wait in memory
