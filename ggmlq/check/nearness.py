"""Results that are nearer to float64 than a known arithmetic: nobody may call them wrong for that.

A mistake on top of an arithmetic moves a result away from exact values. So where all errors together are far
smaller than the arithmetic's own, and none is larger than its usual ones, the kernel is more exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import reference
from ..arrays.array import QuantArray
from ..errors import UnsupportedError
from .elements import energy_of

OTHER = "other"  # the name of an arithmetic that is not known
SHARE = 0.5  # of an arithmetic's squared error, that a nearer result has at most
EIGHT_BITS = 1e-5  # the usual squared error of 8-bit codes, where an arithmetic overflows everywhere
LUCK = 24.0  # by the length of a group: how far the few errors of a short one may lie above the usual

Wide = NDArray[np.float64]


def is_nearer(y: NDArray[Any], known: Wide, exact: Wide, sizes: Wide, axis: int) -> bool:
    """True where y is nearer to exact values than a known arithmetic is, in each group along an axis too.

    ``sizes``: the square that each element is expected to have, by which the usual error is measured.
    """
    here = np.isfinite(exact)
    if not np.array_equal(np.isfinite(y), here):
        return False
    here = here & np.isfinite(known)
    with np.errstate(all="ignore"):
        theirs, ours = (np.where(here, (one - exact) ** 2, 0.0) for one in (known, y))
        beyond = np.where(~here & np.isfinite(exact), (y - exact) ** 2, 0.0)  # where it overflows
        size = np.where(np.isfinite(exact), sizes, 0.0).sum(axis=axis)
        a, b = theirs.sum(axis=axis), ours.sum(axis=axis)
        counted = here.all(axis=axis) & (size > 0)
        usual = np.median((a / size)[counted]) if counted.any() else EIGHT_BITS
        most = np.maximum(a, usual * size * (1 + LUCK / y.shape[axis]))
    return bool(b.sum() <= SHARE * a.sum() and (b + beyond.sum(axis=axis) <= most).all())


def product_is_nearer(y: Any, x: Any, q: QuantArray, arithmetics: Sequence[str]) -> bool:
    """True where a product y [M, N] of x [M, K] and q [N, K] is so for each row of weights.

    It is compared with the first of these arithmetics in which such weights are multiplied at all.
    """
    for name in arithmetics:
        if reference.ONE_TYPE.get(name, q.format.name) != q.format.name:
            continue
        try:
            known = reference.linear(x, q, name)
        except UnsupportedError:
            continue
        exact = reference.linear(x, q, "exact")
        return is_nearer(np.asarray(y, np.float64), known, exact, energy_of(x, q), 0)
    return False
