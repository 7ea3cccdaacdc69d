"""Codes with scales: one product of ``scaled_linear`` for each expert that is used.

Changed: rows and weights are codes; each row is quantized once, before it is gathered.

Limited by its many small launches, and by the wait for where each expert's tokens begin.
"""

from __future__ import annotations

from typing import Any

from ....arrays.scaled import ScaledArray
from ....dispatch.experts import as_scaled_linear, expert_by_expert, refuses_blocks
from ....dispatch.ladder import register

# Who computes what: as in r0, with one product of ``scaled_linear`` an expert. Rows are gathered as bytes:
#
#     x floats  →  codes, scales   once a row, whatever the number of its experts
#                    ↓ gathered by expert
#                  codes [M, K] · w[e] codes [N, K]ᵀ, times both scales  →  out


@register(__name__, __doc__, arithmetic="codes", accumulate="as scaled_linear", refuses=refuses_blocks)
def launch(x: ScaledArray, q: ScaledArray, ids: Any, out: Any) -> None:
    expert_by_expert(x, q, ids, out, as_scaled_linear)
