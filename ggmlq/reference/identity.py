"""The product that oracles share, by one identity: operands are scales times codes less zero points.

    Σ Sa(qa - Za) · Sb(qb - Zb)  =  Sa·Sb·(Σ qa·qb - Za·Σ qb - Zb·Σ qa + n·Za·Zb)

With a scale S for each group of codes, and the offset O = S·Z (of a block format, or of a zero point), it
reads

    Σ a·b  =  Σ (Sa·qa)·(Sb·qb)  -  Oa·Σ Sb·qb  -  Ob·Σ Sa·qa  +  n·Oa·Ob

So each offset is multiplied with a sum of the *other* operand: -8·s of q4_0, the minima of K types, the
zero point of INT8 activations. Block formats and scaled arrays both come here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]
SMALL = 1 << 23  # terms of a product


class Planar(NamedTuple):
    """An operand as scaled codes, offsets of groups, and sums of groups."""

    scaled: Wide  # [rows, K]: codes times their scale
    offset: Wide | None  # [rows, groups]: scale times zero point
    sums: Wide | None  # [rows, groups]: of ``scaled``, or what a program takes for them


def times(a: Wide, b: Wide) -> Wide:
    """``a @ b.T``; small products without BLAS, whose threads would have to wait on a busy machine."""
    small = len(a) * b.size <= SMALL
    products: Wide = np.einsum("mk,nk->mn", a, b) if small else a @ b.T
    return products


def product(a: Planar, b: Planar, lengths: Any = 0) -> Wide:
    """``a @ b.T`` in float64; ``lengths`` of the groups, where both have offsets."""
    y = times(a.scaled, b.scaled)
    if b.offset is not None:
        assert a.sums is not None
        y -= times(a.sums, b.offset)
    if a.offset is not None:
        assert b.sums is not None
        y -= a.offset @ b.sums.T
        if b.offset is not None:
            y += (a.offset * lengths) @ b.offset.T
    return y
