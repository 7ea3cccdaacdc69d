"""Each code becomes a number where it is multiplied, one element after the other.

Changed: nothing yet, this is the ground. It says what a product of codes with scales is, for every
code, every tile and every K: a sum for each group of K that shares its scales, exact for integers, and
then one fused multiply-add of that sum, as float32, with the product of both scales.

Limited by everything: each code is looked up again for every product, and each addition waits for the
one before.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...arrays.scaled import ScaledArray
from ...base.threads import share
from ...codes import Code
from ...dispatch.ladder import register
from ...dispatch.problems import ScaledLinear
from ..atoms import verb
from ..machine.jit import jit


def refuses(problem: ScaledLinear) -> str | None:
    if problem.accumulate in ("fp32_chunks", "float32" if problem.integer else "int32"):
        return f"it sums in {'int64' if problem.integer else 'float32'}"
    return None


@register(__name__, __doc__, arithmetic="codes", accumulate="int64, float32", refuses=refuses, invariant=True)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    a, b = x.matrix(), w.matrix()
    group = max(1, min(a.over.c, b.over.c))
    zero = np.zeros((1, 1), np.int32)
    operands = [
        part
        for m in (a, b)
        for part in (
            np.ascontiguousarray(m.codes),
            np.ascontiguousarray(m.scales),
            zero if m.zeros is None else np.ascontiguousarray(m.zeros, np.int32),
            (m.over.r, m.over.c),
        )
    ]
    multiply = kernel(a.code, b.code, a.zeros is not None, b.zeros is not None)
    share(lambda first, stop: multiply(*operands, out, group, first, stop), b.over.rows)


@cache
def kernel(code_a: Code, code_b: Code, zeros_a: bool, zeros_b: bool) -> Any:
    """The compiled product of two matrices, for two codes, with or without zero points."""
    from ..machine.intrinsics import fma  # Numba's names: only for a process that compiles

    value_a, value_b = verb(code_a.value), verb(code_b.value)
    integer = code_a.kind == "integer"

    def multiply(
        qa: Any, sa: Any, za: Any, ta: Any, qb: Any, sb: Any, zb: Any, tb: Any,
        out: Any, group: int, first: int, stop: int,
    ) -> None:  # fmt: skip
        (ra, ca), (rb, cb) = ta, tb
        for n in range(first, stop):
            for m in range(qa.shape[0]):
                total = np.float32(0)
                for start in range(0, qa.shape[1], group):
                    za_here = np.int64(za[m // ra, start // ca]) if zeros_a else np.int64(0)
                    zb_here = np.int64(zb[n // rb, start // cb]) if zeros_b else np.int64(0)
                    whole, real = np.int64(0), np.float32(0)
                    for k in range(start, min(start + group, qa.shape[1])):
                        if integer:
                            a, b = np.int64(qa[m, k]) - za_here, np.int64(qb[n, k]) - zb_here
                            whole += a * b
                        else:
                            real += value_a(qa[m, k]) * value_b(qb[n, k])
                    scale = sa[m // ra, start // ca] * sb[n // rb, start // cb]
                    total = fma(np.float32(whole) if integer else real, scale, total)
                out[m, n] = total

    return jit(multiply)
