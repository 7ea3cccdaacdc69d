"""Four products an instruction: codes stay packed in words.

Changed: ``dp4a`` multiplies four bytes with four others and adds all to an int32, so codes are never
widened: they are loaded as words of four, 128 columns of 64 rows a tile. Zero points are left in, since a
difference may need nine bits, and their part is taken off the sum of a group:

    Σ (a - za)(b - zb)  =  Σ a·b  -  za · (Σ b - n·zb)  -  zb · Σ a

where Σ b belongs to the weights and is prepared once with them (kernels/codes8/rows.py). Sums stay int32
until their group of scales ends, at the latest when K does: it holds every sum of K ≤ 131071 products of
full int8.

Why it helps: a quarter of the loads, and of the instructions. Nothing is rounded before the scales, so the
order of additions does not matter, and every rung from here on gives the same bits.

Limited by shared memory: a thread reads eight words for 16 instructions.
"""

from __future__ import annotations

from itertools import product as combined
from typing import Any

import numpy as np

from ....arrays.scaled import ScaledArray
from ....dispatch.ladder import register
from ....dispatch.problems import ScaledLinear
from ...driver.device import cupy
from ...driver.launch import Kernel, array, family
from ...intrinsics import codes8, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.language import cuda, float32, int32, uint32
from ...kernels.codes8.rows import (
    INTEGER_KINDS,
    not_bytes,
    operand_pair,
    too_large_for_int32,
    too_short,
    zero_terms,
)
from .operands import strided, too_many_rows

SIDE, WORDS = 64, 32  # rows of a tile, and words of four codes: 128 columns at a time
THREADS, THREAD_SIDE, THREAD_OUTPUTS = 256, 4, 16  # of a block; outputs of a thread: 4 × 4
PITCH = SIDE + 1  # so that columns of a tile lie in different banks
SIGNS = ("s8", "u8")  # of a byte, as instructions name them

# Who computes what: as in the rung below, with words of four codes in place of codes.
#
#     1. all load: thread t word t % 32 of rows t / 32, t / 32 + 8, … of either tile
#     2. all multiply: threads stand 16 × 16 (tx, ty), each with every 16th row and column
#
#                 tx    tx+16  tx+32  tx+48        columns of y: rows of w, b[word, ·]
#          ty     o      o      o      o
#          ty+16  o      o      o      o           rows of y: rows of x, a[word, ·]
#          ty+32  o      o      o      o           8 words of shared memory: 16 dp4a, 64 products
#          ty+48  o      o      o      o
#
# Banks, as below: tiles lie by column, 16 lanes read 16 neighbours; rows of 65 words keep the 32 lanes that
# load 32 words of a row of x out of each other's banks.


@inlined
def load_words(tile: Any, words: Any, row0: Any, w0: Any, stop: Any) -> None:
    """Load 32 words of 64 rows into ``tile``; 0 beyond the end."""
    k = int32(cuda.threadIdx.x % WORDS)
    for i in range(SIDE * WORDS // THREADS):
        row = int32(cuda.threadIdx.x // WORDS + i * (THREADS // WORDS))
        inside = row0 + row < words.shape[0] and w0 + k < stop
        tile[k, row] = words[row0 + row, w0 + k] if inside else int32(0)


@family(combined(SIGNS, SIGNS, (False, True)))
def kernel(sign_a: str, sign_b: str, zeros: bool) -> Kernel:
    dp4a, fma, mul = codes8.dp4a(sign_a, sign_b), ptx.fma, ptx.mul

    def product(
        a_words: Any, sa: Any, b_words: Any, sb: Any,  # codes as int32 [rows, words], scales
        za: Any, va: Any, zb: Any, vb: Any,  # int32 [groups, rows]: rows.ZeroTerms
        y: Any,  # float32 [m, n]
        ra: Any, ga: Any, rb: Any, gb: Any,  # rows and groups that share a scale
        words: Any, group: Any,  # words of a row, and of a group
    ) -> None:  # fmt: skip
        a = cuda.shared.array((WORDS, PITCH), int32)
        b = cuda.shared.array((WORDS, PITCH), int32)
        tx, ty = int32(cuda.threadIdx.x % 16), int32(cuda.threadIdx.x // 16)
        m0, n0 = int32(cuda.blockIdx.y * SIDE), int32(cuda.blockIdx.x * SIDE)
        last_m, last_n = int32(y.shape[0]) - int32(1), int32(y.shape[1]) - int32(1)
        total, dot = cuda.local.array(THREAD_OUTPUTS, float32), cuda.local.array(THREAD_OUTPUTS, int32)
        for i in range(THREAD_OUTPUTS):
            total[i] = float32(0)
        for g in range((words + group - 1) // group):
            start, stop = int32(g * group), min(int32((g + 1) * group), int32(words))
            for i in range(THREAD_OUTPUTS):
                dot[i] = int32(0)
            for w0 in range(start, stop, WORDS):
                cuda.syncthreads()  # nobody reads the tile before any more
                load_words(a, a_words, m0, w0, stop)
                load_words(b, b_words, n0, w0, stop)
                cuda.syncthreads()  # the tiles are whole: each thread multiplies what others loaded
                for k in range(WORDS):
                    for i in range(THREAD_SIDE):
                        for j in range(THREAD_SIDE):
                            o = THREAD_SIDE * i + j
                            dot[o] = dp4a(a[k, ty + 16 * i], b[k, tx + 16 * j], dot[o])
            for i in range(THREAD_SIDE):
                # Rows beyond the end take the last one's scale: their sums are not stored.
                m = min(m0 + ty + 16 * i, last_m)
                x_scale = sa[m // ra, g // ga]
                for j in range(THREAD_SIDE):
                    n, o = min(n0 + tx + 16 * j, last_n), THREAD_SIDE * i + j
                    # The identity at the head: what zero points add to a sum of a group. ``va`` is Σ a of a
                    # row of x, ``vb`` is Σ b - n·zb of a row of w; both are made once for all outputs.
                    if zeros:
                        dot[o] -= int32(za[g, m] * vb[g, n]) + int32(zb[g, n] * va[g, m])
                    total[o] = fma(float32(dot[o]), mul(x_scale, sb[n // rb, g // gb]), total[o])
        for i in range(THREAD_SIDE):
            for j in range(THREAD_SIDE):
                m, n = m0 + ty + 16 * i, n0 + tx + 16 * j
                if m < y.shape[0] and n < y.shape[1]:
                    y[m, n] = total[THREAD_SIDE * i + j]

    parts = [strided(int32), strided(float32)] * 2 + [strided(int32)] * 4
    name = f"bytes by dp4a, {sign_a} {sign_b}{', zeros' if zeros else ''}"
    return Kernel(name, product, *parts, array(float32, 2), *(uint32,) * 6, threads=THREADS)


def refuses(problem: ScaledLinear) -> str | None:
    reason = not_bytes(problem) or too_large_for_int32(problem)
    if reason := reason or too_short(problem):
        return reason
    return too_many_rows(problem, SIDE)


def arguments(x: ScaledArray, w: ScaledArray) -> tuple[tuple[Any, bool], list[Any]]:
    """The choices of the kernel, and its arguments; None stands for the output."""
    both, zeros = operand_pair(x, w), x.zeros is not None or w.zeros is not None
    points = [cupy().empty((1, 1), np.int32)] * 4
    if zeros:
        points = [*zero_terms(x, both.groups, weights=False), *zero_terms(w, both.groups, weights=True)]
    # Codes as words of four: rows are filled up to whole groups of them with zeros (kernels/codes8/rows.py).
    columns, groups = min(both.x.columns, both.w.columns), both.groups
    parts, shared = [], []
    for rows in (both.x, both.w):
        parts += [rows.codes[:, :columns].view(np.int32), rows.scales.at]
        shared += [rows.scales.rows, max(1, rows.scales.steps // groups.span)]
    sizes = [*shared, columns // 4, groups.padded // 4]
    return ((INTEGER_KINDS[x.code.name], INTEGER_KINDS[w.code.name]), zeros), [*parts, *points, None, *sizes]


@register(__name__, __doc__, arithmetic="codes", accumulate="int32", refuses=refuses)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    (m, n), k = out.shape, w.shape[1]
    if not (out.size and k):
        out.fill(0)
        return
    (signs, zeros), all_arguments = arguments(x, w)
    grid = (-(-n // SIDE), -(-m // SIDE))
    kernel(*signs, zeros)(
        grid, (THREADS,), *(out if argument is None else argument for argument in all_arguments)
    )
