"""Rows of activations as tiles read them: signed bytes filled up to whole fours, and sums of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...scaled import Matrix
from ..machine.jit import jit
from ..machine.memory import bytes_at
from .layout import Cut, Form
from .weights import Lines, by_group, chunk_starts, chunk_sums, lengths


class Rows(NamedTuple):
    """An operand [M, K]."""

    codes: NDArray[np.int8]  # [M, bytes of a row], of any pitch
    scales: NDArray[np.float32]  # [M, groups]
    zeros: NDArray[np.int32]  # the same, of stored codes; or empty
    sums: NDArray[np.int32]  # [M, chunks]: of stored codes; times -zero where all weights have the same


def rows_of(m: Matrix, cut: Cut, form: Form, shift: int, w_shift: int) -> Rows:
    """Rows of an array; its own memory where it can be read as it is."""
    count, lines = m.over.rows, Lines.of(m.codes)
    stored = m.codes.view(np.int8)
    if shift or not cut.plain or cut.k != cut.row_bytes:
        stored = np.empty((count, cut.row_bytes), np.int8)
        _fill(lines, stored, cut, np.uint8(shift & 255), chunk_starts(cut), lengths(cut))
    factor = 1 if form.w_zeros else -w_shift
    if factor:
        sums = (chunk_sums(lines, m.code.min < 0, cut) + shift * lengths(cut)) * np.int32(factor)
    else:
        sums = np.zeros((count, cut.groups * cut.chunks), np.int32)
    scales = np.ascontiguousarray(by_group(m.scales, m.over, cut))
    zeros = np.zeros((count, 0), np.int32)
    if form.x_zeros:
        zeros = np.full((count, cut.groups), shift, np.int32)
        if m.zeros is not None:
            zeros += by_group(m.zeros, m.over, cut).astype(np.int32)
    return Rows(stored, scales, zeros, sums)


@jit
def _fill(lines: Any, stored: Any, cut: Any, flip: Any, starts: Any, counts: Any) -> None:
    """Codes to their places, zeros behind those of each chunk."""
    codes, bytes_ = bytes_at(lines.address, lines.rows, lines.pitch), stored.view(np.uint8)
    for row in range(lines.rows):
        line, made = codes[row], bytes_[row]
        for chunk in range(len(starts)):
            left, at = starts[chunk], 4 * cut.fours * chunk
            for i in range(counts[chunk]):
                made[at + i] = line[left + i] ^ flip
            made[at + counts[chunk] : at + 4 * cut.fours] = 0
