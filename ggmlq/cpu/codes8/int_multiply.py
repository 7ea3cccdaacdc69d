"""The driver of ``scaled_linear``'s rung ``cpu:tiles``, for 8-bit integers: arguments, kernel, threads."""

from __future__ import annotations

from typing import Any

from ...arrays.scaled import ScaledArray
from ...dispatch.problems import ScaledLinear
from ..machine.kernels import kernel
from ..machine.tables import address
from ..machine.target import target
from ..machine.workers import share_kernel
from ..panels.layout import ROWS_AT_ONCE
from .int_activations import x_rows_of
from .int_layout import FEW, ROWS, cut_of, form_of, w_shift, x_shift
from .int_operands import Operands
from .int_weights import maker


def multiply(problem: ScaledLinear, x: ScaledArray, w: ScaledArray, out: Any) -> None:
    """``out = x @ w.T``, for codes that tiles take."""
    if not problem.k:
        out[...] = 0
        return
    kind, cut = target(), cut_of(problem)
    form, shift = form_of(problem, kind), w_shift(problem.w, kind)
    panels = w.prepared(maker(cut, form, shift))
    nbytes, at, w_scales, w_zeros, w_sums = panels.at
    rows = x_rows_of(x.matrix(), cut, form, x_shift(problem.x), shift, problem.n)
    arguments = Operands(
        nbytes, at, w_scales, w_zeros, w_sums,
        address(rows.codes), rows.codes.strides[0], address(rows.scales),
        0 if rows.zeros is None else address(rows.zeros), address(rows.sums),
        problem.m, problem.n, address(out), cut.groups, cut.chunks, cut.fours,
    )  # fmt: skip
    most = ROWS_AT_ONCE[kind.registers]
    if problem.m < FEW:
        most = min(most, 1 if problem.m == 1 else 2)
    share_kernel(kernel("codes8.int_product.sweep", form, most, kind), arguments, -(-problem.n // ROWS), 2)
