"""One direction of a GRU as the fast rung reads it: weights in blocks of 32 units, padded constants.

    bytes    codes of up to 8 bits: int8 [blocks, 2, 3, K / 4, 16, 4], four codes of a unit, the next unit, …
    words    codes of up to 16 bits: int16 [blocks, 3, K, 32], a code of each unit, then the next code

    tables   deviations; int16 [256] where they fit and the CPU permutes words (vectors.py)

Units and K are filled up with zeros, which add nothing whatever the activations are. Bytes need codes of up
to 8 bits on both sides of both products, and a plan that is narrow; words take anything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cpu.machine.target import Target
from ...fixed.qformat import QFormat
from ..cell import Cell
from ..plan import Plan, Rows
from .vectors import HALF, LANES, SHORT, in_registers

LINE = 64  # bytes


class TileCell(NamedTuple):
    """The weights and constants of one direction, for one format of x."""

    narrow: bool  # bytes, and steps in int32
    W: NDArray[Any]
    R: NDArray[Any]
    wx: Rows  # [3 · padded units] each, with the shift of stored codes
    rh: Rows
    biases: NDArray[Any]  # [3 · padded]
    bias_added: NDArray[Any]  # [padded]
    tables: tuple[Any, Any, Any]
    k: NDArray[Any]
    x_storage: Storage
    h_storage: Storage


class Storage(NamedTuple):
    """The storage of activations: code + shift in a dtype, rows padded to ``pitch`` codes."""

    shift: int
    dtype: Any
    pitch: int


def tile_cell(cell: Cell, plan: Plan, target: Target) -> TileCell:
    """The cell for a plan; a narrow plan with wider codes is computed in int64 as well."""
    formats = [*(cell.formats[name] for name in ("W", "R", "h")), plan.x]
    narrow = plan.narrow and all(f.bits <= 8 for f in formats)
    kind = np.int32 if narrow else np.int64
    padded = -(-cell.units // LANES) * LANES
    x, h = storage(plan.x, cell.inputs, narrow, target), storage(plan.h, cell.units, narrow, target)
    wx = _padded_rows(plan.wx, cell.row_sums["W"] * x.shift, padded, kind)
    rh = _padded_rows(plan.rh, cell.row_sums["R"] * h.shift, padded, kind)
    biases = [_padded(part, padded, kind) for part in (plan.bias_z, plan.bias_r, plan.bias_g)]
    z_table, r_table, g_table = (_table(table, narrow) for table in plan.tables)
    return TileCell(
        narrow, _blocks(cell.codes["W"], x.pitch, narrow), _blocks(cell.codes["R"], h.pitch, narrow), wx, rh,
        aligned(np.concatenate(biases)), _padded(plan.bias_added, padded, kind), (z_table, r_table, g_table),
        np.ascontiguousarray(plan.k, kind), x, h,
    )  # fmt: skip


def _table(table: NDArray[Any], narrow: bool) -> NDArray[Any]:
    """A table as the atoms look it up."""
    if narrow and in_registers(table):
        short = np.zeros(SHORT, np.int16)
        short[: len(table)] = table
        return aligned(short)
    return np.ascontiguousarray(table, np.int32 if narrow else np.int64)


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy that begins a cache line, so that no vector of it lies in two."""
    memory = np.empty(array.nbytes + LINE, np.uint8)
    copied = memory[-memory.ctypes.data % LINE :][: array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied


def storage(f: QFormat, length: int, narrow: bool, target: Target) -> Storage:
    """The storage of codes of a format."""
    pitch = -(-length // LANES) * LANES
    if not narrow:
        return Storage(0, np.dtype(np.int32), pitch)
    if target.unsigned:
        return Storage(128 if f.signed else 0, np.dtype(np.uint8), pitch)
    return Storage(0 if f.signed else -128, np.dtype(np.int8), pitch)


def _blocks(codes: NDArray[Any], pitch: int, narrow: bool) -> NDArray[Any]:
    rows, k = codes.shape
    units = rows // 3
    padded = -(-units // LANES) * LANES
    whole = np.zeros((3, padded, pitch), np.int8 if narrow else np.int16)
    whole[:, :units, :k] = codes.reshape(3, units, k)
    if narrow:
        tiles = whole.reshape(3, padded // LANES, LANES // HALF, HALF, pitch // 4, 4)
        return aligned(tiles.transpose(1, 2, 0, 4, 3, 5))
    return aligned(whole.reshape(3, padded // LANES, LANES, pitch).transpose(1, 0, 3, 2))


def _padded(values: Any, padded: int, kind: Any) -> NDArray[Any]:
    whole = np.zeros(padded, kind)
    whole[: len(values)] = values
    return aligned(whole)


def _padded_rows(rows: Rows, more: NDArray[np.int64], padded: int, kind: Any) -> Rows:
    """Three gates, each padded; ``more`` is added to the corrections."""
    units = len(more) // 3
    parts = (rows.correction + more, *rows[1:])
    return Rows(*(
        aligned(np.concatenate([_padded(part[g * units : (g + 1) * units], padded, kind) for g in range(3)]))
        for part in parts
    ))  # fmt: skip
