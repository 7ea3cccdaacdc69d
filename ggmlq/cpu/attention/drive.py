"""The driver of attention on the CPU: arguments and memory of the kernels, and the work units of threads."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base.threads import PARTS, num_threads
from ...formats import Format
from ..machine.kernels import kernel
from ..machine.target import target
from ..machine.workers import share_kernel

MOST_PARTS = 64 << 20  # bytes of results of stretches that may lie in memory


class Rows(NamedTuple):
    """Rows of keys or values: bytes [batch, heads, positions, bytes of a row], a row's bytes side by side."""

    format: Format
    raw: NDArray[np.uint8]


class Options(NamedTuple):
    """The facts of a call beside its arrays."""

    scale: float
    cap: float
    causal: bool
    window: int  # 0 for none


def attend(
    q: NDArray[np.float32], k: Rows, v: Rows, shared: bool, lengths: NDArray[np.int64],
    mask: NDArray[np.float32] | None, sinks: NDArray[np.float32] | None, slopes: NDArray[np.float32] | None,
    how: Options, out: NDArray[np.float32], unit: Any = None,
) -> None:  # fmt: skip
    """Attention of q [B, H, T, D], contiguous, into ``out`` [B, H, T, DV].

    ``mask``: [B, H, T, positions] of any strides but the last, which may be read up to whole tiles.
    ``shared``: values are the first columns of the keys, which are decoded once. ``unit``: a kind of ``Unit``
    that multiplies bfloat16, for columns in multiples of 32; None for float32 in vectors.
    """
    batch, heads, queries, width = q.shape
    kv_heads, width_v = k.raw.shape[1], out.shape[-1]
    rows = _rows_of_units(heads // kv_heads * queries) if unit else ROWS
    blocks = -(-(heads // kv_heads * queries) // rows)
    units, steps = batch * kv_heads * blocks, -(-int(lengths.max(initial=0)) // STRETCH)
    numbers = np.array([how.scale, how.cap], np.float32)
    columns = -(-width_v // LANES) * LANES + MORE
    nbytes = 4 * units * steps * rows * columns
    split = steps > 1 and units < 2 * PARTS * num_threads() and num_threads() > 1 and nbytes <= MOST_PARTS
    parts = np.empty(nbytes if split else 0, np.uint8)
    apart: tuple[int, ...] = (0, 0, 0) if mask is None else mask.strides[:3]
    arguments = Attend._make((
        q.ctypes.data, k.raw.ctypes.data, *k.raw.strides[:3], v.raw.ctypes.data, *v.raw.strides[:3],
        _address(mask), *apart, lengths.ctypes.data, _address(sinks), _address(slopes), numbers.ctypes.data,
        out.ctypes.data, _decoder(k), 0 if shared else _decoder(v), parts.ctypes.data,
        heads, kv_heads, queries, width, width_v, int(how.causal), how.window, rows, blocks, steps,
    ))  # fmt: skip
    file, case = ("matrix", unit) if unit else ("units", target())
    if split:
        share_kernel(kernel(f"attention.{file}.stretches", case), arguments, units * steps)
        share_kernel(kernel("attention.units.merged"), arguments, units)
    else:
        share_kernel(kernel(f"attention.{file}.whole", case), arguments, units)


def _rows_of_units(rows: int) -> int:
    """Rows of queries of a work unit on the matrix unit: as even as pairs of its tiles allow."""
    units = -(-rows // MANY)
    return -(-rows // (units * STEP)) * STEP


def _decoder(rows: Rows) -> int:
    """The address of the code that decodes rows."""
    return kernel("attention.rows.filler", rows.format).code.address


def padded(positions: int) -> int:
    """Positions that a row of a mask must have, so that whole tiles may be read."""
    return math.ceil(positions / TILE) * TILE


def _address(array: NDArray[np.float32] | None) -> int:
    return 0 if array is None else array.ctypes.data


# --- The arguments of the kernels of attention: addresses of operands, strides in bytes, and sizes ---

TILE = 64  # positions whose scores are computed before their weights meet the values
STRETCH = 16 * TILE  # positions whose results are merged as one: a constant, so that sums have one order
ROWS = 64  # rows of queries of a work unit
LONG, MANY = 2 * TILE, 4 * ROWS  # positions of a tile, and rows of a unit, on the matrix unit
STEP = 32  # numbers of a row of its tiles, and rows of two of them
LANES = 16  # floats of a vector in the steps between the products
MORE = LANES  # numbers behind a row of a result: its largest score, the sum of its weights
LARGEST, SUM = 0, 1  # their places there


class Attend(NamedTuple):
    """The arguments. A row is a query of one head; those of all heads over one key are together."""

    q: int  # address of float32 [batch, heads, queries, width]
    k: int  # address of rows [batch, kv_heads, positions] of keys
    k_batch: int  # strides in bytes
    k_head: int
    k_row: int
    v: int
    v_batch: int
    v_head: int
    v_row: int
    mask: int  # address of float32, rows of whole tiles; 0 for none
    mask_batch: int  # strides in bytes, 0 where all have the same
    mask_head: int
    mask_query: int
    lengths: int  # address of int64 [batch]: positions that there are
    sinks: int  # address of float32 [heads], or 0
    slopes: int  # address of float32 [heads], or 0
    numbers: int  # address of float32 [2]: the scale, and the cap of scores or 0
    out: int  # address of float32 [batch, heads, queries, width_v]
    fill_k: int  # address of the code that decodes rows of keys (rows.py)
    fill_v: int  # and of values; 0 where these are the first columns of the keys
    parts: int  # address of float32 [units, stretches, rows, width_v in whole vectors + MORE], or 0
    heads: int
    kv_heads: int
    queries: int
    width: int
    width_v: int
    causal: int
    window: int  # positions that a query sees up to its own; 0 for all
    rows: int  # of a work unit, at most
    blocks: int  # of so many rows, of a key's head
    stretches: int


class Fill(NamedTuple):
    """Arguments of the code that decodes rows to float32."""

    rows: int  # address of the first row
    apart: int  # bytes from one row to the next
    lines: int  # the number of rows
    width: int  # columns
    values: int  # address of float32 [count, pitch]
    pitch: int
