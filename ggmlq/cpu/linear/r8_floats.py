"""Read weights that are floats as the file has them, and widen them in registers.

Changed: float16 and bfloat16 never become float32 in memory, and the threads are our own. Four rows of
weights meet four of activations, sixteen columns at a time.

Why it helps: memory carries two bytes a weight, where a decoded one is read, written and read again. And a
BLAS whose threads wait for each other loses far more than its speed beside another busy process.

Limited by the memory's bandwidth with few rows of activations, by one fused multiplication a clock with
more; with many a BLAS, which also keeps pieces of both in the caches, is ahead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ..encode.halves import float_rows
from ..machine.kernels import kernel
from ..machine.tables import Address, address
from ..machine.target import target
from ..machine.workers import share_kernel

MOST = {"f32": 16, "f16": 64, "bf16": 64}  # rows of activations at most: float32 goes to a BLAS sooner


def refuses(problem: Linear) -> str | None:
    name = problem.format.name
    if name not in MOST:
        return f"it reads floats: {', '.join(MOST)}"
    if problem.m > MOST[name]:
        return f"it takes up to {MOST[name]} rows of activations beside {name}; a BLAS is ahead with more"
    if name == "f16" and not target().halves:
        return "this CPU has no 16-bit floats"
    return None


def multiply_floats(x: Any, weights: Any, out: Any, first: int) -> None:
    """``x @ weights.T``, all float32 and contiguous, into the columns of ``out`` from ``first`` on."""
    if not out.size:
        return
    n, k = weights.shape
    at, to = weights.ctypes.data, out.ctypes.data + 4 * first
    arguments = Floats(at, 4 * k, x.ctypes.data, len(x), k, to, out.shape[1])
    share_kernel(kernel("linear._floats.sweep", "f32", target()), arguments, n, BAND)


@register(
    __name__, __doc__, arithmetic="f32", accumulate="f32", refuses=refuses, repeats=True, invariant=True
)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    if not out.size:
        return
    rows, weights = float_rows(x), q.raw
    if weights.strides[1] != 1:
        weights = np.ascontiguousarray(weights)
    (n, k), at = q.shape, address(weights)
    arguments = Floats(at, weights.strides[0], address(rows), len(rows), k, address(out), n)
    share_kernel(kernel("linear._floats.sweep", q.format.name, target()), arguments, n, BAND)


BAND = 16  # rows of weights that meet all activations before the next of these


class Floats(NamedTuple):
    """Arguments: rows of weights as the file has them, rows of float32, and the result."""

    weights: Address  # rows of k numbers
    pitch: int  # bytes from a row to the next
    x: Address  # float32 [m, k]
    m: int
    k: int
    out: Address  # float32 [m, n]
    n: int
