"""All experts in one job: 16 rows of an expert are unpacked in the cache and meet all of its tokens.

Changed: activations become 8-bit codes once a token, not once a use, and stay where they are: tiles read
rows by their addresses. Panels of all experts are counted through and shared by the threads in pieces of
equal cost.

Why it helps: nothing is gathered or put back, threads are woken once, and neither an expert with one token
nor one with half of them all leaves a thread without work.

Limited by unpacking where an expert has few tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...array import QuantArray
from ...experts import of_arrays
from ...formats import BlockFormat
from ...ladder import register
from ...problems import ExpertLinear
from ..machine.target import target
from ..panels.grouped import by_blocks, multiply
from ..panels.layout import unpacked


def refuses(problem: ExpertLinear) -> str | None:
    if (reason := of_arrays(problem)) is not None:
        return reason
    fmt = problem.weights
    return None if isinstance(fmt, BlockFormat) else f"{getattr(fmt, 'name', fmt)} has no integer codes"


@register(__name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses)
def launch(x: Any, q: QuantArray, ids: Any, out: Any) -> None:
    fmt, kind = q.format, target()
    assert isinstance(fmt, BlockFormat)
    multiply(
        x, q, ids, out, unpacked(fmt, kind), lambda matrix: np.ascontiguousarray(matrix.raw),
        lambda rows, most: by_blocks(fmt, rows, kind),
    )  # fmt: skip
