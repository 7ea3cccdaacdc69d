"""Gather the rows of each expert, multiply them as one product of ``linear`` in float32.

Changed: nothing yet, this is the ground. It serves every format, the float ones too.

Limited by its many small launches, and by the wait for where each expert's tokens begin.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.experts import as_linear, expert_by_expert, in_arithmetic
from ....dispatch.ladder import register

# Who computes what: tokens choose experts, so rows of one expert lie anywhere. They are sorted, and each
# expert that is used is one product of ``linear``:
#
#     ids [T, U]     uses by expert       gathered rows     product              scattered
#     0: 2 0         expert 0: 0.1 1.0    x[0] x[1]    ·    w[0]ᵀ   →  y         out[0, 1], out[1, 0]
#     1: 0 1         expert 1: 1.1        x[1]         ·    w[1]ᵀ   →  y         out[1, 1]
#                    expert 2: 0.0        x[0]         ·    w[2]ᵀ   →  y         out[0, 0]
#
# Sorting happens on the device; but where each expert's rows begin, the host must know to launch products of
# that many rows. So it waits there, and no CUDA graph can record it.


@register(__name__, __doc__, arithmetic="f32", accumulate="f32", refuses=in_arithmetic("f32"))
def launch(x: Any, q: QuantArray, ids: Any, out: Any) -> None:
    expert_by_expert(x, q, ids, out, as_linear("f32"))
