"""The driver of ``scaled_linear``'s rung ``cpu:tiles``, for 8-bit integers: arguments, kernel, threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.scaled import Matrix, ScaledArray
from ...dispatch.problems import ScaledLinear
from ..machine.kernels import kernel
from ..machine.tables import address
from ..machine.target import target
from ..machine.workers import scratch, share_kernel, unrecorded
from ..panels.layout import ROWS_AT_ONCE
from .int_layout import (
    FEW,
    ROWS,
    Conversion,
    Cut,
    Form,
    Interleaving,
    Operands,
    cut_of,
    form_of,
    w_shift,
    x_shift,
)


def multiply(problem: ScaledLinear, x: ScaledArray, w: ScaledArray, out: Any) -> None:
    """``out = x @ w.T``, for codes that tiles take."""
    if not problem.k:
        out[...] = 0
        return
    kind, cut = target(), cut_of(problem)
    form, shift = form_of(problem, kind), w_shift(problem.w, kind)
    panels = w.prepared(maker(cut, form, shift))
    nbytes, at, w_scales, w_zeros, w_sums = panels.at
    rows = x_rows_of(x.matrix(), cut, form, x_shift(problem.x), shift, problem.n)
    arguments = Operands(
        nbytes, at, w_scales, w_zeros, w_sums,
        address(rows.codes), rows.codes.strides[0], address(rows.scales),
        0 if rows.zeros is None else address(rows.zeros), address(rows.sums),
        problem.m, problem.n, address(out), cut.groups, cut.chunks, cut.fours,
    )  # fmt: skip
    most = ROWS_AT_ONCE[kind.registers]
    if problem.m < FEW:
        most = min(most, 1 if problem.m == 1 else 2)
    share_kernel(kernel("codes8.int_product.sweep", form, most, kind), arguments, -(-problem.n // ROWS), 2)


# --- Activations of a product of 8-bit integers, as its tiles read them: rows of signed bytes and their
# sums
#
# Each chunk of a row is filled up to whole fours.

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
    share_kernel(kernel("codes8.int_product.row_converter", m.code.min < 0), arguments, count, GRAIN)
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


# --- The weights of a product of 8-bit integers as panels: 16 rows, four neighbours of each row side by
# side

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
        kernel("codes8.int_product.interleaver"), arguments, count, max(1, FREE // (ROWS * max(cut.k, 1)))
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
    share_kernel(kernel("codes8.int_product.row_converter", m.code.min < 0), arguments, len(sums), GRAIN)
    return sums


def _by_panels(values: NDArray[Any], count: int) -> NDArray[Any]:
    """[rows, n] to [panels, n, 16]."""
    rows, n = values.shape
    padded = np.zeros((count * ROWS, n), values.dtype)
    padded[:rows] = values
    return np.ascontiguousarray(padded.reshape(count, ROWS, n).transpose(0, 2, 1))
