"""The driver of ``scaled_linear``'s rung ``cpu:amx``: codes become tiles, threads share pairs of panels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.scaled import ScaledArray
from ...dispatch.problems import ScaledLinear
from ..amx.multiply import BLOCK, MOST
from ..amx.operands import CodeOperands, Rows
from ..amx.unit import PITCH, TILE, Unit
from ..machine.kernels import kernel
from ..machine.target import AVX512
from ..machine.workers import share_kernel
from .int_activations import x_rows_of
from .int_layout import cut_of, form_of, w_shift, x_shift
from .int_weights import maker

CHUNK, NEAR = 16, 16  # steps of two panels that the first cache holds, and pairs whose sums the second does


def multiply(problem: ScaledLinear, x: ScaledArray, w: ScaledArray, out: Any, unit: Any = Unit) -> None:
    """``out = x @ w.T`` where one scale serves all of K."""
    cut, form = cut_of(problem), form_of(problem, AVX512)
    shift = w_shift(problem.w, AVX512)
    panels = w.prepared(maker(cut, form, shift))
    nbytes, at, w_scales, w_zeros, w_sums = panels.at
    rows = x_rows_of(x.matrix(), cut, form, x_shift(problem.x), shift)
    steps, (m, n) = cut.row_bytes // PITCH, out.shape
    product, pack = kernel("codes8.int_amx.multiplier", form, unit), kernel("amx.activations.packer", "bytes")
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
            out[part].ctypes.data, count, n, chunk, NEAR,
        )  # fmt: skip
        share_kernel(product, arguments, -(-len(panels.codes) // 2))
