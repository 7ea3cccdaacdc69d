"""One thread an output: each code becomes a number where it is multiplied.

Changed: nothing yet, this is the ground. A thread walks along a row of x and a row of w, group by group
of the columns that share all scales. Integers are summed in int64, floats in float32; then one fused
multiply-add brings in both scales. It takes every code, tile and zero point, at any strides.

Limited by everything: two loads and a decoding for each product, and each sum waits for the one before.
"""

from __future__ import annotations

from itertools import product as combined
from typing import Any

from ....arrays.scaled import ScaledArray
from ....codes import CODES, Code
from ....dispatch.ladder import register
from ....dispatch.problems import ScaledLinear
from ...driver.launch import Kernel, array, family
from ...intrinsics import ptx
from ...intrinsics.atoms import verb
from ...intrinsics.language import cuda, float32, int64, uint32
from .operands import operands, too_many_rows, types_of_operands

SIDE = 16  # threads along one side of a block
KINDS = [[c for c in CODES.values() if c.kind == kind] for kind in ("integer", "float")]
PAIRS = [pair for kind in KINDS for pair in combined(kind, kind)]


# Who computes what: a block of 16 × 16 threads has 16 × 16 outputs, a thread one. K is cut into groups of
# columns within which no scale changes; the thread ends a sum with each group, and scales it.
#
#     x[m]    q q q q q q q q | q q q q q q q q | …        codes, and zero points where there are some
#     scales  sa              | sa'             | …        one for ra rows × ca columns
#             ×                 ×
#     w[n]    q q q q q q q q | q q q q q q q q | …
#     scales  sb (for rb × cb: here two groups) | …        group = the smaller of ca and cb
#             ---- whole ----   ---- whole ----            total += whole · (sa · sb)


@family((a, b, zeros) for a, b in PAIRS for zeros in ((False, True) if a.kind == "integer" else (False,)))
def kernel(code_a: Code, code_b: Code, zeros: bool) -> Kernel:
    value_a, value_b, fma, mul = verb(code_a.value), verb(code_b.value), ptx.fma, ptx.mul
    integer = code_a.kind == "integer"

    def naive(
        qa: Any, sa: Any, za: Any, qb: Any, sb: Any, zb: Any,
        y: Any,  # float32 [m, n]
        ra: Any, ca: Any, rb: Any, cb: Any,  # rows and columns that share a scale
        group: Any,
    ) -> None:  # fmt: skip
        n = cuda.blockIdx.x * SIDE + cuda.threadIdx.x
        m = cuda.blockIdx.y * SIDE + cuda.threadIdx.y
        # Squares at the edge stick out of y; whoever is outside must neither read nor write.
        if m < y.shape[0] and n < y.shape[1]:
            total = float32(0)
            for start in range(0, qa.shape[1], group):
                stop = min(int64(start) + int64(group), qa.shape[1])
                # Zero points are constant within a group as scales are: looked up once.
                from_a = from_b = int64(0)
                if zeros:
                    from_a, from_b = int64(za[m // ra, start // ca]), int64(zb[n // rb, start // cb])
                # Both kinds of sums stand here, and the compiler drops the one that these codes do not use.
                # A sum of int64 holds every K: nothing is rounded before the scales.
                whole, real = int64(0), float32(0)
                for k in range(start, stop):
                    if integer:
                        whole += (int64(qa[m, k]) - from_a) * (int64(qb[n, k]) - from_b)
                    else:
                        real = fma(value_a(qa[m, k]), value_b(qb[n, k]), real)
                scale = mul(sa[m // ra, start // ca], sb[n // rb, start // cb])
                total = fma(float32(whole) if integer else real, scale, total)
            y[m, n] = total

    parts = types_of_operands(code_a, code_b)
    name = f"naive {code_a.name} {code_b.name}{', zeros' if zeros else ''}"
    return Kernel(name, naive, *parts, array(float32, 2), *(uint32,) * 5, threads=SIDE * SIDE)


def refuses(problem: ScaledLinear) -> str | None:
    if problem.accumulate in ("fp32_chunks", "float32" if problem.integer else "int32"):
        return f"it sums in {'int64' if problem.integer else 'float32'}"
    return too_many_rows(problem, SIDE)


@register(__name__, __doc__, arithmetic="codes", accumulate="int64, float32", refuses=refuses)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    both = operands(x, w)
    m, n = out.shape
    grid = (-(-n // SIDE), -(-m // SIDE))
    kernel(x.code, w.code, both.zeros)(grid, (SIDE, SIDE), *both.parts, out, *both.shared, both.group)
