"""Activations as bfloat16: one product of ``linear`` for each expert, on the weights' own bits.

Changed: the kernels of ``linear`` that are called: with few rows an expert they read its weights once, at
the speed of the memory.

Limited by the same as the rungs below.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.experts import as_linear, expert_by_expert, in_arithmetic
from ....dispatch.ladder import register

# Who computes what: as in r0, with kernels that multiply in bfloat16 and read packed weights:
#
#     x floats   →  gathered by expert  →  bfloat16, in each product  ·  w[e], the file's bits  →  out
#
# With a few rows an expert a product takes the time of reading w[e], which is why the bits count.


@register(__name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=in_arithmetic("bf16x"))
def launch(x: Any, q: QuantArray, ids: Any, out: Any) -> None:
    expert_by_expert(x, q, ids, out, as_linear("bf16x"))
