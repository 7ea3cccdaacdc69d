"""The driver of ``linear``'s rung ``cpu:amx``: activations become tiles, threads share pairs of panels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...arrays.array import QuantArray
from ...base.threads import num_threads
from ...formats.packing import RUN
from ..machine.kernels import kernel
from ..machine.workers import share_kernel
from ..panels.layout import ROWS, layout_of
from ..panels.multiply import panels
from .unit import TILE, Unit

BLOCK = 2 * ROWS  # rows of activations that meet a pair of panels at a time
MOST = 16  # blocks at a time: two chunks of their tiles, and the sums of NEAR, fit the second cache
FEW = 4  # blocks whose sums of one pair of panels stay in the first cache
NEAR = 8  # pairs of panels whose sums wait in memory, where there are more blocks
CHUNK = 16, 8  # runs decoded at a time, with many blocks and with few: they lie in the first cache


def multiply(x: Any, q: QuantArray, out: Any, unit: Any = Unit) -> None:
    """``out = x @ q.T``; x and ``out`` are float32, float16 or bfloat16."""
    n, k = q.shape
    layout, runs = layout_of(q.format), k // RUN
    assert layout is not None
    if not runs:
        out[...] = 0
        return
    weights = q.prepared(panels)
    rows = np.ascontiguousarray(x, x.dtype.newbyteorder("=") if x.dtype.name in NUMBERS else np.float32)
    product = kernel("amx.product.multiplier", layout, unit)
    # 32 of bfloat16 are a row of a tile as they stand: 64 bytes
    pack = kernel("amx.instructions.packer", "bytes" if rows.dtype.name == "bfloat16" else rows.dtype.name)
    width = rows.itemsize
    for first in range(0, len(rows), MOST * BLOCK):
        part, result = rows[first : first + MOST * BLOCK], out[first : first + MOST * BLOCK]
        blocks = -(-len(part) // BLOCK)
        memory = np.empty(2 * TILE * blocks * runs + TILE, np.uint8)
        tiles = memory.ctypes.data + TILE - 1 & -TILE
        many = blocks > FEW
        chunk = min(CHUNK[not many], runs)
        packing = Rows(part.ctypes.data, len(part), width * k, runs, blocks, chunk, tiles)
        share_kernel(pack, packing, 2 * blocks * runs, 64)
        arguments = Operands(
            weights.ctypes.data, weights.shape[0], weights.shape[1], tiles, blocks, runs,
            result.ctypes.data, NUMBERS.index(out.dtype.name), len(part), n, chunk, NEAR if many else 1,
        )  # fmt: skip
        pairs = -(-len(weights) // 2)
        share_kernel(product, arguments, pairs, max(1, min(NEAR, pairs // num_threads())) if many else 1)


# --- The arguments of kernels on the matrix unit: addresses and sizes of operands and results -----

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
