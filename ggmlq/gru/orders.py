"""The orders of gates along 3H: z, r, g here and in ONNX; r, z, g in PyTorch, whose g is called n."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.text import short
from ..errors import ShapeError, UnsupportedError

ORDERS = ("zrg", "rzn")


def to_torch_order(a: Any) -> NDArray[Any]:
    """An array [3H, …] in the order z, r, g in PyTorch's order.

    >>> to_torch_order([1, 2, 3]).tolist()
    [2, 1, 3]
    """
    a = np.asarray(a)
    if not a.ndim or len(a) % 3:
        raise ShapeError(
            f"order of gates: the array has shape {a.shape}; its first axis is three gates of H rows each; "
            "pass [3H, …]"
        )
    first, second, third = np.split(a, 3)
    return np.concatenate([second, first, third])


from_torch_order = to_torch_order  # the first two thirds change places either way


def checked_order(request: str, order: Any) -> str:
    """The order of gates, if it is a known one; else an error."""
    if order not in ORDERS:
        raise UnsupportedError(
            f'{request}: order={short(order)}; gates lie as "zrg" (update, reset, new: ONNX, Haste) or "rzn" '
            "(PyTorch); pass one of these"
        )
    return str(order)
