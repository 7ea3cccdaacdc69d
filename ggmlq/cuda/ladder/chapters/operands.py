"""The host's side of the chapters: shapes that they take, results, and maps of the copy engine."""

from __future__ import annotations

from typing import Any

from ....errors import ShapeError
from ...driver import device, tensor_maps

STEP = 128  # bytes of a row in a box: codes along K


def result_of(x: Any, w: Any, rows: int, columns: int, dtype: str) -> Any:
    """An array for x · wᵀ, on the device; an error where tiles of rows × columns do not fill it."""
    (m, k), (n, also_k) = x.shape, w.shape
    if not all(each.flags.c_contiguous and each.dtype.itemsize == 1 for each in (x, w)):
        raise ShapeError(
            f"a chapter's product of x ({x.dtype}) and w ({w.dtype}): both hold codes of a byte, row after "
            "row; pass cupy.ascontiguousarray(…) of int8, or of uint8 for FP8"
        )
    if not (m and n and k) or k != also_k or m % rows or n % columns or k % STEP:
        raise ShapeError(
            f"a chapter's product of x {x.shape} and w {w.shape}: both have the same K, a multiple of "
            f"{STEP}; M is a multiple of {rows}, N of {columns}; pad the operands with zeros"
        )
    return device.cupy().empty((m, n), dtype)


def box_map(matrix: Any, rows: int) -> int:
    """The address of a map of a matrix of bytes: boxes of ``rows`` rows and 128 columns, swizzled."""
    height, width = matrix.shape
    return tensor_maps.map_address(
        tensor_maps.Box(matrix.data.ptr, height, width, width, "uint8", rows, STEP)
    )
