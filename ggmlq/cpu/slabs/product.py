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
from .activations import rows_of
from .layout import ROWS, Form, cut_of, form_of, w_shift, x_shift
from .tile import tile
from .weights import maker

NEAR = 256 << 10  # bytes of slabs that meet the same few rows: the second cache holds both
AT_ONCE = {32: 12, 8: 2, 4: 1}  # rows of activations, by the vector registers that the CPU has


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
    most = 1 if problem.m == 1 else AT_ONCE[kind.registers]
    share_kernel(kernel(form, most, kind), given, -(-problem.n // ROWS))


@cache
def kernel(form: Form, most: int, kind: Target) -> Any:
    """Compiled: slabs ``first`` … ``stop`` times all rows, ``most`` of them at a time."""
    several, four, two, one = (tile(form, min(most, n), kind) for n in (most, 4, 2, 1))
    at_four, at_two = min(most, 4), min(most, 2)

    def multiply(arguments: int, first: int, stop: int) -> None:
        given = operands(arguments)
        edge, out = np.empty((most, ROWS), np.float32), floats_at(given.out, given.m, given.n)
        near = max(1, NEAR // given.slab_bytes)
        of_chunks = given.groups * given.chunks
        for start in range(first, stop, near):
            row = 0
            while row < given.m:
                left = given.m - row
                done = at_four if left >= at_four else at_two if left >= at_two else 1
                if left >= most:
                    done = most
                x, x_scales = given.x + row * given.x_pitch, given.x_scales + 4 * row * given.groups
                x_zeros, x_sums = given.x_zeros + 4 * row * given.groups, given.x_sums + 4 * row * of_chunks
                for slab in range(start, min(start + near, stop)):
                    column = slab * ROWS
                    whole = column + ROWS <= given.n
                    to = given.out + 4 * (row * given.n + column) if whole else edge.ctypes.data
                    line = 4 * given.n if whole else 4 * ROWS
                    these = (
                        given.slabs + slab * given.slab_bytes,
                        given.w_scales + 64 * slab * given.groups,
                        given.w_zeros + 64 * slab * given.groups,
                        given.w_sums + 64 * slab * of_chunks,
                        x, x_scales, x_zeros, x_sums, given.x_pitch,
                        to, line, given.groups, given.chunks, given.fours,
                    )  # fmt: skip
                    if done == most:
                        several(*these)
                    elif done == at_four:
                        four(*these)
                    elif done == at_two:
                        two(*these)
                    else:
                        one(*these)
                    if not whole:
                        out[row : row + done, column:] = edge[:done, : given.n - column]
                row += done

    return jit(multiply)
