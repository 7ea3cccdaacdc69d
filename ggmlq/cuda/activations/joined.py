"""Small parts of a layer that follow each other, in one launch: a sum and its norm; the gate of one product.

Between two launches a GPU does nothing for some microseconds, which is what a step of one token consists of.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine.device import cupy
from ..machine.launch import Kernel, family
from .layers import GATES, LONG, ROWS, THREADS, gating, norm_factor, norm_turn


@family([(128,), (1024,)])
def sum_normer(threads: int) -> Kernel:
    """The kernel that adds rows and divides the sums by the root of their mean square."""
    fma, add, mul, load_float = ptx.fma, ptx.add, ptx.mul, ptx.load_float
    take_turn, factor_of = norm_turn, norm_factor(threads)

    def kernel(
        x: Any,  # float32 [rows, columns]
        y: Any,
        weights: Any,  # address of float32 [columns]
        sums: Any,  # float32 [rows, columns]
        out: Any,
        columns: Any,
        epsilon: Any,  # bits of a float
    ) -> None:
        take_turn(weights, columns)
        row, total, at = uint32(cuda.blockIdx.x), float32(0), uint32(cuda.threadIdx.x)
        while at < columns:
            value = add(x[row, at], y[row, at])
            sums[row, at] = value
            total = fma(value, value, total)
            at = uint32(at + uint32(threads))
        factor, at = factor_of(total, columns, epsilon), uint32(cuda.threadIdx.x)
        while at < columns:  # a thread reads the sums that it wrote
            out[row, at] = mul(mul(sums[row, at], factor), load_float(weights + uint64(at) * uint64(4)))
            at = uint32(at + uint32(threads))

    parameters = ROWS, ROWS, uint64, ROWS, ROWS, uint32, uint32
    return Kernel(f"sum and norm by {threads}", kernel, *parameters, threads=threads, early=True)


def normed_sum(x: Any, y: Any, weights: Any, epsilon: float) -> tuple[Any, Any]:
    """Rows x + y, and these divided by the root of their mean square, times the weights."""
    xp, columns = cupy(), x.shape[-1]
    x, y = (xp.ascontiguousarray(rows).reshape(-1, columns) for rows in (x, y))
    sums, out = xp.empty(x.shape, np.float32), xp.empty(x.shape, np.float32)
    threads, bits = 1024 if columns >= LONG else 128, int(np.float32(epsilon).view(np.uint32))
    sum_normer(threads)((len(x),), (threads,), x, y, weights, sums, out, columns, bits)
    return sums, out


@cache
def numbered_gating() -> Any:
    """The device function ``act(gate) · up`` by the activation's place in GATES."""
    silu, gelu, swiglu_oai = (gating(name) for name in GATES)

    @inlined
    def act(which: Any, g: Any, u: Any) -> Any:
        value = float32(0)
        if which == uint32(0):
            value = silu(g, u)
        elif which == uint32(1):
            value = gelu(g, u)
        else:
            value = swiglu_oai(g, u)
        return value

    return act


@family((name,) for name in GATES)
def pair_gater(name: str) -> Kernel:
    """The kernel of a gate and what it lets through, which are the halves of a row."""
    act, take_turn = gating(name), dependent_launch.take_turn

    def kernel(
        both: Any,  # float32 [rows, 2 · columns]
        out: Any,  # float32 [rows, columns]
        columns: Any,
        count: Any,  # rows · columns
    ) -> None:
        take_turn()
        i = uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x)
        if i < count:
            row = i // columns
            column = i - row * columns
            out[row, column] = act(both[row, column], both[row, column + columns])

    return Kernel(f"gate {name} of a pair", kernel, ROWS, ROWS, uint32, uint32, threads=THREADS, early=True)


def gated_pair(name: str, both: Any) -> Any:
    """``act(gate) · up`` by the activation's name, for rows [..., 2 · columns] that have both."""
    xp, columns = cupy(), both.shape[-1] // 2
    rows = xp.ascontiguousarray(both).reshape(-1, 2 * columns)
    out = xp.empty((len(rows), columns), np.float32)
    pair_gater(name)((-(-out.size // THREADS),), (THREADS,), rows, out, columns, out.size)
    return out.reshape(*both.shape[:-1], columns)
