"""All experts in one job: 16 rows of an expert are unpacked in the cache and meet all of its tokens.

Changed: activations become 8-bit codes once a token, not once a use, and stay where they are: tiles read
rows by their addresses. Panels of all experts are counted through and shared by the threads in work units
of equal cost.

Why it helps: nothing is gathered or put back, threads are woken once, and neither an expert with one token
nor one with half of them all leaves a thread without work.

Limited by unpacking where an expert has few tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.experts import refuses_scaled
from ...dispatch.ladder import register
from ...dispatch.problems import ExpertLinear
from ...formats import BlockFormat
from ..grouped.multiply import ADDRESSED, Variant, multiply
from ..machine.kernels import kernel
from ..machine.target import target
from ..panels.layout import rows_at_once, unpacked


def refuses(problem: ExpertLinear) -> str | None:
    if (reason := refuses_scaled(problem)) is not None:
        return reason
    fmt = problem.weights
    return None if isinstance(fmt, BlockFormat) else f"{getattr(fmt, 'name', fmt)} has no integer codes"


def variant(q: QuantArray) -> Variant:
    """The kernels that read blocks as the file has them, for any number of rows."""
    fmt, kind = q.format, target()
    assert isinstance(fmt, BlockFormat)
    layout = unpacked(fmt, kind)
    work = kernel("grouped.product.from_blocks", fmt, min(rows_at_once(layout, kind), ADDRESSED), kind)
    return Variant(layout, blocks, fmt.row_bytes(q.shape[-1]), False, work, work)


def blocks(matrix: QuantArray) -> Any:
    """An expert's rows of blocks, uint8."""
    return np.ascontiguousarray(matrix.raw)


@register(
    __name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses, repeats=True, invariant=True
)
def launch(x: Any, q: QuantArray, ids: Any, out: Any) -> None:
    multiply(x, q, ids, out, variant)
