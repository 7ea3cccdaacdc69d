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
from .operands import LANES, MANY, MORE, ROWS, STEP, STRETCH, TILE, Attend

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
