"""Operands of products of 8-bit codes as kernels read them: aligned codes, views of scales, zero points.

Codes are read in place if their rows begin at multiples of 16 bytes, K is a multiple of 16, and a group
(the columns that share all their scales) is whole steps of a kernel. Otherwise they are copied once, with
each group filled up with zeros, whose products are zero. Scales are never copied: a kernel gets the
distances in bytes between their rows and columns, in whichever order they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from ....arrays.scaled import Matrix, ScaledArray
from ....codes import CODES
from ....codes.tiling import expanded
from ....dispatch.problems import INT32, ScaledLinear
from ...driver import tensor_maps
from ...driver.device import cupy
from ...intrinsics.wgmma import STEP

STEPS = (128, 64, 32)  # columns of K that a kernel may take in one step
INTEGER_KINDS = {"int8": "s8", "int8_full": "s8", "uint8": "u8"}  # codes, as instructions name them
ADDRESSES = (1 << 64) - 1


@cache
def making(make: Callable[..., Any], *arguments: Any) -> Callable[[ScaledArray], Any]:
    """The function ``make(*arguments, array)`` of an array alone: the same one each time, as the key of what
    is prepared must be.
    """
    return partial(make, *arguments)


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
        codes = s.prepared(making(_prepared_padded_copy, groups)) if keep else _padded_copy(matrix, groups)
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


def _prepared_padded_copy(groups: ColumnGroups, s: ScaledArray) -> Any:
    return _padded_copy(s.matrix(), groups)


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
        s.prepared(making(_zero_terms, groups, True)) if weights else _zero_terms(groups, False, s)
    )
    return terms


def _zero_terms(groups: ColumnGroups, weights: bool, s: ScaledArray) -> ZeroTerms:
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


# Reasons why kernels for 8-bit codes do not take a product, in words; None where they do.

BYTE_CODES = [code for code in CODES.values() if code.kind == "integer" and code.bits == 8]
MIN_GROUP = 8  # columns of a group: shorter ones would be mostly zeros


def not_bytes(problem: ScaledLinear) -> str | None:
    """The reason if an operand's codes are no integers of 8 bits."""
    names = [code.name for code in BYTE_CODES]
    for operand in (problem.x, problem.w):
        if operand.code not in names:
            return f"multiplies integers of 8 bits, {operand.code} is none"
    return None


def too_large_for_int32(problem: ScaledLinear) -> str | None:
    """The reason if sums in int32 may overflow, or another kind of sums is asked for."""
    if problem.accumulate not in (None, "int32"):
        return "sums in int32"
    if problem.largest_sum > INT32:
        return f"sums in int32, and {problem.group} products may reach {problem.largest_sum:.3g}"
    return None


def too_short(problem: ScaledLinear) -> str | None:
    """The reason if the groups of columns that share a scale are too short."""
    if problem.varies and problem.group < MIN_GROUP:
        return f"takes groups of {MIN_GROUP} columns of K or more, these have {problem.group}"
    return None


def refuses_boxes(problem: ScaledLinear) -> str | None:
    """The reason if Hopper's copy engine and ``wgmma`` do not serve a problem."""
    card = problem.card
    if card is not None and card.capability != (9, 0):
        return "needs compute capability 9.0: other GPUs do not have these instructions"
    if max(problem.m, problem.n, problem.k) >= 1 << 31:
        return "takes up to 2**31 - 1 rows and columns"
    for name, operand in (("x", problem.x), ("w", problem.w)):
        if operand.c < problem.k and operand.c % STEP:
            return f"takes scales of {STEP} columns of K, or multiples; those of {name} have {operand.c}"
    return tensor_maps.missing(card)


def refuses_persistent(problem: ScaledLinear) -> str | None:
    """The reason if cuda:persistent does not serve a problem; integers need scales constant along K."""
    if not problem.integer:
        return refuses_boxes(problem)
    if problem.varies:
        return "takes integers under scales that do not vary along K"
    return not_bytes(problem) or too_large_for_int32(problem) or refuses_boxes(problem)
