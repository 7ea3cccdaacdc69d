"""``attend``: attention on the CPU, from checked operands to the driver."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays.array import QuantArray
from ...arrays.scaled import ScaledArray
from ...errors import ShapeError, UnsupportedError
from ...formats import FORMATS
from ..unpack import has_walk
from . import drive

LEAST_ROWS = 256  # of queries over one key, from which the matrix unit was faster with any number of threads


def attend(request: str, a: Any, kernel: str) -> NDArray[np.float32]:
    """The result [B, H, T, DV] by the kernel of this name."""
    result = np.empty(a.shape, np.float32)
    if result.size:
        with np.errstate(over="ignore", invalid="ignore"):
            _attend(request, a, kernel, result)
    return result


def refused(width: int, width_v: int, invariant: bool = False) -> str | None:
    """None if Intel's matrix unit can take keys and values of such widths, or the reason why not."""
    if invariant:
        return "with invariant=True rows keep their bits in 'cpu:rows' alone"
    for columns in (width, width_v):
        if columns % drive.STEP or not columns:
            return f"its tiles hold {drive.STEP} columns, and rows have {columns}"
    reason: str | None = import_module("ggmlq.cpu.amx.permission").refused()
    return reason


def unit_for(rows: int, width: int, width_v: int) -> Any:
    """The matrix unit for so many rows of queries over one key; None where vectors are as fast, or alone."""
    if rows < LEAST_ROWS or refused(width, width_v) is not None:
        return None
    return import_module("ggmlq.cpu.amx.unit").Unit


def _attend(request: str, a: Any, kernel: str, result: NDArray[np.float32]) -> None:
    k, v = _rows(request, a.k, "k"), _rows(request, a.v, "v")
    same = k.format is v.format and k.raw.ctypes.data == v.raw.ctypes.data and k.raw.strides == v.raw.strides
    slopes, sinks = (None if n is None else np.ascontiguousarray(n, np.float32) for n in (a.slopes, a.sinks))
    drive.attend(
        np.ascontiguousarray(a.q, np.float32), k, v, same and a.v.shape[3] <= a.k.shape[3], a.lengths,
        _mask(a, drive.padded(a.k.shape[2])), sinks, slopes,
        drive.Options(a.scale, a.softcap, a.causal, a.window), result,
        import_module("ggmlq.cpu.amx.unit").Unit if kernel == "cpu:amx" else None,
    )  # fmt: skip


def _rows(request: str, rows: Any, name: str) -> drive.Rows:
    """The format and the bytes of keys or values, [B, HK, S, bytes]."""
    if isinstance(rows, QuantArray):
        if rows.format.name != "f32" and not has_walk(rows.format):
            raise UnsupportedError(
                f"{request}: {name} is {rows!r}; attention reads f16, bf16, f32 and types of blocks; pass "
                f"{name}.dequantize()"
            )
        return drive.Rows(rows.format, rows.raw)
    if isinstance(rows, ScaledArray):
        rows = rows.dequantize()
    stem = "bf16" if rows.dtype.name == "bfloat16" else "f16" if rows.dtype == np.float16 else "f32"
    floats = rows if stem != "f32" or rows.dtype == np.float32 else rows.astype(np.float32)
    if floats.strides[3] != floats.itemsize or not floats.dtype.isnative or floats.shape[3] == 1:
        floats = np.ascontiguousarray(floats, floats.dtype.newbyteorder("="))
    if not floats.shape[3]:
        raise ShapeError(f"{request}: rows of {name} are empty, {floats.shape}; pass rows with columns")
    return drive.Rows(FORMATS[stem], floats.view(np.uint8))


def _mask(a: Any, positions: int) -> NDArray[np.float32] | None:
    """The mask as float32 over whole tiles of positions; axes that it is broadcast along have stride 0."""
    if a.mask is None:
        return None
    mask = np.where(a.mask, np.float32(0), np.float32(-np.inf)) if a.mask.dtype.kind == "b" else a.mask
    whole = np.zeros((*mask.shape[:3], positions), np.float32)
    whole[..., : a.k.shape[2]] = mask
    return np.broadcast_to(whole, (*a.q.shape[:3], positions))
