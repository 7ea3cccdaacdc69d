"""Activations as 8-bit codes: one product of ``linear`` for each expert, on int8 units.

Changed: the kernels of ``linear`` that are called. Activations become codes again for each expert that
multiplies them.

Limited by the same as the rung below.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.experts import as_linear, expert_by_expert, in_arithmetic
from ....dispatch.ladder import register

# Who computes what: as in r0, with kernels of the arithmetic q8. Floats are gathered, and each product makes
# codes of its rows anew:
#
#     x floats   →  gathered by expert  →  codes, in each product  ·  w[e]  →  out
#
# A row that U experts multiply is quantized U times.


@register(__name__, __doc__, arithmetic="q8", accumulate="int32", refuses=in_arithmetic("q8"))
def launch(x: Any, q: QuantArray, ids: Any, out: Any) -> None:
    expert_by_expert(x, q, ids, out, as_linear("q8"))
