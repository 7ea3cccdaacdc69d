"""Keep each expert's weights in panels, made when it is first used.

Changed: codes lie in panels, with little more than their own bits, as those of ``linear`` do; they stay
with the expert, and ``q[e]`` has the same.

Why it helps: nothing is unpacked through memory. One token meets its experts as fast as their weights can
be read; where an expert has 32 tokens or more, formats that take long to unpack go through bytes.

Limited by the memory's bandwidth with few tokens an expert, by the dot products with many.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.experts import refuses_scaled
from ...dispatch.ladder import register
from ...dispatch.problems import ExpertLinear
from ...formats import BlockFormat
from ...formats.packing import RUN
from ..grouped.multiply import ADDRESSED, Variant, multiply
from ..machine.kernels import kernel
from ..machine.target import target
from ..panels.layout import layout_of, rows_at_once
from ..panels.multiply import panels


def refuses(problem: ExpertLinear) -> str | None:
    if (reason := refuses_scaled(problem)) is not None:
        return reason
    fmt = problem.weights
    if not isinstance(fmt, BlockFormat) or layout_of(fmt) is None:
        return f"{getattr(fmt, 'name', fmt)} has no codes that can be kept one by one: its blocks are read"
    if not (target().shuffles and target().halves):
        return "this CPU has no vector look-up of bytes or no 16-bit floats"
    return None


def variant(q: QuantArray) -> Variant:
    """The kernels that read panels, expanded to bytes for many rows if they take long to unpack."""
    layout, kind = layout_of(q.format), target()
    assert layout is not None
    case = layout, min(rows_at_once(layout, kind), ADDRESSED), kind
    few = many = kernel("grouped.product.direct", *case)
    if layout.offset or len(layout.planes) > 1:
        many = kernel("grouped.product.through_bytes", *case)
    return Variant(layout, panels, layout.panel_bytes(q.shape[-1] // RUN), True, few, many)


def variant_alone(q: QuantArray) -> Variant:
    """The kernels for few rows, for any number: bytes in between add in another order."""
    usual = variant(q)
    return usual._replace(many=usual.few)


def alone(x: Any, q: QuantArray, ids: Any, out: Any) -> None:
    """The products of ``launch`` with sums in one order, however many rows an expert has."""
    multiply(x, q, ids, out, variant_alone)


@register(
    __name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses, repeats=True, invariant=alone
)
def launch(x: Any, q: QuantArray, ids: Any, out: Any) -> None:
    multiply(x, q, ids, out, variant)
