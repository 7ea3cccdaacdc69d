"""The arguments of the kernels of 8-bit floats."""

from __future__ import annotations

from typing import NamedTuple

from ..machine.tables import Address, joined
from .float_layout import Cut


class Codes(NamedTuple):
    """Rows of codes with scales, and the tile that shares a scale."""

    codes: Address  # bytes [rows, k]
    pitch: int  # bytes from a row to the next
    r: int  # of a scale tile
    c: int
    scales: Address  # float32 [bands, tiles], of any strides
    scales_pitch: int  # bytes from a band to the next
    scales_step: int  # and from a tile to the next


class Product(NamedTuple):
    """The other operand and the result of a product, behind the codes of its weights."""

    x: Address  # bfloat16 [m, row]
    x_pitch: int
    x_scales: Address  # float32 [m, runs of all groups]
    m: int
    n: int
    out: Address  # float32 [m, n]
    span: int  # columns that are decoded at once
    together: int  # runs of a portion
    near: int  # panels of a portion


class TileProduct(NamedTuple):
    """The other operand and the result where the matrix unit multiplies."""

    tiles: int  # address of activations: chunks [blocks, steps, 2, 16, 64 bytes]
    blocks: int  # of 32 rows
    x_scales: int  # address of float32 [32 * blocks, runs of all groups]
    m: int
    n: int
    out: int  # address of float32 [m, n]
    span: int
    together: int  # runs of a chunk
    near: int  # pairs of panels that are decoded along a chunk


class Values(NamedTuple):
    """The results of decoding: rows of bfloat16."""

    values: Address  # bfloat16 [m, row]
    values_pitch: int
    by_run: Address  # float32 [m, runs of all groups]


Operands = joined("Operands", Cut, Codes, Product)
TileOperands = joined("TileOperands", Cut, Codes, TileProduct)
Decoding = joined("Decoding", Cut, Codes, Values)
