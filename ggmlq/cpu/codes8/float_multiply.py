"""The conditions of rung ``cpu:pairs``: a CPU with the dot product of bfloat16, kernels with the package.

Without kernels in the package the rung still serves a call that names it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.scaled import Matrix, ScaledArray
from ...dispatch.problems import ScaledLinear
from ..machine import served
from ..machine.features import compiled_for
from ..machine.kernels import kernel
from ..machine.tables import address
from ..machine.target import AVX512, target
from ..machine.workers import scratch, share_kernel
from .float_layout import ALONG, BAND, ROWS, Cut, Decoding, Operands, cut_of

NEEDED = ("avx512bf16", "avx512vbmi")


def refused() -> str | None:
    """The reason why this process cannot use the dot product of bfloat16, or None."""
    if target() is not AVX512:
        return "it needs AVX-512 with a dot product of bfloat16"
    missing = [name for name in NEEDED if name not in compiled_for()]
    return f"this CPU, or what Numba compiles for, has no {' and no '.join(missing)}" if missing else None


def at_hand(problem: ScaledLinear) -> bool:
    """True if a problem's code came with the package, or if no code of this process did.

    Code that was compiled before does not count: the same product takes the same rung, whatever came first.
    """
    return served.level() is None or all(_came(*case) for case in kernels(problem))


def kernels(problem: ScaledLinear) -> tuple[tuple[str, str], ...]:
    """The names of a problem's kernels, each with the 8-bit code that it is compiled for."""
    multiply = "few" if problem.m <= ALONG else "product"
    return ("codes8.float_decode.row_decoder", problem.x.code), (
        f"codes8.float_{multiply}.sweep",
        problem.w.code,
    )


@cache
def _came(name: str, code: str) -> bool:
    return bool(served.content(kernel(name, code, target()).origin))


# --- Activations of a product of 8-bit floats, as tiles read them: rows of bfloat16, a scale for each run

GRAIN = 16  # rows that a thread takes at least


class XRows(NamedTuple):
    """The activations [M, K] as tiles read them."""

    values: NDArray[np.uint8]  # [m, bytes of a row]
    scales: NDArray[np.float32]  # [m, runs]


def x_rows_of(m: Matrix, cut: Cut, multiple: int = 1) -> XRows:
    """The rows of an array, decoded by all threads, with room for a ``multiple`` of rows."""
    count = m.over.rows
    room = -(-count // multiple) * multiple
    rows = XRows(scratch((room, cut.pitch), np.uint8), scratch((room, cut.groups * cut.runs), np.float32))
    pitch, step = m.scales.strides
    arguments = Decoding(
        *cut, address(m.codes), m.codes.strides[0], m.over.r, m.over.c,
        address(m.scales), pitch, step, address(rows.values), cut.pitch,
        address(rows.scales),
    )  # fmt: skip
    share_kernel(kernel("codes8.float_decode.row_decoder", m.code.name, target()), arguments, count, GRAIN)
    return rows


# --- The driver of rung ``cpu:pairs``, a product of two arrays of 8-bit floats: arguments, kernel,
# threads


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
