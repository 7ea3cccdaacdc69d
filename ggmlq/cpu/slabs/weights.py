"""Slabs of weights: 16 rows at a time, four neighbours of each row side by side, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...scaled import Matrix, ScaledArray
from ...threads import share
from ..machine.jit import jit
from ..machine.memory import bytes_at
from .layout import ROWS, Cut, Form

FREE = 1 << 16  # codes that a thread lays out at a time


class Slabs(NamedTuple):
    """An operand [N, K]; rows beyond N are zeros."""

    codes: NDArray[np.uint8]  # [slabs, 16 · bytes of a row]
    scales: NDArray[np.float32]  # [slabs, groups, 16]
    zeros: NDArray[np.int32]  # the same, of stored codes; or empty
    sums: NDArray[np.int32]  # [slabs, chunks of all groups, 16]: of codes less their zero points; or empty
    at: tuple[int, int, int, int, int]  # bytes of a slab, then addresses: of codes, scales, zeros and sums


class Lines(NamedTuple):
    """Rows of bytes in memory, as compiled code finds them, whoever may write to them."""

    address: int
    rows: int
    pitch: int  # bytes from a row to the next

    @staticmethod
    def of(codes: NDArray[Any]) -> Lines:
        """Those of codes with neighbours side by side."""
        return Lines(codes.ctypes.data, len(codes), codes.strides[0])


@cache
def maker(cut: Cut, form: Form, shift: int) -> Callable[[ScaledArray], Slabs]:
    """What ``prepared`` is given: the same function for the same cut."""

    def make(w: ScaledArray) -> Slabs:
        return _slabs(w.matrix(), cut, form, shift)

    return make


def _slabs(m: Matrix, cut: Cut, form: Form, shift: int) -> Slabs:
    count = -(-m.over.rows // ROWS)
    memory = np.empty(count * ROWS * cut.row_bytes + 64, np.uint8)
    skip = -memory.ctypes.data % 64
    codes = memory[skip:][: count * ROWS * cut.row_bytes].reshape(count, ROWS * cut.row_bytes)
    lines, flip = Lines.of(m.codes), np.uint8(shift & 255)
    share(
        lambda first, stop: _lay(lines, codes, cut, flip, first, stop),
        count,
        max(1, FREE // (ROWS * max(cut.k, 1))),
    )
    scales = _by_slabs(by_group(m.scales, m.over, cut), count)
    none = np.zeros((count, 0, ROWS), np.int32)
    zeros = by_group(m.zeros, m.over, cut).astype(np.int32) if m.zeros is not None else None
    sums = none
    if form.x_zeros:
        found = chunk_sums(lines, m.code.min < 0, cut)
        if zeros is not None:
            found -= np.repeat(zeros, cut.chunks, axis=1) * lengths(cut)
        sums = _by_slabs(found, count)
    stored = none if zeros is None else _by_slabs(zeros + np.int32(shift), count)
    at = codes.shape[1], codes.ctypes.data, scales.ctypes.data, stored.ctypes.data, sums.ctypes.data
    return Slabs(codes, scales, stored, sums, at)


@jit
def _lay(lines: Any, codes: Any, cut: Any, flip: Any, first: int, stop: int) -> None:
    """Slabs ``first`` … ``stop``, of bytes with some bits turned."""
    stored, n = bytes_at(lines.address, lines.rows, lines.pitch), lines.rows
    for slab in range(first, stop):
        made = codes[slab]
        made[:] = 0
        for r in range(min(ROWS, n - slab * ROWS)):
            row = stored[slab * ROWS + r]
            for chunk in range(cut.groups * cut.chunks):
                group, part = chunk // cut.chunks, chunk % cut.chunks
                left = group * cut.group + part * cut.chunk
                right = min(left + cut.chunk, (group + 1) * cut.group, cut.k)
                at = 64 * chunk * cut.fours + 4 * r
                for i in range(right - left):
                    made[at + 64 * (i >> 2) + (i & 3)] = row[left + i] ^ flip


def by_group(values: NDArray[Any], over: Any, cut: Cut) -> NDArray[Any]:
    """Scales or zero points [rows, groups], from those of tiles."""
    rows = np.arange(over.rows) // over.r
    if over.r == 1 and over.c == cut.group:
        return values  # as they are
    columns = np.arange(cut.groups) * cut.group // over.c
    found: NDArray[Any] = values[rows[:, None], columns]
    return found


@cache
def lengths(cut: Cut) -> NDArray[np.int32]:
    """How many codes each chunk has."""
    starts = chunk_starts(cut)
    ends = np.minimum(starts + cut.chunk, np.minimum((starts // cut.group + 1) * cut.group, cut.k))
    return np.maximum(ends - starts, 0).astype(np.int32)


@cache
def chunk_starts(cut: Cut) -> NDArray[np.int64]:
    """Where chunks begin; those behind the end of K are empty."""
    groups, parts = np.arange(cut.groups) * cut.group, np.arange(cut.chunks) * cut.chunk
    starts: NDArray[np.int64] = (groups[:, None] + parts).reshape(-1)
    return np.minimum(starts, cut.k)


def chunk_sums(lines: Lines, signed: bool, cut: Cut) -> NDArray[np.int32]:
    """Sums of the codes of each chunk [rows, chunks]."""
    found = np.zeros((lines.rows, cut.groups * cut.chunks), np.int32)
    starts, counts, add = chunk_starts(cut), lengths(cut), _sums(signed)
    share(lambda first, stop: add(lines, starts, counts, found, first, stop), lines.rows, 16)
    return found


@cache
def _sums(signed: bool) -> Any:
    """Compiled: for signed bytes or unsigned ones."""
    kind = np.int8 if signed else np.uint8

    def add(lines: Any, starts: Any, counts: Any, found: Any, first: int, stop: int) -> None:
        codes = bytes_at(lines.address, lines.rows, lines.pitch)
        for row in range(first, stop):
            line = codes[row].view(kind)
            for chunk in range(len(starts)):
                total, left = np.int32(0), starts[chunk]
                part = line[left : left + counts[chunk]]  # indices from 0 on: LLVM adds whole vectors
                for i in range(len(part)):
                    total += np.int32(part[i])
                found[row, chunk] = total

    return jit(add)


def _by_slabs(values: NDArray[Any], count: int) -> NDArray[Any]:
    """[rows, n] to [slabs, n, 16]."""
    rows, n = values.shape
    made = np.zeros((count * ROWS, n), values.dtype)
    made[:rows] = values
    return np.ascontiguousarray(made.reshape(count, ROWS, n).transpose(0, 2, 1))
