"""Mistakes in one term of a product that the doctor imitates: kernels sum codes and take constants off apart.

    y = Σ over groups: scale·Σ stored·x  -  (zero·scale + offset)·Σ x

The scales of the first term may be wrong while those of the second are right; sums may meet the wrong minima.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...formats import BlockFormat
from ..explanation import Mistake
from ..numbers import Index
from . import orders
from .operand import Operand


def one_term(fmt: BlockFormat, right: Operand) -> Iterator[Mistake[Operand]]:
    """Weights with a mistake in one term alone, for super-blocks with constants."""
    groups = fmt.block_size // fmt.group
    if groups == 1 or not (fmt.zero or fmt.has_offset):
        return
    for name, order in orders.group_orders(groups):
        if fmt.zero:
            words = f"in the main sum alone, {name}"
            yield Mistake("sub-scale-order", words, main_scales(right, groups, order))
        if fmt.zero or len(set(order.tolist())) < groups:  # else it is the minima that are in another order
            yield Mistake("sum-order", f"{name}: {in_words(order)}", wrong_sums(right, groups, order))


def main_scales(right: Operand, groups: int, order: Index) -> Operand:
    """Weights with the scales of codes in another order, and those of the constant in the right one."""
    taken = right.scale.reshape(-1, groups)[:, order].reshape(right.scale.shape)
    return right.but(scale=taken, offset=right.offset + right.zero * (right.scale - taken))


def wrong_sums(right: Operand, groups: int, order: Index) -> Operand:
    """Weights where the constant of group g is multiplied with the sum of group order[g]."""
    constant = (right.zero * right.scale + right.offset).reshape(-1, groups)
    met = np.zeros_like(constant)
    for g, taken in enumerate(order.tolist()):
        met[:, taken] += constant[:, g]
    return right.but(offset=right.offset + (met - constant).reshape(right.offset.shape))


def in_words(order: Index) -> str:
    """Words for groups that take the sums of others, neighbours together."""
    runs: list[list[tuple[int, int]]] = []
    for g, to in enumerate(order.tolist()):
        if runs and runs[-1][-1] == (g - 1, to - 1):
            runs[-1].append((g, to))
        elif g != to:
            runs.append([(g, to)])
    words = []
    for (a, b), *_, (c, d) in ([run[0], *run] for run in runs[:4]):
        several = f"groups {a} to {c} take those of {b} to {d}"
        words.append(f"group {a} takes that of {b}" if a == c else several)
    return ", ".join(words) + (" …" if len(runs) > 4 else "")
