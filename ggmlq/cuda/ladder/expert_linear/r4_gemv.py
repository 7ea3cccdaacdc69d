"""A few tokens: one kernel, whose blocks read ids themselves and their experts' weights once.

Changed: no expert is a product of its own, and nothing is looked at on the host. The kernel is that of
cuda:gemv of linear, with a block for each use of an expert and 32 or 64 of its rows; tokens that share an
expert are served by one block (layouts/groups.py). So a projection of a mixture is one launch, and can be
recorded in a CUDA graph. The packed weights of all experts lie one after the other (layouts/pack.py).

Blocks have 8 warps, and several of them share a multiprocessor: with eight experts there are more
blocks than multiprocessors, and while one waits for its ids another reads.

Limited by the way to the first weights, which depend on the ids: start, ids,
weights, sums are four waits, and small experts are read in little more time than one.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.ladder import register
from ...driver.launch import Kernel, family
from ...kernels.gemv.kernel import experts_kernel
from ...kernels.gemv.launch import multiply_uses, refuses_uses
from ...kernels.gemv.stages import FOUR, TWO, USE_COLUMNS, ExpertStage
from ...layouts.groups import IDS_PER_LANE
from ...layouts.layout import PackedLayout, layouts

CASES = [  # columns, fragment rows of a block, ids of a lane
    (columns, fragment_rows, ids_per_lane)
    for columns in USE_COLUMNS
    for fragment_rows in (TWO, FOUR)
    for ids_per_lane in (IDS_PER_LANE if columns == USE_COLUMNS[-1] else IDS_PER_LANE[:1])
]


@family(lambda: ((layout, *case) for layout in layouts() for case in CASES))
def kernel(layout: PackedLayout, columns: int, fragment_rows: int, ids_per_lane: int) -> Kernel:
    """The kernel for up to ``columns`` uses of an expert in a block."""
    return experts_kernel("gemv", ExpertStage.of(layout, columns, fragment_rows), ids_per_lane)


@register(__name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=refuses_uses)
def launch(x: Any, q: QuantArray, ids: Any, out: Any, fragment_rows: int | None = None) -> None:
    """``fragment_rows`` of a block: another number than the best."""
    multiply_uses(kernel, x, q, ids, out, fragment_rows)
