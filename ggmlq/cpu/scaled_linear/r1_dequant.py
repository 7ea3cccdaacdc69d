"""Decode a slab of weight rows to float32, multiply it with NumPy, go on with the next slab.

Changed: a code is decoded once in a product, sixteen at a time, with its scale; the product is NumPy's,
which is a BLAS.

Why it helps: a BLAS keeps many sums in registers and uses all threads, and the slab stays in a cache. For
8-bit floats on a CPU without instructions for them this is the speed that there is.

Limited by the machine's float32 products; with few rows of activations by decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...arrays.scaled import ScaledArray
from ...dispatch.ladder import register
from ...dispatch.problems import ScaledLinear
from ..decode_scaled import decode
from ..linear.r8_floats import multiply_floats

SLAB_BYTES = 16 << 20  # of decoded weights: fits the last cache beside the activations


def refuses(problem: ScaledLinear) -> str | None:
    if problem.integer and problem.accumulate != "float32":
        return 'it sums in float32, which for integers is asked for with accumulate="float32"'
    return None


def alone(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    """The product of ``launch`` with the sums of ``cpu:floats``, in one order for any number of rows."""
    _multiply(x, w, out, multiply_floats)


@register(__name__, __doc__, arithmetic="codes", accumulate="float32", refuses=refuses, invariant=alone)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    _multiply(x, w, out, _by_blas)


def _by_blas(values: Any, slab: Any, out: Any, first: int) -> None:
    np.matmul(values, slab.T, out=out[:, first : first + len(slab)])


def _multiply(x: ScaledArray, w: ScaledArray, out: Any, multiply: Callable[..., None]) -> None:
    a, b = x.matrix(), w.matrix()
    n, k = b.over.rows, b.over.columns
    if not k:
        out[...] = 0
        return
    values = np.empty((a.over.rows, k), np.float32)
    decode(a, slice(0, len(values)), values)
    step = max(1, min(n, SLAB_BYTES // (4 * k)))
    slab = np.empty((step, k), np.float32)
    for start in range(0, n, step):
        part = slab[: n - start]
        decode(b, slice(start, start + len(part)), part)
        multiply(values, part, out, start)
