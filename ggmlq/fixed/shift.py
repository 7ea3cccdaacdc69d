"""The rounding shift of fixed-point codes: an integer times 2^-n, ties away from zero.

    n <= 0    v · 2^-n, exact
    n > 0     sign(v) · ((|v| + 2^(n-1)) >> n)

A shift that only cuts bits off rounds towards minus infinity: every term of a sum is then half a code too
small, always in the same direction, and a recurrent network adds that up. So shifts here always round.

Kernels compute the same in a form without branches, where n differs from lane to lane:

    ((v << left) + half + ((v >> TOP) & negative)) >> right

For n > 0 left is 0, half 2^(n-1) and negative -1, which takes 1 off where v < 0: floor((v + half - 1) / 2^n)
is the half rounded away from zero there. For n <= 0 half, negative and right are 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TOP = 63  # the bit of the sign; kernels on 32 bits replace it


def rounding_shift(v: int, n: int) -> int:
    """Atom: an integer times 2^-n for any n, ties away from zero.

    >>> [rounding_shift(v, n) for v, n in ((5, 1), (-5, 1), (4, 3), (-4, 3), (-3, 3), (7, -2))]
    [3, -3, 1, -1, 0, 28]
    """
    if n <= 0:
        return v << -n
    size = (abs(v) + (1 << (n - 1))) >> n
    return -size if v < 0 else size


def shifted(v: Any, left: Any, half: Any, negative: Any, right: Any) -> Any:
    """Atom: the rounding shift of an integer or a vector, by the numbers of :class:`Amounts`."""
    return ((v << left) + half + ((v >> TOP) & negative)) >> right


class Amounts(NamedTuple):
    """Operands of :func:`shifted`, numbers or arrays."""

    left: Any
    half: Any
    negative: Any
    right: Any


def amounts(n: Any, top: int = TOP) -> Amounts:
    """Operands for shifts by n; shifts by more than ``top`` give 0, as long as |v| is below 2^(top - 1)."""
    n = np.asarray(n, np.int64)
    right = np.clip(n, 0, top)
    half = np.where(right > 0, np.left_shift(np.int64(1), np.maximum(right - 1, 0)), 0)
    return Amounts(np.maximum(-n, 0), half, np.where(right > 0, -1, 0), right)


def shifted_array(v: Any, n: Any) -> NDArray[np.int64]:
    """The rounding shift of whole int64 arrays by any n, which is broadcast. Results must fit int64."""
    v, n = np.asarray(v, np.int64), np.asarray(n, np.int64)
    right = np.minimum(np.maximum(n, 1), TOP - 1)
    size = np.abs(v)
    down = (size >> right) + ((size >> (right - 1)) & 1)  # the same without a sum that could pass int64
    up = v << np.minimum(np.maximum(-n, 0), TOP)
    result: NDArray[np.int64] = np.where(n <= 0, up, np.sign(v) * np.where(n < TOP, down, 0))
    return result
