"""How far a result is from its reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import ShapeError
from .ops import to_host


def nmse(y: Any, reference: Any, axis: int | tuple[int, ...] | None = None) -> Any:
    """Normalized mean squared error: ``sum (y - reference)**2 / sum reference**2`` in float64.

    Parameters
    ----------
    y, reference : array
        Of the same shape, on any device; QuantArrays count as their values.
    axis : int or tuple of int, optional
        Sum along these axes only: with ``axis=-1`` one figure a row. A whole-matrix figure is
        blind to small rows when one row is large.

    Returns
    -------
    float or numpy.ndarray
        NaN where either operand holds one; 0 where both are all zero, infinity where only the
        reference is.

    >>> import numpy as np, ggmlq as gq
    >>> gq.nmse(np.array([1.0, 2.5]), np.array([1.0, 2.0]))
    0.05
    """
    got = np.asarray(to_host(y), np.float64)
    want = np.asarray(to_host(reference), np.float64)
    if got.shape != want.shape:
        raise ShapeError(
            f"nmse(y, reference): shapes {got.shape} and {want.shape} differ; "
            "both must be the same, nothing is broadcast"
        )
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.sum((got - want) ** 2, axis=axis)
        energy = np.sum(want**2, axis=axis)
        result = np.where((error == 0) & (energy == 0), 0.0, error / energy)
    return float(result) if result.ndim == 0 else result
