"""Multiply codes with scales by one product of ``scaled_linear`` for each expert that is used.

Changed: rows and weights are codes; each row is quantized once, before it is gathered. What the kernels of
``scaled_linear`` keep of an expert's matrix stays with the experts.

Why it helps: integers are multiplied as integers, and floats of 8 bits are decoded once for all rows of an
expert.

Limited by what cpu:each is: products come one after the other, each with a start and an end of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ...arrays.scaled import ScaledArray
from ...dispatch.experts import as_scaled_linear, expert_by_expert, refuses_blocks
from ...dispatch.ladder import register


def alone(x: ScaledArray, q: ScaledArray, ids: Any, out: Any) -> None:
    """The products of ``launch`` by kernels whose rows do not depend on each other."""
    expert_by_expert(x, q, ids, out, partial(as_scaled_linear, invariant=True))


@register(
    __name__,
    __doc__,
    arithmetic="codes",
    accumulate="as scaled_linear",
    refuses=refuses_blocks,
    invariant=alone,
)
def launch(x: ScaledArray, q: ScaledArray, ids: Any, out: Any) -> None:
    expert_by_expert(x, q, ids, out, as_scaled_linear)
