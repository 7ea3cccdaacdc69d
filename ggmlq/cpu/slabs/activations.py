"""Rows of activations as tiles read them: signed bytes filled up to whole fours, and sums of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...scaled import Matrix
from ..machine.jit import jit
from .layout import Cut, Form
from .weights import by_group, chunk_starts, lengths


class Rows(NamedTuple):
    """An operand [M, K]."""

    codes: NDArray[np.int8]  # [M, bytes of a row], of any pitch
    scales: NDArray[np.float32]  # [M, groups]
    zeros: NDArray[np.int32]  # the same, of stored codes; or empty
    sums: NDArray[np.int32]  # [M, chunks]: of stored codes; times -zero where all weights have the same


def rows_of(m: Matrix, cut: Cut, form: Form, shift: int, w_shift: int) -> Rows:
    """Rows of an array; its own memory where it can be read as it is."""
    count = m.over.rows
    whole = cut.plain and cut.k == cut.row_bytes and not shift
    stored = m.codes.view(np.int8) if whole else np.empty((count, cut.row_bytes), np.int8)
    sums = np.zeros((count, cut.groups * cut.chunks), np.int32)
    factor = 1 if form.w_zeros else -w_shift
    if not whole or factor:
        _store(
            m.codes.view(np.uint8), stored.view(np.uint8), cut, np.uint8(shift & 255),
            chunk_starts(cut), lengths(cut), factor, sums, not whole,
        )  # fmt: skip
    scales = np.ascontiguousarray(by_group(m.scales, m.over, cut))
    zeros = np.zeros((count, 0), np.int32)
    if form.x_zeros:
        zeros = np.full((count, cut.groups), shift, np.int32)
        if m.zeros is not None:
            zeros += by_group(m.zeros, m.over, cut).astype(np.int32)
    return Rows(stored, scales, zeros, sums)


@jit
def _store(
    codes: Any, stored: Any, cut: Any, flip: Any, starts: Any, counts: Any, factor: int, sums: Any, move: bool
) -> None:
    """Codes to their places, and their sums."""
    for row in range(codes.shape[0]):
        line, made = codes[row], stored[row]
        for chunk in range(len(starts)):
            left, total, at = starts[chunk], np.int32(0), 4 * cut.fours * chunk
            if move:
                for i in range(counts[chunk]):
                    made[at + i] = line[left + i] ^ flip
                made[at + counts[chunk] : at + 4 * cut.fours] = 0
            if factor:
                for i in range(counts[chunk]):
                    total += np.int32(np.int8(line[left + i] ^ flip))
                sums[row, chunk] = total * np.int32(factor)
