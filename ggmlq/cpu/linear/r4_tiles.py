"""Unpack 16 rows to bytes in the cache, multiply them with the CPU's integer dot product.

Changed: activations become 8-bit codes once, and weights of any format become bytes, four
neighbours of 16 rows to a vector. One instruction then adds 64 products, and a register tile of 16
rows of weights and 12 of activations uses every vector twelve times.

Why it helps: 64 multiply-adds an instruction instead of the 16 of float32, without a decoded copy.

Limited by unpacking when there are few rows of activations; with many by the dot products
themselves, and by the two multiplications of scales that go with eight of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ...formats import BlockFormat
from ..machine.kernels import kernel
from ..machine.target import target
from ..panels.multiply import coding_for_blocks, multiply


def refuses(problem: Linear) -> str | None:
    if not isinstance(problem.format, BlockFormat):
        return f"{problem.format.name} has no integer codes"
    return None


@register(
    __name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses, repeats=True, invariant=True
)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    fmt, kind = q.format, target()
    assert isinstance(fmt, BlockFormat)
    raw = np.ascontiguousarray(q.raw)
    how = coding_for_blocks(fmt, kind)
    multiply(x, raw, out, how, lambda rows: kernel("panels.product.from_blocks", fmt, rows, kind))
