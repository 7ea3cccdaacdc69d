"""The arrays of one direction of a GRU on a GPU: weights in rows of whole vectors, constants, tables.

    W R           int8 [3 · padded, columns], or int16 where a plan is wide; filled up with zeros
    wx_constants  constants of the rows of W, [5, 3 · padded], with the shift of stored codes
    rh_constants  the same of the rows of R
    biases        [4, padded]: z, r, g and R_g h
    tables        deviations of z, r and g, [3, entries]

Narrow means codes of up to 8 bits on both sides of both products and a plan in int32: then activations are
bytes, code + shift. Otherwise they are words of 32 bits, the codes themselves, and everything else has 64.

Units are padded to the tiles of the fast rungs (tile.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cuda.driver import device
from ..cell import Cell
from ..plan import Plan, Rows
from ..run import INTERMEDIATE, Call

LONG = (1 << 64) - 1
TILED = (64, 128, 256, 512, 1024, 2048)  # padded units that tiles exist for
BYTE_CODES = ("W", "R", "h", "x")  # tensors whose codes are bytes in a narrow layout


class DeviceWeights(NamedTuple):
    """Weights, constants and tables of one direction and one format of x, on one device."""

    narrow: bool
    padded: int  # padded units, and columns of R
    columns: int  # columns of W
    W: Any
    R: Any
    wx_constants: Any
    rh_constants: Any
    biases: Any
    tables: Any
    k: tuple[int, ...]  # the tuple of atoms.constants_type, as words
    x_shift: int
    h_shift: int
    first: int  # the stored form of a state of zero


def is_narrow(formats: Any, x: Any, plan: bool) -> bool:
    """True where bytes and words of 32 bits hold everything."""
    return plan and all((x if name == "x" else formats[name]).bits <= 8 for name in BYTE_CODES)


def device_weights(call: Call) -> DeviceWeights:
    """The arrays of a call: prepared once for the calibrated format; another format changes only its
    constants.
    """
    cell, plan, index = call.cell, call.plan, device.current()
    narrow = is_narrow(cell.formats, plan.x, plan.narrow)
    calibrated = plan.x == cell.formats["x"]
    weights: DeviceWeights = cell.prepared(
        ("cuda", index) if calibrated else ("cuda dynamic", index, narrow),
        lambda cell: device.once("weights of a GRU are laid out", lambda: _laid_out(cell, plan, narrow)),
    )
    return (
        weights
        if calibrated
        else weights._replace(
            wx_constants=_wx_constants(cell, plan, narrow), k=_constant_words(cell, plan, narrow)
        )
    )


def padded_units(units: int) -> int:
    """Units of the smallest tiles that hold ``units``."""
    return next((size for size in TILED if units <= size), -(-units // 256) * 256)


def _shifts(plan: Plan, narrow: bool) -> tuple[int, int]:
    """The offsets of stored codes of x and of h."""
    x, h = (-128 if narrow and not f.signed else 0 for f in (plan.x, plan.h))
    return x, h


def _wx_constants(cell: Cell, plan: Plan, narrow: bool) -> Any:
    shift_sums, kind = cell.row_sums["W"] * _shifts(plan, narrow)[0], np.int32 if narrow else np.int64
    return device.cupy().asarray(_constants(plan.wx, shift_sums, padded_units(cell.units), kind))


def _constant_words(cell: Cell, plan: Plan, narrow: bool) -> tuple[int, ...]:
    """The constants of all units, in the order of ``atoms.py``."""
    zeros = [cell.formats[name].zero for name in INTERMEDIATE]
    k = [*plan.k.tolist(), plan.h.zero + _shifts(plan, narrow)[1], plan.h.zero, *zeros]
    return tuple(each & LONG for each in k)


def _laid_out(cell: Cell, plan: Plan, narrow: bool) -> DeviceWeights:
    padded, columns = padded_units(cell.units), -(-cell.inputs // 64) * 64
    x_shift, h_shift = _shifts(plan, narrow)
    kind, put = np.int32 if narrow else np.int64, device.cupy().asarray
    biases = np.zeros((4, padded), kind)
    biases[:, : cell.units] = plan.bias_z, plan.bias_r, plan.bias_g, plan.bias_added
    tables = np.zeros((3, max(map(len, plan.tables))), kind)
    for row, table in zip(tables, plan.tables, strict=True):
        row[: len(table)] = table
    return DeviceWeights(
        narrow, padded, columns, put(_rows(cell.codes["W"], padded, columns, narrow)),
        put(_rows(cell.codes["R"], padded, padded, narrow)), _wx_constants(cell, plan, narrow),
        put(_constants(plan.rh, cell.row_sums["R"] * h_shift, padded, kind)),
        put(biases), put(tables), _constant_words(cell, plan, narrow), x_shift, h_shift,
        min(max(plan.h.zero, plan.h.low), plan.h.high) + h_shift,
    )  # fmt: skip


def _rows(codes: NDArray[Any], padded: int, columns: int, narrow: bool) -> NDArray[Any]:
    rows, length = codes.shape
    array = np.zeros((3, padded, columns), np.int8 if narrow else np.int16)
    array[:, : rows // 3, :length] = codes.reshape(3, rows // 3, length)
    return array.reshape(3 * padded, columns)


def _constants(rows: Rows, shift_sums: NDArray[np.int64], padded: int, kind: Any) -> NDArray[Any]:
    units = len(shift_sums) // 3
    array = np.zeros((len(rows), 3, padded), kind)
    for to, part in zip(array, (rows.correction + shift_sums, *rows[1:]), strict=True):
        to[:, :units] = part.reshape(3, units)
    return array.reshape(len(rows), 3 * padded)
