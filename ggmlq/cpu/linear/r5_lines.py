"""With a few rows of activations, multiply each row of weights where it was unpacked.

Changed: no panel. A stretch of one row is unpacked into the first cache, and its bytes, 64 at a
time, meet the same 64 activations.

Why it helps: putting 16 rows together costs more than the products when only a few follow. Formats
whose codes come from a grid keep the file's bytes this way.

Limited by unpacking: a look-up for each four or eight weights, and their signs.
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
from ..panels.layout import LANE
from ..panels.multiply import coding_for_blocks, multiply


def refuses(problem: Linear) -> str | None:
    fmt = problem.format
    if not isinstance(fmt, BlockFormat):
        return f"{fmt.name} has no integer codes"
    if fmt.has_offset or fmt.block_size % LANE or fmt.group > LANE // 2:
        return f"it takes blocks of {LANE} weights or more, scales for 32 or fewer and no offsets"
    return None


@register(
    __name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses, repeats=True, invariant=True
)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    fmt, kind = q.format, target()
    assert isinstance(fmt, BlockFormat)
    raw, how = np.ascontiguousarray(q.raw), coding_for_blocks(fmt, kind)
    multiply(x, raw, out, how, lambda rows: kernel("panels.lines.by_lines", fmt, kind), grain=1, most=1)
