"""Products of 8-bit floats on the CPU, in tiles of the sizes that a configuration for a GPU's kernel names.

A table of configurations (``ggmlq/functions/configs.py``) says how a kernel is to go through a product:
BLOCK_SIZE_M × BLOCK_SIZE_N results at a time, BLOCK_SIZE_K of K in a step, and GROUP_SIZE_M tiles of
rows before the next tile of columns, so that what both operands of a group are made of stays in the cache:

    GROUP_SIZE_M = 2       tiles of columns →                each number: when this tile is computed
                           0  2  4  6
    tiles of rows ↓        1  3  5  7
                           8 10 12 14
                           9 11 13 15

In a step both tiles are decoded once, into float32, and multiplied from there; then the sums go over
into the results with one fused multiply-add by the product of both scales. num_warps and num_stages
are of a GPU and change nothing.

Limited by the decoding of both tiles, which each tile of results does anew, and by sums that go through
the first cache. It is no rung of the ladder: without a configuration there is nothing to obey.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...arrays.scaled import Matrix, ScaledArray
from ...base.threads import share
from ...dispatch.problems import ScaledLinear
from ..lanes import load, splat, store
from ..machine.floats import fma
from ..machine.jit import inner, jit

LANES = 16  # results side by side in a register


def refuses(problem: ScaledLinear, config: dict[str, int]) -> str | None:
    """The reason why this kernel cannot follow a configuration, or None."""
    if problem.integer:
        return "it multiplies codes that are floats"
    step = config["BLOCK_SIZE_K"]
    if problem.varies and problem.group % step:
        return f"scales change every {problem.group} of K, which BLOCK_SIZE_K={step} does not divide"
    return None


def launch(x: ScaledArray, w: ScaledArray, out: Any, config: dict[str, int]) -> None:
    """``x [M, K] @ w [N, K].T`` into float32 [M, N]."""
    a, b = x.matrix(), w.matrix()
    m, n, k = (config[f"BLOCK_SIZE_{axis}"] for axis in "MNK")
    tiles = -(-a.over.rows // m) * -(-b.over.rows // n)
    sizes = (m, n, k, config["GROUP_SIZE_M"])
    multiply = kernel()
    share(lambda first, stop: multiply(*_parts(a), *_parts(b), out, sizes, first, stop), tiles)


def _parts(m: Matrix) -> tuple[Any, ...]:
    """The parts of an operand: codes, their values, scales, and the tile that shares one."""
    codes = np.ascontiguousarray(m.codes)
    return codes, m.code.table, np.ascontiguousarray(m.scales), (m.over.r, m.over.c)


@cache
def kernel() -> Any:
    """The compiled product, one for all codes and configurations."""
    scaled, rows, columns, multiply = (inner(f) for f in (_add_scaled, _rows_of, _columns_of, _multiply))

    def multiply_tiles(
        qa: Any, va: Any, sa: Any, ta: Any, qb: Any, vb: Any, sb: Any, tb: Any,
        out: Any, sizes: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        bm, bn, bk, group = sizes
        down, across = (qa.shape[0] + bm - 1) // bm, (qb.shape[0] + bn - 1) // bn
        a, b = np.empty(bm * bk, np.float32), np.empty(bk * bn, np.float32)
        dot, total = np.empty((bm, bn), np.float32), np.empty((bm, bn), np.float32)
        scales = np.empty(bn, np.float32)
        for tile in range(first, stop):
            in_group = tile % (group * across)
            top = tile // (group * across) * group
            here = min(down - top, group)
            m0, n0 = (top + in_group % here) * bm, in_group // here * bn
            m, n = min(bm, qa.shape[0] - m0), min(bn, qb.shape[0] - n0)
            total[:] = np.float32(0)
            for k0 in range(0, qa.shape[1], bk):
                rows(qa, va, m0, k0, m, bk, a)
                columns(qb, vb, n0, k0, n, bk, b)
                multiply(a, b, m, bk, dot)
                for j in range(n):
                    scales[j] = sb[(n0 + j) // tb[0], k0 // tb[1]]
                scaled(dot, sa, ta, scales, m0, k0, m, n, total)
            for i in range(m):
                for j in range(n):
                    out[m0 + i, n0 + j] = total[i, j]

    return jit(multiply_tiles)


def _rows_of(q: Any, values: Any, m0: int, k0: int, m: int, bk: int, a: Any) -> None:
    """A tile of codes as float32 [rows, K]; zeros past both ends."""
    k = min(bk, q.shape[1] - k0)
    for i in range(a.size // bk):
        for j in range(bk):
            a[i * bk + j] = values[q[m0 + i, k0 + j]] if i < m and j < k else np.float32(0)


def _columns_of(q: Any, values: Any, n0: int, k0: int, n: int, bk: int, b: Any) -> None:
    """A transposed tile of codes as float32 [K, rows], so that results lie side by side."""
    k, bn = min(bk, q.shape[1] - k0), b.size // bk
    if k < bk or n < bn:
        b[:] = np.float32(0)
    for j in range(n):
        row = q[n0 + j, k0 : k0 + k]
        for i in range(k):
            b[i * bn + j] = values[row[i]]


def _multiply(a: Any, b: Any, m: int, bk: int, dot: Any) -> None:
    """Sums of one step: eight rows and 16 columns at a time stay in registers all along K."""
    bn = dot.shape[1]
    flat = dot.reshape(dot.size)
    for i in range(0, m, 8):
        for j in range(0, bn, LANES):
            zero = splat(np.float32(0), np.float32, LANES)
            s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
            at = i * bk
            for k in range(bk):
                w = load(b, k * bn + j, LANES)
                s0 = s0 + w * a[at + 0 * bk + k]
                s1 = s1 + w * a[at + 1 * bk + k]
                s2 = s2 + w * a[at + 2 * bk + k]
                s3 = s3 + w * a[at + 3 * bk + k]
                s4 = s4 + w * a[at + 4 * bk + k]
                s5 = s5 + w * a[at + 5 * bk + k]
                s6 = s6 + w * a[at + 6 * bk + k]
                s7 = s7 + w * a[at + 7 * bk + k]
            place = i * bn + j
            store(flat, place + 0 * bn, s0)
            store(flat, place + 1 * bn, s1)
            store(flat, place + 2 * bn, s2)
            store(flat, place + 3 * bn, s3)
            store(flat, place + 4 * bn, s4)
            store(flat, place + 5 * bn, s5)
            store(flat, place + 6 * bn, s6)
            store(flat, place + 7 * bn, s7)


def _add_scaled(
    dot: Any, sa: Any, ta: Any, w_scales: Any, m0: int, k0: int, m: int, n: int, total: Any
) -> None:
    """The sums of a step go over into the results under both scales."""
    for i in range(m):
        x_scale = sa[(m0 + i) // ta[0], k0 // ta[1]]
        for j in range(n):
            total[i, j] = fma(dot[i, j], x_scale * w_scales[j], total[i, j])
