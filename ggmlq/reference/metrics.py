"""``gq.nmse``: the distance of a result from its reference."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..arrays.buffers import refuse_mask
from ..base.devices import to_host
from ..errors import DTypeError, ShapeError


@overload
def nmse(y: Any, reference: Any, axis: None = ...) -> float: ...
@overload
def nmse(y: Any, reference: Any, axis: int | tuple[int, ...]) -> NDArray[np.float64]: ...


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
    got, want = _as_doubles(y), _as_doubles(reference)
    if got.shape != want.shape:
        raise ShapeError(
            f"nmse(y, reference): shapes {got.shape} and {want.shape} differ; "
            "both must be the same, nothing is broadcast"
        )
    try:
        largest = np.max(np.abs(want), axis=axis, keepdims=True, initial=0)
    except (ValueError, TypeError) as error:
        raise ShapeError(f"nmse(..., axis={axis!r}) of shape {got.shape}: {error}") from None
    unit = np.where((largest > 0) & np.isfinite(largest), largest, 1)  # squares of 1e-200 vanish
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        square = np.sum(((got - want) / unit) ** 2, axis=axis)
        energy = np.sum((want / unit) ** 2, axis=axis)
        result = np.where(square == 0, 0.0, square / energy)
    return float(result) if result.ndim == 0 else result


def _as_doubles(x: Any) -> NDArray[np.float64]:
    refuse_mask("nmse(y, reference)", x)
    try:
        array = np.asarray(to_host(x))
    except ValueError as error:
        raise ShapeError(f"nmse(y, reference): no array ({error}); pass arrays of numbers") from None
    if array.dtype.kind not in "fiub":
        raise DTypeError(f"nmse(y, reference): got {array.dtype}; pass arrays of real numbers")
    return array.astype(np.float64)
