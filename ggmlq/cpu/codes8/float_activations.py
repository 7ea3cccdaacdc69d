"""Rows of activations as tiles read them: bfloat16, and a scale for each run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.scaled import Matrix
from ..machine.kernels import kernel
from ..machine.target import target
from ..machine.workers import scratch, share_kernel
from .float_layout import Cut
from .float_operands import Rows

GRAIN = 16  # rows that a thread takes at least


class Taken(NamedTuple):
    """An operand [M, K]."""

    values: NDArray[np.uint8]  # [m, bytes of a row]
    scales: NDArray[np.float32]  # [m, runs]


def code_rows(m: Matrix, cut: Cut) -> Taken:
    """Rows of an array."""
    count = m.over.rows
    made = Taken(scratch((count, cut.pitch), np.uint8), scratch((count, cut.groups * cut.runs), np.float32))
    pitch, step = m.scales.strides
    given = Rows(
        *cut, m.codes.ctypes.data, m.codes.strides[0], m.over.r, m.over.c,
        m.scales.ctypes.data, pitch, step, made.values.ctypes.data, cut.pitch,
        made.scales.ctypes.data,
    )  # fmt: skip
    share_kernel(kernel("codes8.float_lay.taker", m.code.name, target()), given, count, GRAIN)
    return made
