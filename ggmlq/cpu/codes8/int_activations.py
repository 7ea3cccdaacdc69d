"""Activations of a product of 8-bit integers, as its tiles read them: rows of signed bytes and their sums.

Each chunk of a row is filled up to whole fours.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.scaled import Matrix
from ..machine.kernels import kernel
from ..machine.tables import address
from ..machine.workers import scratch, share_kernel
from .int_layout import Cut, Form
from .int_operands import Conversion

GRAIN = 16  # rows that a thread takes at least
LINE = 64  # bytes of a line of a cache
PLACES = 4096  # bytes from which on lines come to the same place of the first cache again
SEVERAL, MANY = 9, 1024  # rows of a tile that do not fit one place; rows of weights that pay for a copy


class XRows(NamedTuple):
    """The activations [M, K] as tiles read them."""

    codes: NDArray[np.int8]  # [M, bytes of a row], of any pitch
    scales: NDArray[np.float32]  # [M, groups]
    zeros: NDArray[np.int32] | None  # the same, of stored codes
    sums: NDArray[np.int32]  # [M, chunks]: of stored codes; times -zero where all weights have the same


def x_rows_of(m: Matrix, cut: Cut, form: Form, shift: int, w_shift: int, n: int = 0) -> XRows:
    """The rows of an array for ``n`` rows of weights; its own memory where tiles can read that as it is."""
    count = m.over.rows
    stored = m.codes.view(np.int8)
    copied = bool(shift) or not cut.plain or cut.k != cut.row_bytes or crowded(count, stored.strides[0], n)
    if copied:
        stored = scratch((count, apart(cut.row_bytes)), np.int8)[:, : cut.row_bytes]
    scales = scratch((count, cut.groups), np.float32)
    zeros = scratch((count, cut.groups), np.int32) if form.x_zeros else None
    sums = scratch((count, cut.groups * cut.chunks), np.int32)
    points = None if m.zeros is None or zeros is None else m.zeros.astype(np.int32, copy=False)
    arguments = conversion_of(m, cut)._replace(
        stored=address(stored) if copied else 0, stored_pitch=stored.strides[0], flip=shift & 255,
        sums=address(sums), shift=shift, factor=1 if form.w_zeros else -w_shift,
        by_group=address(scales),
        stored_zeros=0 if zeros is None else address(zeros),
    )  # fmt: skip
    if points is not None:
        pitch, step = points.strides
        arguments = arguments._replace(zeros=address(points), zeros_pitch=pitch, zeros_step=step)
    share_kernel(kernel("codes8.int_interleave.row_converter", m.code.min < 0), arguments, count, GRAIN)
    return XRows(stored, scales, zeros, sums)


def crowded(count: int, pitch: int, n: int) -> bool:
    """True if rows compete for one place of the first cache, and are read so often that a copy pays."""
    return count >= SEVERAL and pitch % PLACES == 0 and n >= MANY


def apart(nbytes: int) -> int:
    """Bytes from a row to the next: an odd number of lines, so that each row has places of its own."""
    return (-(-nbytes // LINE) | 1) * LINE


def conversion_of(m: Matrix, cut: Cut) -> Any:
    """Arguments that say where rows lie, without results yet."""
    nothing: dict[str, Any] = dict.fromkeys(Conversion._fields, 0)
    (pitch, step), (r, c) = m.scales.strides, m.over[2:]
    return Conversion(**nothing)._replace(
        **cut._asdict(), codes=address(m.codes), pitch=m.codes.strides[0], r=r, c=c,
        scales=address(m.scales), scales_pitch=pitch, scales_step=step,
    )  # fmt: skip
