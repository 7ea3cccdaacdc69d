"""The product with weights as they lie, ``y [M, N] @ q [N, K]``: arguments, memory and work units.

A unit is a band of columns, some rows of y and, where there are too few units for all threads, a stretch of
rows of weights. The kernel (``_transposed.py``) decodes a tile of weights at a time, which stays in the cache
while all rows of the unit meet it. Weights without such code, integers, f64 and codes with scales, become
float32 first, slab by slab.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.array import QuantArray
from ...arrays.scaled import ScaledArray
from ...base.threads import num_threads
from ...formats import FORMATS, Format
from ..machine.kernels import kernel
from ..machine.tables import Address
from ..machine.target import target
from ..machine.workers import share_kernel
from ..unpack import has_walk

STRETCH = 1024  # rows of weights whose products are summed as one: a constant, so that sums have one order
BAND = 256  # columns: whole blocks of every format
LANES = 16  # floats of a vector
ROWS = 256  # rows of y of a unit, for which a tile is decoded once
WORK = 1 << 16  # floats of a tile, and of its results where there are few: both stay in the second cache
MOST_PARTS = 64 << 20  # bytes of results of stretches that may lie in memory
SLAB = 4 << 20  # bytes of other weights that are decoded at a time


class Columns(NamedTuple):
    """Arguments of the kernel."""

    weights: Address  # rows of blocks
    pitch: int  # bytes from a row to the next
    y: Address  # float32 [m, n]
    m: int
    n: int
    k: int
    out: Address  # float32 [stretches or 1, m, k]
    fill: Address  # of the code that decodes rows
    band: int  # columns of a unit
    lines: int  # rows of weights in a tile
    rows: int  # rows of y in a unit
    size: int  # weights of a block
    nbytes: int  # bytes of a block
    stretches: int  # units along n


def multiply(y: NDArray[np.float32], q: QuantArray | ScaledArray, out: NDArray[np.float32]) -> None:
    """``y @ q`` into ``out`` [M, K]; all three on the host, y and out contiguous and apart."""
    if not out.size:
        return
    if not len(q):
        out[...] = 0
    elif isinstance(q, QuantArray) and (q.format.name == "f32" or has_walk(q.format)):
        _compiled(y, q, out)
    else:
        _by_slabs(y, q, out)


def _compiled(y: NDArray[np.float32], q: QuantArray, out: NDArray[np.float32]) -> None:
    (m, n), k, fmt = y.shape, q.shape[1], q.format
    weights = q.raw
    if weights.strides[1] != 1:
        weights = np.ascontiguousarray(weights)
    rows, threads = min(m, ROWS), num_threads()
    band = _band(k, rows)
    units, stretches = -(-k // band) * -(-m // rows), 1
    if units < 2 * threads > 2:
        most = MOST_PARTS // max(4 * m * k, 1)
        stretches = -(-n // STRETCH) if -(-n // STRETCH) <= most else 1
    parts = out if stretches == 1 else np.empty((stretches, m, k), np.float32)
    lines = max(LANES, min(4 * LANES, WORK // band // LANES * LANES))
    arguments = Columns(
        weights.ctypes.data, weights.strides[0], y.ctypes.data, m, n, k, parts.ctypes.data, _decoder(fmt),
        band, lines, rows, fmt.block_size, fmt.dtype.itemsize, stretches,
    )  # fmt: skip
    share_kernel(kernel("linear._transposed.sweep", target()), arguments, units * stretches)
    if parts is not out:
        out[...] = parts[0]
        for part in parts[1:]:
            out += part


def _band(k: int, rows: int) -> int:
    """Columns of a unit: as many as keep results in the cache, since long rows of blocks are read sooner."""
    fits = max(1, WORK // (BAND * rows))
    return BAND * min(-(-k // BAND), fits, 16)


def _decoder(fmt: Format) -> Any:
    """The address of the code that decodes rows."""
    return kernel("attention.rows.filler", fmt).code.address


def _by_slabs(y: NDArray[np.float32], q: Any, out: NDArray[np.float32]) -> None:
    """The product with weights that the kernel cannot decode, some rows of them at a time as float32."""
    k = q.shape[1]
    step, more = max(1, SLAB // (4 * k)), np.empty_like(out)
    out[...] = 0
    for start in range(0, len(q), step):
        slab = np.ascontiguousarray(q[start : start + step].dequantize(), np.float32)
        rows = np.ascontiguousarray(y[:, start : start + step])
        _compiled(rows, QuantArray(FORMATS["f32"], slab.shape, slab.view(np.uint8)), more)
        out += more
