"""The weights of a product of 8-bit integers as panels: 16 rows, four neighbours of each row side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.scaled import Matrix, ScaledArray
from ..machine.kernels import kernel
from ..machine.workers import share_kernel, unrecorded
from .int_activations import GRAIN, conversion_of
from .int_layout import ROWS, Cut, Form
from .int_operands import Interleaving

FREE = 1 << 16  # codes that a thread lays out at a time


class CodePanels(NamedTuple):
    """The weights [N, K] as panels, laid out once; rows beyond N are zeros."""

    codes: NDArray[np.uint8]  # [panels, 16 · bytes of a row]
    scales: NDArray[np.float32]  # [panels, groups, 16]
    zeros: NDArray[np.int32]  # the same, of stored codes; or empty
    sums: NDArray[np.int32]  # [panels, chunks of all groups, 16]: of codes less their zero points; or empty
    at: tuple[int, ...]  # bytes of a panel, then addresses of codes, scales, zeros and sums, or 0


@cache
def maker(cut: Cut, form: Form, shift: int) -> Callable[[ScaledArray], CodePanels]:
    """The function that makes panels for ``ScaledArray.prepared``, the same object for the same arguments."""

    def make(w: ScaledArray) -> CodePanels:
        with unrecorded():
            return _panels(w.matrix(), cut, form, shift)

    return make


def _panels(m: Matrix, cut: Cut, form: Form, shift: int) -> CodePanels:
    count = -(-m.over.rows // ROWS)
    memory = np.empty(count * ROWS * cut.row_bytes + 64, np.uint8)
    skip = -memory.ctypes.data % 64
    codes = memory[skip:][: count * ROWS * cut.row_bytes].reshape(count, ROWS * cut.row_bytes)
    lines = m.codes.ctypes.data, len(m.codes), m.codes.strides[0]
    arguments = Interleaving(*cut, *lines, codes.ctypes.data, codes.shape[1], flip=shift & 255)
    share_kernel(
        kernel("codes8.int_interleave.interleaver"), arguments, count, max(1, FREE // (ROWS * max(cut.k, 1)))
    )
    scales = _by_panels(by_group(m.scales, m.over, cut), count)
    none = np.zeros((count, 0, ROWS), np.int32)
    zeros = by_group(m.zeros, m.over, cut).astype(np.int32) if m.zeros is not None else None
    sums = none
    if form.x_zeros:
        w_sums = chunk_sums(m, cut)
        if zeros is not None:
            w_sums -= np.repeat(zeros, cut.chunks, axis=1) * lengths(cut)
        sums = _by_panels(w_sums, count)
    stored = none if zeros is None else _by_panels(zeros + np.int32(shift), count)
    places = (part.ctypes.data if part.size else 0 for part in (codes, scales, stored, sums))
    at = codes.shape[1], *places
    return CodePanels(codes, scales, stored, sums, at)


def by_group(values: NDArray[Any], over: Any, cut: Cut) -> NDArray[Any]:
    """Scales or zero points [rows, groups], from those of tiles."""
    rows = np.arange(over.rows) // over.r
    if over.r == 1 and over.c == cut.group:
        return values  # as they are
    columns = np.arange(cut.groups) * cut.group // over.c
    numbers: NDArray[Any] = values[rows[:, None], columns]
    return numbers


@cache
def lengths(cut: Cut) -> NDArray[np.int32]:
    """The number of codes of each chunk, 0 behind the end of K."""
    groups, parts = np.arange(cut.groups) * cut.group, np.arange(cut.chunks) * cut.chunk
    starts = np.minimum((groups[:, None] + parts).reshape(-1), cut.k)
    ends = np.minimum(starts + cut.chunk, np.minimum((starts // cut.group + 1) * cut.group, cut.k))
    counts: NDArray[np.int32] = np.maximum(ends - starts, 0).astype(np.int32)
    return counts


def chunk_sums(m: Matrix, cut: Cut) -> NDArray[np.int32]:
    """Sums of the codes of each chunk [rows, chunks]."""
    sums = np.empty((m.over.rows, cut.groups * cut.chunks), np.int32)
    arguments = conversion_of(m, cut)._replace(sums=sums.ctypes.data, factor=1)
    share_kernel(kernel("codes8.int_interleave.row_converter", m.code.min < 0), arguments, len(sums), GRAIN)
    return sums


def _by_panels(values: NDArray[Any], count: int) -> NDArray[Any]:
    """[rows, n] to [panels, n, 16]."""
    rows, n = values.shape
    padded = np.zeros((count * ROWS, n), values.dtype)
    padded[:rows] = values
    return np.ascontiguousarray(padded.reshape(count, ROWS, n).transpose(0, 2, 1))
