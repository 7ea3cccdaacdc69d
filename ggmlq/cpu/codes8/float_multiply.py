"""The driver of rung ``cpu:pairs``, a product of two arrays of 8-bit floats: arguments, kernel, threads."""

from __future__ import annotations

from typing import Any

from ...arrays.scaled import ScaledArray
from ...dispatch.problems import ScaledLinear
from ..machine.kernels import kernel
from ..machine.tables import address
from ..machine.target import target
from ..machine.workers import share_kernel
from .float_activations import x_rows_of
from .float_layout import ALONG, BAND, ROWS, cut_of
from .float_operands import Operands


def multiply(problem: ScaledLinear, x: ScaledArray, w: ScaledArray, out: Any, along: int = ALONG) -> None:
    """``out = x @ w.T``; with up to ``along`` rows of activations sums go along K."""
    if not problem.k:
        out[...] = 0
        return
    cut, a, b = cut_of(problem), x.matrix(), w.matrix()
    rows = x_rows_of(a, cut)
    scales = b.scales.strides
    arguments = Operands(
        *cut, address(b.codes), b.codes.strides[0], b.over.r, b.over.c,
        address(b.scales), scales[0], scales[1],
        address(rows.values), cut.pitch, address(rows.scales),
        problem.m, problem.n, address(out),
        cut.span, cut.together, cut.near,
    )  # fmt: skip
    if problem.m <= along:
        share_kernel(kernel("codes8.float_few.sweep", b.code.name, target()), arguments, problem.n, BAND)
    else:
        share_kernel(
            kernel("codes8.float_product.sweep", b.code.name, target()), arguments, -(-problem.n // ROWS), 2
        )
