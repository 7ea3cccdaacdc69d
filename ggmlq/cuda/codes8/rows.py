"""Operands of products of 8-bit codes as kernels read them: aligned codes, views of scales, zero points.

Codes are read in place if their rows begin at multiples of 16 bytes, K is a multiple of 16, and a group
(the columns that share all their scales) is whole steps of a kernel. Otherwise they are copied once, with
each group filled up with zeros, whose products are zero. Scales are never copied: a kernel gets the
distances in bytes between their rows and columns, in whichever order they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...arrays.scaled import Matrix, ScaledArray
from ...codes.tiling import expanded
from ..machine.device import cupy

STEPS = (128, 64, 32)  # columns of K that a kernel may take in one step
INTEGER_KINDS = {"int8": "s8", "int8_full": "s8", "uint8": "u8"}  # codes, as instructions name them
ADDRESSES = (1 << 64) - 1


def code_kind(s: ScaledArray) -> str:
    """The name of an array's code in instructions and variants."""
    return INTEGER_KINDS.get(s.code.name, s.code.name)


class ColumnGroups(NamedTuple):
    """The columns of K in groups that share all their scales."""

    length: int  # columns that share all their scales
    padded: int  # the length filled up with zeros to whole steps
    step: int

    @property
    def span(self) -> int:
        """Steps of a group."""
        return self.padded // self.step


def column_groups(k: int, c: int, step: int | None = None) -> ColumnGroups:
    """Groups of K columns whose scales change every c of them; c = K where they do not change.

    ``step``: the columns that a kernel takes at a time, which divide c; without it the longest step that
    fits.
    """
    if step is not None:
        return (
            ColumnGroups(c, c, step) if c < k else ColumnGroups(max(k, 1), max(-(-k // step), 1) * step, step)
        )
    if c >= k:
        padded = max(-(-k // STEPS[0]), 1) * STEPS[0]
        return ColumnGroups(max(k, 1), padded, STEPS[0])
    step = next((step for step in STEPS if c % step == 0), None)
    if step is None:
        step = next((step for step in reversed(STEPS) if step >= c), STEPS[0])
    return ColumnGroups(c, -(-c // step) * step, step)


class ScaleView(NamedTuple):
    """Scales as arguments of a kernel: an address, distances in bytes, and how many codes share one."""

    at: Any  # the array of scales
    row: int  # bytes from one row of scales to the next
    column: int
    rows: int  # rows of codes that share one
    steps: int  # steps of K that share one


class CodeRows(NamedTuple):
    """One operand: its codes in rows, and its scales."""

    codes: Any
    pitch: int  # bytes from row to row
    columns: int  # columns, those that fill up groups included
    scales: ScaleView


def code_rows(s: ScaledArray, groups: ColumnGroups, keep: bool = False) -> CodeRows:
    """An operand as kernels read it; ``keep``: a copy that must be made stays with the array."""
    matrix = s.matrix()
    codes, k = matrix.codes.view(np.uint8), matrix.over.columns
    if _readable_in_place(codes, groups):
        columns, pitch = k, codes.strides[0] if len(codes) > 1 else k
    else:
        codes = s.prepared(_padded_copy_maker(groups)) if keep else _padded_copy(matrix, groups)
        columns = pitch = codes.shape[1]
    steps_per_scale = matrix.over.c // groups.length * groups.span if matrix.over.c < k else max(1, columns)
    row, column = (stride & ADDRESSES for stride in matrix.scales.strides)
    return CodeRows(
        codes, pitch, columns, ScaleView(matrix.scales, row, column, matrix.over.r, steps_per_scale)
    )


def _readable_in_place(codes: Any, groups: ColumnGroups) -> bool:
    k = codes.shape[1]
    return k % 16 == 0 and (k <= groups.length or groups.length == groups.padded) and _aligned(codes)


def _aligned(codes: Any) -> bool:
    return bool(codes.data.ptr % 16 == 0 and (len(codes) < 2 or codes.strides[0] % 16 == 0))


@cache
def _padded_copy_maker(groups: ColumnGroups) -> Callable[[ScaledArray], Any]:
    return lambda s: _padded_copy(s.matrix(), groups)


def _padded_copy(matrix: Matrix, groups: ColumnGroups) -> Any:
    """Codes copied with each group filled up with zeros."""
    rows, k = matrix.codes.shape
    length, padded = groups.length, groups.padded
    whole = k // length
    copy = cupy().zeros((rows, -(-k // length), padded), matrix.codes.dtype)
    copy[:, :whole, :length] = matrix.codes[:, : whole * length].reshape(rows, whole, length)
    if k > whole * length:
        copy[:, whole, : k - whole * length] = matrix.codes[:, whole * length :]
    return copy.reshape(rows, copy.shape[1] * padded).view(np.uint8)


class OperandPair(NamedTuple):
    """Both operands of a product, as kernels read them."""

    x: CodeRows
    w: CodeRows
    groups: ColumnGroups


def operand_pair(x: ScaledArray, w: ScaledArray, step: int | None = None) -> OperandPair:
    """Rows of both operands, w [..., K] as one matrix; codes that kernels cannot read in place are copied.

    ``step``: columns of K that a kernel takes at a time.
    """
    groups = column_groups(w.shape[-1], min(x.tiling.c, w.tiling.c), step)
    return OperandPair(code_rows(x, groups), code_rows(w, groups, keep=True), groups)


# --- zero points --------------------------------------------------------------------------------


class ZeroTerms(NamedTuple):
    """The factors of one operand that correct a product for zero points, int32 [groups, rows of codes].

    They come from the identity

        Σ (a - za)(b - zb)  =  Σ a b  -  za · (Σ b - n zb)  -  zb · Σ a
    """

    points: Any  # the operand's own zero points: za or zb
    others: Any  # factors of the other operand's zero points: Σ a, or Σ b - n zb


def zero_terms(s: ScaledArray, groups: ColumnGroups, weights: bool) -> ZeroTerms:
    """The zero-point terms of an operand; those of ``weights`` are prepared once and stay with the array."""
    terms: ZeroTerms = (
        s.prepared(_zero_terms_maker(groups, True)) if weights else _zero_terms(s, groups, False)
    )
    return terms


@cache
def _zero_terms_maker(groups: ColumnGroups, weights: bool) -> Callable[[ScaledArray], ZeroTerms]:
    return lambda s: _zero_terms(s, groups, weights)


def _zero_terms(s: ScaledArray, groups: ColumnGroups, weights: bool) -> ZeroTerms:
    cp, matrix = cupy(), s.matrix()
    (rows, k), length = matrix.codes.shape, groups.length
    count = -(-k // length)
    if k % length:
        by_group = _padded_copy(matrix, groups).view(matrix.codes.dtype).reshape(rows, count, groups.padded)
    else:
        by_group = matrix.codes.reshape(rows, count, length)
    sums = by_group.sum(axis=2, dtype=np.int32).T
    points = cp.zeros((count, rows), np.int32)
    if matrix.zeros is not None:
        over = matrix.over._replace(c=1)
        times = -(-matrix.over.c // length)
        of_groups = cp.repeat(expanded(cp, matrix.zeros, over), times, axis=1)[:, :count]
        points[...] = of_groups.T
    if weights:
        lengths = np.minimum(length, k - length * np.arange(count)).astype(np.int32)
        sums = sums - cp.asarray(lengths)[:, None] * points
    return ZeroTerms(points, cp.ascontiguousarray(sums))
