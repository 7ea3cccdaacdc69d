"""The driver of ``scaled_linear``'s rung ``cpu:amx`` for 8-bit floats: tiles, kernel, threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.scaled import ScaledArray
from ...dispatch.problems import ScaledLinear
from ..amx.multiply import BLOCK, MOST
from ..amx.operands import Rows
from ..amx.unit import TILE, Unit
from ..machine.kernels import kernel
from ..machine.tables import address
from ..machine.target import AVX512
from ..machine.workers import share_kernel
from .float_activations import x_rows_of
from .float_layout import LONG, cut_of
from .float_operands import TileOperands

NEAR = 8  # pairs of panels whose chunk and whose totals the second cache holds
WIDE = 32  # columns of a tile


def multiply(problem: ScaledLinear, x: ScaledArray, w: ScaledArray, out: Any, unit: Any = Unit) -> None:
    """``out = x @ w.T`` where runs are whole tiles."""
    cut, a, b = cut_of(problem), x.matrix(), w.matrix()
    rows, runs = x_rows_of(a, cut, BLOCK), cut.groups * cut.runs
    together = min(runs, LONG // cut.width)
    steps, chunk = runs * cut.width // WIDE, together * cut.width // WIDE
    product = kernel("codes8.float_amx.multiplier", b.code.name, AVX512, unit)
    for first in range(0, problem.m, MOST * BLOCK):
        count = min(MOST * BLOCK, problem.m - first)
        blocks = -(-count // BLOCK)
        memory = np.empty(2 * TILE * blocks * steps + TILE, np.uint8)
        tiles = memory.ctypes.data + TILE - 1 & -TILE
        values = rows.values[first:].ctypes.data
        share_kernel(
            kernel("amx.activations.packer", "bytes"),
            Rows(values, count, cut.pitch, steps, blocks, chunk, tiles),
            2 * blocks * steps,
            64,
        )
        arguments = TileOperands(
            *cut, address(b.codes), b.codes.strides[0], b.over.r, b.over.c,
            address(b.scales), *b.scales.strides,
            tiles, blocks, rows.scales[first:].ctypes.data, count, problem.n, out[first:].ctypes.data,
            cut.span, together, NEAR,
        )  # fmt: skip
        share_kernel(product, arguments, -(-problem.n // BLOCK))
