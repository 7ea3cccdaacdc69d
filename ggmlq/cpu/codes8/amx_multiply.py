"""The drivers of ``scaled_linear``'s rung ``cpu:amx``: tiles, kernel, threads that share pairs of panels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.scaled import ScaledArray
from ...dispatch.problems import ScaledLinear
from ..amx.multiply import BLOCK, MOST, CodeOperands, Rows
from ..amx.unit import PITCH, TILE, Unit
from ..machine.kernels import kernel
from ..machine.tables import address
from ..machine.target import AVX512
from ..machine.workers import share_kernel
from . import float_layout, float_multiply, int_layout, int_multiply
from .float_layout import TileOperands
from .int_layout import form_of, w_shift, x_shift
from .int_multiply import maker

# Steps of two panels that the first cache holds, and pairs whose sums the second does.
CHUNK, INT_NEAR = 16, 16
FLOAT_NEAR = 8  # pairs of panels whose chunk and whose totals the second cache holds
WIDE = 32  # columns of a tile of floats


def integers(problem: ScaledLinear, x: ScaledArray, w: ScaledArray, out: Any, unit: Any = Unit) -> None:
    """``out = x @ w.T`` of integers, where one scale serves all of K."""
    cut, form = int_layout.cut_of(problem), form_of(problem, AVX512)
    shift = w_shift(problem.w, AVX512)
    panels = w.prepared(maker(cut, form, shift))
    nbytes, at, w_scales, w_zeros, w_sums = panels.at
    rows = int_multiply.x_rows_of(x.matrix(), cut, form, x_shift(problem.x), shift)
    steps, (m, n) = cut.row_bytes // PITCH, out.shape
    product, pack = (
        kernel("codes8.int_amx.multiplier", form, unit),
        kernel("amx.instructions.packer", "bytes"),
    )
    for first in range(0, m, MOST * BLOCK):
        part = slice(first, min(first + MOST * BLOCK, m))
        count = part.stop - first
        blocks, chunk = -(-count // BLOCK), min(CHUNK, steps)
        memory = np.empty(2 * TILE * blocks * steps + TILE, np.uint8)
        tiles = memory.ctypes.data + TILE - 1 & -TILE
        codes, scales, sums = rows.codes[part], rows.scales[part], rows.sums[part]
        zeros = None if rows.zeros is None else rows.zeros[part]
        packing = Rows(codes.ctypes.data, count, codes.strides[0], steps, blocks, chunk, tiles)
        share_kernel(pack, packing, 2 * blocks * steps, 64)
        arguments = CodeOperands(
            at, len(panels.codes), nbytes, w_scales, w_zeros, w_sums, tiles, blocks, steps,
            scales.ctypes.data, 0 if zeros is None else zeros.ctypes.data, sums.ctypes.data,
            out[part].ctypes.data, count, n, chunk, INT_NEAR,
        )  # fmt: skip
        share_kernel(product, arguments, -(-len(panels.codes) // 2))


def floats(problem: ScaledLinear, x: ScaledArray, w: ScaledArray, out: Any, unit: Any = Unit) -> None:
    """``out = x @ w.T`` of 8-bit floats, where runs are whole tiles."""
    cut, a, b = float_layout.cut_of(problem), x.matrix(), w.matrix()
    rows, runs = float_multiply.x_rows_of(a, cut, BLOCK), cut.groups * cut.runs
    together = min(runs, float_layout.LONG // cut.width)
    steps, chunk = runs * cut.width // WIDE, together * cut.width // WIDE
    product = kernel("codes8.float_amx.multiplier", b.code.name, AVX512, unit)
    for first in range(0, problem.m, MOST * BLOCK):
        count = min(MOST * BLOCK, problem.m - first)
        blocks = -(-count // BLOCK)
        memory = np.empty(2 * TILE * blocks * steps + TILE, np.uint8)
        tiles = memory.ctypes.data + TILE - 1 & -TILE
        values = rows.values[first:].ctypes.data
        share_kernel(
            kernel("amx.instructions.packer", "bytes"),
            Rows(values, count, cut.pitch, steps, blocks, chunk, tiles),
            2 * blocks * steps,
            64,
        )
        arguments = TileOperands(
            *cut, address(b.codes), b.codes.strides[0], b.over.r, b.over.c,
            address(b.scales), *b.scales.strides,
            tiles, blocks, rows.scales[first:].ctypes.data, count, problem.n, out[first:].ctypes.data,
            cut.span, together, FLOAT_NEAR,
        )  # fmt: skip
        share_kernel(product, arguments, -(-problem.n // BLOCK))
