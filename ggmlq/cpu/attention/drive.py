"""The driver of attention on the CPU: arguments and memory of the kernels, and the work units of threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base.slots import following
from ...base.threads import PARTS, num_threads
from ...formats import Format
from ..machine.kernels import kernel
from ..machine.tables import Address, address
from ..machine.target import target
from ..machine.workers import between, scratch, share_kernel

FEW = 8  # units whose stretches one thread merges
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
    lines = heads // kv_heads * queries
    rows = _rows_of_units(lines, batch * kv_heads) if unit else min(ROWS, lines)
    blocks = -(-lines // rows)
    units, steps = batch * kv_heads * blocks, stretches_of(int(lengths.max(initial=0)))
    numbers = np.array([how.scale, how.cap], np.float32)
    nbytes = units * steps * _part_bytes(rows, width_v)
    split = steps > 1 and units < 2 * PARTS * num_threads() and num_threads() > 1 and nbytes <= MOST_PARTS
    parts = np.empty(nbytes if split else 0, np.uint8)
    apart: tuple[int, ...] = (0, 0, 0) if mask is None else mask.strides[:3]
    arguments = Attend._make((
        address(q), k.raw.ctypes.data, *k.raw.strides[:3], v.raw.ctypes.data, *v.raw.strides[:3],
        _address(mask), *apart, address(lengths), _address(sinks), _address(slopes), address(numbers),
        address(out), out.strides[1] // 4, out.strides[2] // 4, _decoder(k.format),
        0 if shared else _decoder(v.format), address(parts), heads, kv_heads, queries, width, width_v,
        int(how.causal), how.window, rows, blocks, steps,
    ))  # fmt: skip
    file, case = ("matrix", unit) if unit else ("units", target())
    if split:
        share_kernel(kernel(f"attention.{file}.stretches", case), arguments, units * steps)
        share_kernel(kernel("attention.units.merged"), arguments, units)
    else:
        share_kernel(kernel(f"attention.{file}.whole", case), arguments, units)


@cache
def stretches_of(positions: int) -> int:
    """The stretches of so many positions."""
    return -(-positions // STRETCH)


def _part_bytes(rows: int, width_v: int) -> int:
    """Bytes of the result of a stretch for so many rows."""
    return 4 * rows * (-(-width_v // LANES) * LANES + MORE)


class CacheRows(NamedTuple):
    """Rows of keys or values of one sequence in a cache."""

    format: Format
    at: int  # address of the first head's first row, with its slot where a step is recorded
    head: int  # bytes from head to head
    row: int  # and from position to position


class Sequence(NamedTuple):
    """The keys and values of one sequence, and the positions that there are, those of a step among them."""

    k: CacheRows
    v: CacheRows
    shared: bool  # values are the first columns of the keys
    kv_heads: int
    width_v: int
    end: NDArray[np.int64]  # [1]: their number, in memory
    positions: int  # the same, from which the number of stretches follows
    most: int  # positions that there can be


def attend_last(
    q: NDArray[np.float32], sequence: Sequence, sinks: NDArray[np.float32] | None, how: Options,
    out: NDArray[np.float32], unit: Any = None,
) -> None:  # fmt: skip
    """Attention of the last queries [H, T, D] of a sequence into ``out`` [T, H, DV], contiguous.

    Its launches can be repeated.

    Results of stretches lie in memory for all positions that there can be, whatever their number is now.
    ``unit``: as of ``attend``.
    """
    (heads, queries, width), (k, v, shared, kv_heads, width_v, end, positions, most) = q.shape, sequence
    lines = heads // kv_heads * queries
    rows = _rows_of_units(lines, kv_heads) if unit else min(ROWS, lines)
    blocks = -(-lines // rows)
    units = kv_heads * blocks
    split = units < 2 * PARTS * num_threads()
    room = units * stretches_of(most) * _part_bytes(rows, width_v)
    split = split and room <= MOST_PARTS and stretches_of(most) > 1
    numbers, parts = scratch((2,), np.float32), between(room if split else 0)  # they live until the end
    numbers[...] = how.scale, how.cap
    arguments = Attend._make((
        address(q), k.at, 0, k.head, k.row, v.at, 0, v.head, v.row, 0, 0, 0, 0, address(end),
        0 if sinks is None else address(sinks), 0, address(numbers), address(out), width_v, heads * width_v,
        _decoder(k.format), 0 if shared else _decoder(v.format), address(parts) if split else 0, heads,
        kv_heads, queries, width, width_v, int(how.causal), how.window, rows, blocks,
        following(positions, stretches_of),
    ))  # fmt: skip
    file, case = ("matrix", unit) if unit else ("units", target())
    if split:
        stretches = following(positions, all_of(units))
        share_kernel(kernel(f"attention.{file}.stretches", case), arguments, stretches)
        share_kernel(kernel("attention.units.merged"), arguments, units)
    else:
        share_kernel(kernel(f"attention.{file}.whole", case), arguments, units)


@cache
def all_of(units: int) -> Callable[[int], int]:
    """The stretches of so many units, from the number of positions."""
    return lambda positions: units * stretches_of(positions)


def _rows_of_units(rows: int, heads: int) -> int:
    """Rows of queries of a work unit on the matrix unit: as even as pairs of its tiles allow.

    Units are smaller where threads would have none; their keys are turned more often then.
    """
    enough = -(-UNITS * num_threads() // heads)
    units = max(-(-rows // MANY), min(enough, rows // ROWS))
    return -(-rows // (units * STEP)) * STEP


@cache
def _decoder(fmt: Format) -> int:
    """The address of the code that decodes rows."""
    return kernel("attention.rows.filler", fmt).code.address


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
UNITS = 2  # of a thread, at least, where there are rows for them
STEP = 32  # numbers of a row of its tiles, and rows of two of them
LANES = 16  # floats of a vector in the steps between the products
MORE = LANES  # numbers behind a row of a result: its largest score, the sum of its weights
LARGEST, SUM = 0, 1  # their places there


class Attend(NamedTuple):
    """The arguments. A row is a query of one head; those of all heads over one key are together."""

    q: Address  # float32 [batch, heads, queries, width]
    k: Address  # rows [batch, kv_heads, positions] of keys
    k_batch: int  # strides in bytes
    k_head: int
    k_row: int
    v: Address
    v_batch: int
    v_head: int
    v_row: int
    mask: Address  # float32, rows of whole tiles; 0 for none
    mask_batch: int  # strides in bytes, 0 where all have the same
    mask_head: int
    mask_query: int
    lengths: Address  # int64 [batch]: positions that there are
    sinks: Address  # float32 [heads], or 0
    slopes: Address  # float32 [heads], or 0
    numbers: Address  # float32 [2]: the scale, and the cap of scores or 0
    out: Address  # float32 [batch, heads, queries, width_v], all of a batch together
    out_head: int  # floats from head to head
    out_query: int  # and from query to query
    fill_k: int  # address of the code that decodes rows of keys (rows.py)
    fill_v: int  # and of values; 0 where these are the first columns of the keys
    parts: Address  # float32 [units, stretches, rows, width_v in whole vectors + MORE], or 0
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
