"""Gather the rows of each expert, multiply them as one product of ``linear`` in float32.

Changed: nothing yet, this is the ground. It serves every format, the float ones too.

Limited by its many small launches, and by the wait for where each expert's tokens begin.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.experts import as_linear, expert_by_expert, in_arithmetic
from ...dispatch.ladder import register


@register(__name__, __doc__, arithmetic="f32", accumulate="f32", refuses=in_arithmetic("f32"))
def launch(x: Any, q: QuantArray, ids: Any, out: Any) -> None:
    expert_by_expert(x, q, ids, out, as_linear("f32"))
