"""The driver that decodes a matrix of codes with scales: some rows to float32, or all to any float dtype."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.scaled import Matrix
from ..machine.kernels import Kernel, kernel
from ..machine.tables import Address, address
from ..machine.target import target
from ..machine.workers import share_kernel

SLAB = 1 << 20  # codes that are decoded before they are converted further
GRAIN = 1 << 15  # codes that a thread decodes at a time


def decode(m: Matrix, rows: slice, out: NDArray[np.float32], scaled: bool = True) -> None:
    """Decode some rows of a matrix into ``out``; with ``scaled=False`` without the scales."""
    first, over = rows.start, m.over
    scales = np.ascontiguousarray(m.scales) if scaled else None
    zeros = None if m.zeros is None else np.ascontiguousarray(m.zeros, np.int32)
    if not out.size:
        return
    arguments = Codes(
        address(m.codes) + first * m.codes.strides[0], m.codes.strides[0],
        over.columns, first, over.r, over.c,
        0 if scales is None else address(scales), 0 if zeros is None else address(zeros),
        address(out), out.strides[0],
    )  # fmt: skip
    share_kernel(_kernel(m), arguments, rows.stop - first, max(1, GRAIN // over.columns))


def at_hand(m: Matrix) -> bool:
    """True if nothing has to be compiled to decode a matrix."""
    return _kernel(m).at_hand


def _kernel(m: Matrix) -> Kernel:
    return kernel("decode_scaled.kernels.decoder", m.code.name, m.zeros is not None, target())


def decode_into(m: Matrix, out: NDArray[Any]) -> None:
    """Decode a whole matrix into any dtype of floats, by way of float32, a few rows at a time."""
    if out.dtype == np.float32:
        decode(m, slice(0, len(out)), out)
        return
    step = max(1, SLAB // max(m.over.columns, 1))
    with np.errstate(all="ignore"):
        for start in range(0, len(out), step):
            rows = slice(start, min(start + step, len(out)))
            part = np.empty((rows.stop - start, m.over.columns), np.float32)
            decode(m, rows, part)
            out[rows] = part


# --- The arguments of the kernels that decode codes with scales -----------------------------------


class Codes(NamedTuple):
    """Arguments: rows of codes, and where their values go."""

    codes: Address  # the first row
    pitch: int  # bytes from a row to the next
    columns: int
    first: int  # the number of this row in the matrix
    r: int  # of a tile
    c: int
    scales: Address  # float32 [bands, tiles of a row]; 0: without scales
    zeros: Address  # int32, the same, where there are any
    floats: Address  # float32 rows
    floats_pitch: int
