"""Activations of a product of 8-bit floats, as tiles read them: rows of bfloat16, a scale for each run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.scaled import Matrix
from ..machine.kernels import kernel
from ..machine.tables import address
from ..machine.target import target
from ..machine.workers import scratch, share_kernel
from .float_layout import Cut
from .float_operands import Decoding

GRAIN = 16  # rows that a thread takes at least


class XRows(NamedTuple):
    """The activations [M, K] as tiles read them."""

    values: NDArray[np.uint8]  # [m, bytes of a row]
    scales: NDArray[np.float32]  # [m, runs]


def x_rows_of(m: Matrix, cut: Cut, multiple: int = 1) -> XRows:
    """The rows of an array, decoded by all threads, with room for a ``multiple`` of rows."""
    count = m.over.rows
    room = -(-count // multiple) * multiple
    rows = XRows(scratch((room, cut.pitch), np.uint8), scratch((room, cut.groups * cut.runs), np.float32))
    pitch, step = m.scales.strides
    arguments = Decoding(
        *cut, address(m.codes), m.codes.strides[0], m.over.r, m.over.c,
        address(m.scales), pitch, step, address(rows.values), cut.pitch,
        address(rows.scales),
    )  # fmt: skip
    share_kernel(kernel("codes8.float_decode.row_decoder", m.code.name, target()), arguments, count, GRAIN)
    return rows
