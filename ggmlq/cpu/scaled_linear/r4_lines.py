"""With few rows of activations, decode 8-bit floats in registers and multiply them there.

Changed: codes never become floats in memory. Sixteen of a row of weights are decoded and meet the same
sixteen columns of up to four rows of activations; at the end of a group of K the sums meet both scales.

Why it helps: the memory carries one byte a weight, where decoded ones are four bytes written and four read,
and a product of a matrix with one vector waits for nothing else.

Limited by decoding, five instructions for sixteen weights. With more rows a BLAS wins (r1_dequant).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...arrays.scaled import Matrix, ScaledArray
from ...dispatch.ladder import register
from ...dispatch.problems import ScaledLinear
from ..decode_scaled import decode
from ..machine.features import CACHED, prefetch_distance
from ..machine.kernels import kernel
from ..machine.tables import Address, address
from ..machine.target import target
from ..machine.workers import scratch, share_kernel
from ..panels.layout import NEARER

ROWS = 4  # of activations at a time
MOST = 16  # where decoding everything first costs as much
GRAIN = 16  # rows of weights that a thread takes at least


def refuses(problem: ScaledLinear) -> str | None:
    if problem.integer:
        return "it multiplies 8-bit floats"
    if problem.m > MOST:
        return f"it decodes the weights anew for every {ROWS} rows: {MOST} at most"
    return None


@register(__name__, __doc__, arithmetic="codes", accumulate="float32", refuses=refuses, repeats=True)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    a, b = x.matrix(), w.matrix()
    k, n = a.over.columns, b.over.rows
    values = scratch((a.over.rows, k), np.float32)
    decode(a, slice(0, len(values)), values, scaled=False)
    x_scales, w_scales = np.ascontiguousarray(a.scales), np.ascontiguousarray(b.scales)
    for row in range(0, len(values), ROWS):
        rows = min(ROWS, len(values) - row)
        arguments = Lines(
            address(b.codes), b.codes.strides[0], address(w_scales), b.over.r, b.over.c,
            address(values) + 4 * k * row, k, max(1, min(a.over.c, b.over.c)),
            address(x_scales), row, a.over.r, a.over.c,
            address(out) + 4 * n * row, n, _ahead(b),
        )  # fmt: skip
        share_kernel(kernel("scaled_linear._lines.lines", b.code.name, rows, target()), arguments, n, GRAIN)


def _ahead(m: Matrix) -> int:
    """The distance at which weights are prefetched: whole rows, because some are read in parts of K."""
    if not prefetch_distance() or m.codes.nbytes <= CACHED:
        return 0
    rows, pitch = prefetch_distance() // max(m.over.columns, 1) // NEARER * NEARER, int(m.codes.strides[0])
    return max(rows, NEARER) * pitch


class Lines(NamedTuple):
    """Arguments: weights as codes, a few rows of activations as float32, scales of both."""

    codes: Address  # rows of weights
    pitch: int  # bytes from a row to the next
    w_scales: Address  # float32 [bands, tiles of a row]
    w_r: int  # of a tile
    w_c: int
    x: Address  # float32 [rows, k]
    k: int
    group: int  # columns that share both scales
    x_scales: Address  # float32 [bands, tiles of a row]
    x_first: int  # the number of the first row of activations
    x_r: int
    x_c: int
    out: Address  # float32 [rows, n]
    n: int
    ahead: int  # bytes ahead of which weights are prefetched; 0: not at all
