"""One token times the gates of its experts and what they let through, in one launch: ``act(gate) · up``.

The frame of cuda:gemv_int16 for experts, with rows of both matrices of an expert in a block (gemv/gated.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....arrays.array import QuantArray
from ....dispatch.card import Card
from ....formats import BlockFormat
from ...driver import device
from ...driver.launch import Kernel, family
from ...layouts.codes import serves_bytes
from ...layouts.floats import aligned_floats
from ...layouts.groups import IDS_PER_LANE
from ...layouts.layout import ROWS, PackedLayout, layout_of, layouts
from ...layouts.pack import LONGEST, packed_weights
from ..gemv import digits
from ..gemv.stages import FOUR, TWO, WIDE
from ..layers import GATES, numbered_gating
from .gemv import SPAN, experts_kernel, fragment_rows_for, stage_for


@family(
    lambda: (
        (layout, fragment_rows)
        for layout in layouts()
        if serves_bytes(layout)
        for fragment_rows in (TWO, FOUR)
    )
)
def kernel(layout: PackedLayout, fragment_rows: int) -> Kernel:
    """The kernel: block (use, 16 or 32 outputs of its expert)."""
    stage = stage_for(layout, 1, fragment_rows)
    multiply, gather = digits.multiplier(stage), digits.gatherer(stage)
    word = "gated gemv_int16"
    return experts_kernel(word, stage, IDS_PER_LANE[0], multiply, gather, numbered_gating())


def of_stack(
    activation: str, x: Any, q: QuantArray, ids: Any, card: Card | None, fragment_rows: int | None = None
) -> Any:
    """The products [1, U, N] of one token with experts [E, 2 N, K], gates over the others, then the gate.

    None where one launch does not serve them. ``fragment_rows`` of a block: another number than the best.
    """
    (e, both, k), (tokens, uses), fmt = q.shape, ids.shape, q.format
    if not isinstance(fmt, BlockFormat) or not serves_bytes(layout_of(fmt)) or q.scale is not None:
        return None
    if card is None or card.capability != WIDE or tokens != 1 or not 0 < uses <= 32 * IDS_PER_LANE[0]:
        return None
    if both % (2 * ROWS) or not (e and 0 < k <= LONGEST) or activation not in GATES:
        return None
    w, n, x, xp = packed_weights(q), both // 2, aligned_floats(x), device.cupy()
    fragment_rows = fragment_rows or fragment_rows_for(uses, both, device.multiprocessors())
    make, out = kernel(w.layout, fragment_rows), xp.empty((1, uses, n), np.float32)
    count, steps, _ = w.fragments.shape
    sizes = uses, uses * k // x.size, e, count // e, n, k, steps // SPAN
    make(
        (uses, -(-both // (fragment_rows * ROWS))), (make.threads,), w.fragments, w.fragments[n // ROWS :], x,
        xp.ascontiguousarray(ids, np.int64), out, GATES.index(activation), *sizes,
    )  # fmt: skip
    return out
