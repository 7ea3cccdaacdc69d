"""Mistakes of strides: an operand read as if its rows lay in one piece, or planes at the distance of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def misread(x: Any) -> Iterator[NDArray[Any]]:
    """The operand by other strides, where all that these reach lies within its memory."""
    if not isinstance(x, np.ndarray) or x.flags.c_contiguous or x.ndim < 2 or not x.size:
        return
    item = x.itemsize
    dense = [item * int(np.prod(x.shape[i + 1 :])) for i in range(x.ndim)]
    rows = list(x.strides)  # planes begin where the rows before them end
    for i in reversed(range(x.ndim - 2)):
        rows[i] = rows[i + 1] * x.shape[i + 1]
    inner = [[*x.strides[:i], *dense[i:]] for i in range(1, x.ndim - 1)]  # the outer axes are read well
    for strides in (dense, rows, *inner):
        if tuple(strides) != x.strides and _reach(x.shape, strides) <= _reach(x.shape, x.strides):
            yield np.lib.stride_tricks.as_strided(x, x.shape, strides, writeable=False)


def _reach(shape: tuple[int, ...], strides: Any) -> int:
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
