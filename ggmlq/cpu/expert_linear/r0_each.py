"""Gather the rows of each expert, multiply them as one product of ``linear``, put the results back.

Changed: nothing yet, this is the ground. A mixture is some ordinary products, one for each expert that is
used; sorting the tokens by expert is all that it adds.

Why it helps: an expert's weights are decoded once for all of its rows. It serves every format, the float
ones too, and sums in float32.

Limited by what happens between the products: each gathers rows, starts threads and waits for them, and
with few rows an expert most of the time goes into decoding.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.experts import as_linear, expert_by_expert, refuses_scaled
from ...dispatch.ladder import register


def alone(x: Any, q: QuantArray, ids: Any, out: Any) -> None:
    """The products of ``launch`` by kernels whose rows do not depend on each other."""
    expert_by_expert(x, q, ids, out, as_linear("f32", invariant=True))


@register(__name__, __doc__, arithmetic="f32", accumulate="f32", refuses=refuses_scaled, invariant=alone)
def launch(x: Any, q: QuantArray, ids: Any, out: Any) -> None:
    expert_by_expert(x, q, ids, out, as_linear("f32"))
