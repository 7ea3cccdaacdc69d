"""The conditions of rung ``cpu:pairs``: a CPU with the dot product of bfloat16, kernels with the package.

Without kernels in the package the rung still serves a call that names it.
"""

from __future__ import annotations

from functools import cache

from ...dispatch.problems import ScaledLinear
from ..machine import served
from ..machine.features import compiled_for
from ..machine.kernels import kernel
from ..machine.target import AVX512, target
from .float_layout import ALONG

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
