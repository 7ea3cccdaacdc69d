"""Stream-K: the work is cut into equal lengths, not into whole tiles.

Changed: the steps of all tiles form one row, and each multiprocessor takes an equal part of it: the
end of a tile, some whole ones, the beginning of another. Sums of parts go to a workspace and are
added in a fixed order by a second, small kernel. Tiles are lower where there are few rows of
activations. So a few rows keep all multiprocessors busy too.

Limited by memory for few rows: unpacked weights take 9 bits for a weight of 4. Where whole tiles fill the
card the second kernel only costs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ..activations.code_tiles import activations
from ..intrinsics import ptx
from ..intrinsics.lane import address
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine import device
from ..machine.launch import Kernel, family
from ..packed.unpacked import compensate, padded, unpacked_weights
from ..rings.int_tiles import STEP, IntTile, accumulator, store_four, storer
from . import r9_mma_magic
from .r8_mma import LEAST
from .r9_mma_magic import START, scaled

LOW, SHAPE = IntTile(32, 128, 32, 16, blocks=2), r9_mma_magic.SHAPE
MOST = (1 << 32) - 1  # units: they are counted in 32 bits
THREADS = 256


@family((shape,) for shape in (LOW, SHAPE))
def kernel(shape: IntTile) -> Kernel:
    """The kernel: block c of ``count`` begins at unit c * units // count; a unit is one step of a tile."""
    accumulate, store = accumulator(shape, START, scaled), storer(shape)
    rows, columns, sums_each = shape.rows, shape.columns, shape.sums

    def streamk(
        x: Any,  # int8 [m_rows, k]
        dx: Any,  # float32 [k / 32, m_rows], in the order of activations.int8.place_of_row
        w: Any,  # int8 [n_rows, k]
        dw: Any,  # float32 [k / 32, n_rows]
        y: Any,  # float32 [m, n]
        partials: Any,  # float32 [2 * blocks, rows, columns]: of a block's first and last tile
        m: Any, n: Any, k: Any, m_rows: Any, n_rows: Any, units: Any,
    ) -> None:  # fmt: skip
        c, count = uint64(cuda.blockIdx.x), uint64(cuda.gridDim.x)
        steps, across = k // uint32(STEP), (n + uint32(columns - 1)) // uint32(columns)
        unit, end = uint32(c * uint64(units) // count), uint32((c + uint64(1)) * uint64(units) // count)
        sums = cuda.local.array(sums_each, float32)
        while unit < end:
            tile = unit // steps
            first = unit - tile * steps
            last = min(steps, first + (end - unit))
            m0, n0 = tile // across * uint32(rows), tile % across * uint32(columns)
            for i in range(sums_each):
                sums[i] = float32(0)
            accumulate(sums, m0, n0, x, dx, w, dw, first, last, k, m_rows, n_rows)
            to, height, width = y, m, n
            if last - first < steps:
                slot = c * uint64(2) + uint64(first == uint32(0))
                to, height, width = (
                    partials + slot * uint64(rows * columns * 4),
                    uint32(rows),
                    uint32(columns),
                )
                m0, n0 = uint32(0), uint32(0)
            store(sums, to, m0, n0, height, width)
            unit += last - first

    parameters = (uint64,) * 6 + (uint32,) * 6
    sizes: dict[str, Any] = {"threads": shape.threads, "blocks": shape.blocks, "shared": shape.shared}
    return Kernel(f"streamk, {shape}", streamk, *parameters, least=LEAST, **sizes)


@family((shape,) for shape in (LOW, SHAPE))
def adder(shape: IntTile) -> Kernel:
    """The kernel that adds the partial sums of tiles that several blocks computed, four outputs a thread."""
    rows, columns = shape.rows, shape.columns
    load_floats = ptx.load_floats

    def add(
        y: Any,  # float32 [m, n]
        partials: Any,  # float32 [2 * count, rows, columns]
        m: Any, n: Any, steps: Any, units: Any, count: Any,
    ) -> None:  # fmt: skip
        tile, across = uint64(cuda.blockIdx.x), (n + uint32(columns - 1)) // uint32(columns)
        # the blocks that did its first and its last unit
        first = ((tile * uint64(steps) + uint64(1)) * uint64(count) - uint64(1)) // uint64(units)
        last = ((tile + uint64(1)) * uint64(steps) * uint64(count) - uint64(1)) // uint64(units)
        if first == last:
            return
        at = (uint32(cuda.blockIdx.y) * uint32(THREADS) + uint32(cuda.threadIdx.x)) * uint32(4)
        a = b = c = d = float32(0)
        for block in range(first, last + uint64(1)):
            slot = uint64(block) * uint64(2) + uint64(block == first)
            v = load_floats(address(partials, slot, rows * columns, at, 4))
            a, b, c, d = a + v[0], b + v[1], c + v[2], d + v[3]
        row = uint32(tile // uint64(across)) * uint32(rows) + at // uint32(columns)
        column = uint32(tile % uint64(across)) * uint32(columns) + at % uint32(columns)
        if row < m:
            store_four(address(y, row, n, column, 4), column, n, a, b, c, d)

    parameters = (uint64,) * 2 + (uint32,) * 5
    return Kernel(f"add partial sums of {rows}x{columns}", add, *parameters, threads=THREADS)


def refuses(problem: Linear) -> str | None:
    if reason := r9_mma_magic.refuses(problem):
        return reason
    if work(problem.m, problem.n, padded(problem.k))[2] > MOST:
        return f"counts up to {MOST} steps of tiles"
    return None


def work(m: int, n: int, k: int) -> tuple[IntTile, int, int]:
    """The tile for m rows, the number of tiles, and all their steps; ``k``: of the unpacked weights."""
    shape = LOW if m <= LOW.rows else SHAPE
    tiles = -(-m // shape.rows) * -(-n // shape.columns)
    return shape, tiles, tiles * (k // STEP)


@register(__name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    w = unpacked_weights(q)
    a = activations(x, w.run, for_mma=True)
    (m, n), k = out.shape, w.codes.shape[1]
    shape, tiles, units = work(m, n, k)
    if not units:
        out.fill(0)
        return
    count = min(device.multiprocessors() * device.resident_blocks(shape.blocks, shape.shared), units)
    partials = device.cupy().empty((2 * count, shape.rows, shape.columns), np.float32)
    sizes = (m, n, k, len(a.codes), len(w.codes), units)
    kernel(shape)((count,), (shape.threads,), a.codes, a.scale, w.codes, w.scale, out, partials, *sizes)
    grid = (tiles, shape.rows * shape.columns // (4 * THREADS))
    adder(shape)(grid, (THREADS,), out, partials, m, n, k // STEP, units, count)
    compensate(out, a, w)
