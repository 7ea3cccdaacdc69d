"""One token: activations as integers of 16 bits, so that codes of its experts are multiplied as bytes.

Changed from gemv, as cuda:gemv_int16 of linear is from cuda:gemv: activations become two digits of a byte
each, in columns of ``mma`` that are free (gemv/products.py). Bytes are unpacked with half as many
instructions as floats, which are the limit with one row.

A token's experts are apart, so each block has one row. Limited by the way to the first weights, which depend
on the ids.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.ladder import register
from ....dispatch.problems import ExpertLinear
from ...driver.launch import Kernel, family
from ...kernels.gemv.kernel import experts_kernel
from ...kernels.gemv.launch import multiply_uses, refuses_bytes, refuses_uses
from ...kernels.gemv.stages import FOUR, TWO, ExpertStage
from ...layouts.codes import serves_bytes
from ...layouts.groups import IDS_PER_LANE
from ...layouts.layout import PackedLayout, layouts


@family(
    lambda: (
        (layout, 1, fragment_rows, IDS_PER_LANE[0])
        for layout in layouts()
        if serves_bytes(layout)
        for fragment_rows in (TWO, FOUR)
    )
)
def kernel(layout: PackedLayout, columns: int, fragment_rows: int, ids_per_lane: int) -> Kernel:
    """The kernel for one use of an expert in a block, the only number of ``columns``."""
    stage = ExpertStage.of(layout, columns, fragment_rows)
    return experts_kernel("gemv_int16", stage, ids_per_lane, integers=True)


def refuses(problem: ExpertLinear) -> str | None:
    if (refused := refuses_uses(problem) or refuses_bytes(problem.weights)) is not None:
        return refused
    if problem.t != 1 or problem.u > 32 * IDS_PER_LANE[0]:
        return f"takes one token and up to {32 * IDS_PER_LANE[0]} of its experts"
    return None


@register(__name__, __doc__, arithmetic="int16x", accumulate="int32", refuses=refuses)
def launch(x: Any, q: QuantArray, ids: Any, out: Any, fragment_rows: int | None = None) -> None:
    """``fragment_rows`` of a block: another number than the best."""
    multiply_uses(kernel, x, q, ids, out, fragment_rows)
