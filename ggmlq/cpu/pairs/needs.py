"""Whether this process may use the dot product of bfloat16, and whether code for it is there already."""

from __future__ import annotations

from ...problems import ScaledLinear
from ..machine.features import compiled_for
from ..machine.kernels import kernel
from ..machine.target import AVX512, target
from ..prebuilt import served

NEEDED = ("avx512bf16", "avx512vbmi")


def refused() -> str | None:
    """Why not, or None."""
    if target() is not AVX512:
        return "it needs AVX-512 with a dot product of bfloat16"
    missing = [name for name in NEEDED if name not in compiled_for()]
    return f"this CPU, or what Numba compiles for, has no {' and no '.join(missing)}" if missing else None


def at_hand(problem: ScaledLinear) -> bool:
    """Whether nobody has to wait for a compiler, or has to for all other kernels as well."""
    if served.level() is None:
        return True
    kind = target()
    needed = ("pairs.lay.taker", problem.x.code, kind), ("pairs.product.sweep", problem.w.code, kind)
    return all(kernel(*each).at_hand for each in needed)
