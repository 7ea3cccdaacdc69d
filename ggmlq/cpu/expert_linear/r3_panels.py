"""Keep each expert's weights in panels, made when it is first used.

Changed: codes lie in panels, with little more than their own bits, as those of ``linear`` do; they stay
with the expert, and ``q[e]`` has the same.

Why it helps: nothing is unpacked through memory. One token meets its experts as fast as their weights can
be read; where an expert has 32 tokens or more, formats that take long to unpack go through bytes.

Limited by the memory's bandwidth with few tokens an expert, by the dot products with many.
"""

from __future__ import annotations

from typing import Any

from ...array import QuantArray
from ...experts import of_arrays
from ...formats import BlockFormat
from ...ladder import register
from ...problems import ExpertLinear
from ..machine.target import target
from ..panels.grouped import by_panels, multiply
from ..panels.layout import layout_of
from ..panels.prepare import panels


def refuses(problem: ExpertLinear) -> str | None:
    if (reason := of_arrays(problem)) is not None:
        return reason
    fmt = problem.weights
    if not isinstance(fmt, BlockFormat) or layout_of(fmt) is None:
        return f"{getattr(fmt, 'name', fmt)} has no codes that can be kept one by one: its blocks are read"
    if not (target().shuffles and target().halves):
        return "this CPU has no vector look-up of bytes or no 16-bit floats"
    return None


@register(__name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses)
def launch(x: Any, q: QuantArray, ids: Any, out: Any) -> None:
    layout, kind = layout_of(q.format), target()
    assert layout is not None
    multiply(
        x, q, ids, out, layout, lambda matrix: matrix.prepared(panels),
        lambda rows, most: by_panels(layout, rows, most, kind),
    )  # fmt: skip
