"""The walk of a product of slabs with rows: the kernel, the loops that keep both near, the threads."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...problems import ScaledLinear
from ...scaled import ScaledArray
from ..machine.arguments import reader
from ..machine.jit import jit
from ..machine.memory import floats_at
from ..machine.target import Target, target
from ..machine.workers import share_kernel
from ..panels.layout import ROWS_AT_ONCE
from .activations import rows_of
from .layout import ROWS, Form, cut_of, form_of, w_shift, x_shift
from .tile import tile
from .weights import maker

NEAR = 256 << 10  # bytes of slabs that meet the same few rows: the second cache holds both
FEW = 4  # of those that are left where 12 meet two slabs


class Operands(NamedTuple):
    """Arguments of the kernel, as addresses and sizes."""

    slab_bytes: int
    slabs: int
    w_scales: int
    w_zeros: int
    w_sums: int
    x: int
    x_pitch: int
    x_scales: int
    x_zeros: int
    x_sums: int
    m: int
    n: int
    out: int
    groups: int
    chunks: int
    fours: int


operands = reader(Operands)


def multiply(problem: ScaledLinear, x: ScaledArray, w: ScaledArray, out: Any) -> None:
    """``out = x @ w.T``, for codes that tiles take."""
    if not problem.k:
        out[...] = 0
        return
    kind, cut = target(), cut_of(problem)
    form, shift = form_of(problem, kind), w_shift(problem.w, kind)
    slabs = w.prepared(maker(cut, form, shift))
    nbytes, at, w_scales, w_zeros, w_sums = slabs.at
    rows = rows_of(x.matrix(), cut, form, x_shift(problem.x), shift)
    given = Operands(
        nbytes, at, w_scales, w_zeros, w_sums,
        rows.codes.ctypes.data, rows.codes.strides[0],
        rows.scales.ctypes.data, rows.zeros.ctypes.data, rows.sums.ctypes.data,
        problem.m, problem.n, out.ctypes.data, cut.groups, cut.chunks, cut.fours,
    )  # fmt: skip
    most = ROWS_AT_ONCE[kind.registers]
    if problem.m < FEW:
        most = min(most, 1 if problem.m == 1 else 2)
    share_kernel(kernel(form, most, kind), given, -(-problem.n // ROWS), 2)


@cache
def kernel(form: Form, most: int, kind: Target) -> Any:
    """Compiled: slabs ``first`` … ``stop`` times all rows, ``most`` at once and of what is left ``few``.

    Where fewer are left, some before them are multiplied again, by the same thread.
    """
    few, pair = (FEW, 2) if most > FEW else (1, 1)
    by_most, by_few, alone = (
        tile(form, rows, slabs, kind) for rows, slabs in ((most, pair), (few, pair), (few, 1))
    )

    def multiply(arguments: int, first: int, stop: int) -> None:
        given = operands(arguments)
        edge, out = np.empty((few, ROWS), np.float32), floats_at(given.out, given.m, given.n)
        near = max(pair, NEAR // given.slab_bytes // pair * pair)
        of_chunks = given.groups * given.chunks
        for start in range(first, stop, near):
            row, end = 0, min(start + near, stop)
            while row < given.m:
                done = most if given.m - row >= most else few
                row = min(row, given.m - done)
                slab = start
                while slab < end:
                    together = slab + pair <= end and (slab + pair) * ROWS <= given.n
                    for part in range(row, row + done, done if together else few):
                        column = slab * ROWS
                        whole = column + ROWS <= given.n
                        these = (
                            given.slabs + slab * given.slab_bytes, given.slab_bytes,
                            given.w_scales + 64 * slab * given.groups,
                            given.w_zeros + 64 * slab * given.groups,
                            given.w_sums + 64 * slab * of_chunks,
                            given.x + part * given.x_pitch,
                            given.x_scales + 4 * part * given.groups,
                            given.x_zeros + 4 * part * given.groups,
                            given.x_sums + 4 * part * of_chunks, given.x_pitch,
                            given.out + 4 * (part * given.n + column) if whole else edge.ctypes.data,
                            4 * given.n if whole else 4 * ROWS,
                            given.groups, given.chunks, given.fours,
                        )  # fmt: skip
                        if not together:
                            alone(*these)
                        elif done == most:
                            by_most(*these)
                        else:
                            by_few(*these)
                        if not whole:
                            for r in range(few):
                                for i in range(given.n - column):
                                    out[part + r, column + i] = edge[r, i]
                    slab += pair if together else 1
                row += done

    return jit(multiply)
