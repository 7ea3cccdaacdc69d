"""Results that no known arithmetic explains, and that are right: nearer to float64, or sums in halves.

A mistake on top of an arithmetic moves a result away from exact values. So where all errors together are
far smaller than the arithmetic's own, and none is larger than its usual ones, the kernel is more exact.
Kernels of some backends decode weights to halves and add products up in halves, in an order of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import reference
from ..arrays.array import QuantArray
from ..errors import UnsupportedError
from ..reference.nodes.attention import in_halves
from ..reference.nodes.number import HALF, SPREAD
from ..reference.nodes.scores import CODES
from .judge import LARGEST_HALF, PARTIAL, Piece, Wide, energy_of

OTHER = "other"  # the name of an arithmetic that is not known
HALVES = "f16 sums"  # of one that adds up in halves
IN_HALVES = ("Vulkan",)  # backends whose kernels do so with products in batches, or of more than FEW_ROWS
IN_FLOATS = ("bf16",)  # weights that they add up in float32 all the same
FEW_ROWS = 8
SHARE = 0.5  # of an arithmetic's squared error, that a nearer result has at most
EIGHT_BITS = 1e-5  # the usual squared error of 8-bit codes, where an arithmetic overflows everywhere
LUCK = 24.0  # by the length of a group: how far the few errors of a short one may lie above the usual


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


def beyond_arithmetics(
    pieces: Sequence[Piece], arithmetics: Sequence[str], backend: str, rows: int, batches: int = 1
) -> str:
    """The reason, by name, why a product is right that none of these arithmetics explains; empty without one.

    ``pieces``: the product, or those of its experts. ``rows``: of a batch, or tokens; a backend takes its
    kernels by these, and by whether there are ``batches`` of activations.
    """
    if all(product_is_nearer(*piece, arithmetics) for piece in pieces):
        return OTHER
    many = rows > FEW_ROWS or (rows > 1 and batches > 1)
    summed = backend.startswith(IN_HALVES) and many and pieces[0][2].format.name not in IN_FLOATS
    return HALVES if summed and all(product_in_halves(*piece) for piece in pieces) else ""


def product_in_halves(y: Any, x: Any, q: QuantArray) -> bool:
    """True where a kernel may give this that decodes weights to halves, and adds products up in halves.

    The scale and the offset of 32 weights may be rounded on the way, by the largest of them; what such errors
    and those of sums come to is known of random ones alone. Beyond the largest half nothing is promised.
    """
    a, w = (np.asarray(one, np.float64).astype(np.float16).astype(np.float64) for one in (x, q.dequantize()))
    runs = np.abs(w.reshape(len(w), -1, min(CODES, w.shape[1]))).max(axis=-1)
    loss = 2 * HALF * np.repeat(runs, w.shape[1] // runs.shape[1], axis=1)
    value = a @ w.T
    limit = in_halves(a, w.T, value) + SPREAD * np.sqrt(a**2 @ (loss**2).T)
    beyond = np.abs(value) + PARTIAL * np.sqrt(energy_of(x, q)) > LARGEST_HALF
    free = beyond | ~np.isfinite(value)
    return bool((free | (np.abs(np.asarray(y, np.float64) - value) <= limit)).all())


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
