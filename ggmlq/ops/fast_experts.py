"""Products of NumPy's floats with experts that were done before, in the same shapes and as asked then.

What :func:`ggmlq.expert_linear` checks with words is looked at here without, in a few microseconds; whatever
is not ordinary goes back there. Remembered is which kernel serves such a call, and nothing of the operands:
ids are other ones each time, and each is looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..dispatch.checks import FLOAT32
from .fast_path import takes

FEW = 256  # uses: with more, what a call costs beside its kernels does not matter


def on_host(
    x: Any, q: Any, ids: Any, kernel: Any, arithmetic: Any, out: Any, dtype: Any, check: Any
) -> Any | None:
    """A product that was done before; None for all others."""
    if type(x) is not np.ndarray or type(ids) is not np.ndarray or type(q) is not QuantArray:
        return None
    if dtype is not np.float32 or x.dtype is not FLOAT32 or ids.dtype.kind not in "iu":
        return None
    try:
        launch = q.plan((x.shape, ids.shape, kernel, arithmetic))
    except TypeError:  # what cannot be a key is nothing that it takes either
        return None
    if launch is None or not (x.flags.c_contiguous and (_are_experts(ids, q) or check is False)):
        return None
    shape = (*ids.shape, q.shape[1])
    if out is None:
        out = np.empty(shape, FLOAT32)
    elif not takes(out, shape, x, q.memory, ids):
        return None
    uses = ids.astype(np.int64, order="C", copy=False)
    launch(x.reshape(-1, x.shape[-1]), q, uses, out)
    return out


def _are_experts(ids: Any, q: Any) -> bool:
    """Whether each id is the number of an expert."""
    numbers: list[int] = ids.reshape(-1).tolist()
    return min(numbers) >= 0 and max(numbers) < len(q)


def keep_on_host(rung: Any, x: Any, q: Any, ids: Any, kernel: str, arithmetic: str | None) -> None:
    """Remember a rung for products like one that it did, where that pays."""
    if rung.repeats and type(x) is np.ndarray and type(ids) is np.ndarray and ids.size <= FEW:
        q.keep_plan((x.shape, ids.shape, kernel, arithmetic), rung.launch)
