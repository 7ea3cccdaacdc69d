"""INT8 functions: a product with a scale for each tensor, row or column, and two quantizers by a scale.

``quantize_fp8_e4m3`` is kept as its document has it, and that is *no* e4m3: it rounds to whole numbers
and clips at ±448. Real e4m3 has eight steps an octave, so 17 is not one of its numbers and 0.123 nearly
is; ``gq.codes["e4m3"].encode`` rounds to it, ``gq.error_table`` shows both side by side.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays.scaled import ScaledArray
from ..base.devices import is_host, namespace
from ..codes.tiling import Tile, tiling
from ..errors import DTypeError, ShapeError
from ..ops import scaled_linear
from .operands import through_arrays, together


@through_arrays
def int8_gemm_fp32_output(
    a: Any, b: Any, scale_a: Any = 1.0, scale_b: Any = 1.0, *, accumulate: str | None = None
) -> Any:
    """``(a [M, K] @ b [K, N]) · (scale_a · scale_b)`` of int8, in float32.

    Parameters
    ----------
    a, b : arrays of int8
        Of any strides; all of -128 … 127.
    scale_a, scale_b : float or array
        Of the whole operand, or one a row of a ([M]) and one a column of b ([N]).
    accumulate : str, optional
        Integers are summed exactly, over all of K, however long. ``"fp32_chunks"`` is the document's kernel:
        sums of 32 products are exact, their sum is in float32.

    Notes
    -----
    Both scales are multiplied first, in float32.

    Examples
    --------
    >>> import numpy as np, ggmlq as gq
    >>> a, b = np.full((2, 3), 100, np.int8), np.full((3, 2), -100, np.int8)
    >>> gq.functions.int8_gemm_fp32_output(a, b, 0.5, 0.01)
    array([[-150., -150.],
           [-150., -150.]], dtype=float32)
    """
    request = "int8_gemm_fp32_output(a, b, scale_a, scale_b)"
    a, b = (_int8(request, name, operand) for name, operand in (("a", a), ("b", b)))
    together(request, a=a, b=b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        turned = a.ndim == b.ndim == 2 and a.shape[1] == b.shape[1]
        way = "b looks like [N, K], pass b.T" if turned else "pass them so"
        raise ShapeError(f"{request}: a has shape {a.shape}, b {b.shape}; a is [M, K] and b [K, N]; {way}")
    x = _scaled(request, "scale_a", a, scale_a)
    w = _scaled(request, "scale_b", b.T, scale_b)
    return scaled_linear(x, w, accumulate=accumulate)


def _int8(request: str, name: str, a: Any) -> Any:
    a = np.asarray(a) if is_host(a) else a
    if a.dtype != np.int8:
        raise DTypeError(
            f"{request}: {name} is {a.dtype}; codes are int8; convert whole numbers of -128 … 127 with "
            f"{name}.astype(np.int8), or quantize floats with gq.quantize_scaled"
        )
    return a


def _scaled(request: str, name: str, codes: Any, scale: Any) -> ScaledArray:
    """Codes with one scale, or one a row."""
    rows = codes.shape[0]
    xp = namespace(codes)
    if is_host(scale) and not isinstance(scale, np.ndarray):
        scale = np.asarray(scale, np.float32)
    if not is_host(scale):
        together(request, **{"codes": codes, name: scale})
    if math.prod(scale.shape) == 1 and scale.ndim <= 2:
        return _of(codes, xp.asarray(scale, np.float32).reshape(1, 1), (None, None))
    if scale.shape not in ((rows,), (rows, 1), (1, rows)):
        axis = "row of a, [M]" if name == "scale_a" else "column of b, [N]"
        raise ShapeError(
            f"{request}: {name} has shape {scale.shape}; it is a number, or one a {axis}; "
            f"pass a number or shape ({rows},)"
        )
    together(request, **{"codes": codes, name: scale})
    return _of(codes, scale.astype(np.float32).reshape(rows, 1), (1, None))


def _of(codes: Any, scales: Any, tile: Tile) -> ScaledArray:
    """Codes and scales, of which there are fewer where an axis is empty."""
    r, c = tiling(tile, *codes.shape).shape
    return ScaledArray(codes, scales[:r, :c], "int8_full", tile)


@through_arrays
def quantize_int8(x: Any, scale: Any) -> Any:
    """``clip(round(x / scale), -128, 127)`` in float64, ties to even: a number gives an int, arrays int8.

    NaN becomes 0.

    >>> import ggmlq as gq
    >>> [gq.functions.quantize_int8(v, 0.1) for v in (0.123, 1.234, -300.0, 448.0)]
    [1, 12, -128, 127]
    """
    request = "quantize_int8(x, scale)"
    xp, quotient = _quotient(request, x, scale)
    whole = xp.clip(xp.rint(xp.where(xp.isnan(quotient), 0, quotient)), -128, 127)
    return whole.astype(np.int8) if quotient.ndim else int(whole)


@through_arrays
def quantize_fp8_e4m3(x: Any, scale: Any) -> Any:
    """``clip(round(x / scale), -448, 448)`` in float64: the document's simulation, which is no e4m3.

    It has the range of e4m3 but the even steps of an integer. For real codes take
    ``gq.codes["e4m3"].encode(x / scale)``.

    >>> import ggmlq as gq
    >>> [gq.functions.quantize_fp8_e4m3(v, 0.1) for v in (0.123, 1.73, 448.0)]
    [1.0, 17.0, 448.0]
    """
    xp, quotient = _quotient("quantize_fp8_e4m3(x, scale)", x, scale)
    whole = xp.clip(xp.rint(quotient), -448, 448)
    return whole if quotient.ndim else float(whole)


def _quotient(request: str, x: Any, scale: Any) -> tuple[Any, Any]:
    """The namespace of x, and x / scale in float64."""
    xp = namespace(x)
    try:
        x = xp.asarray(x).astype(np.float64)
        scale = scale.astype(np.float64) if getattr(scale, "shape", ()) else float(scale)
    except (TypeError, ValueError) as error:
        raise DTypeError(
            f"{request}: these are no numbers ({error}); pass floats or arrays of them"
        ) from None
    fits = (scale > 0) & (scale < np.inf)
    if not (fits if isinstance(fits, bool) else bool(fits.all())):
        raise ShapeError(
            f"{request}: scale is {scale}; numbers are divided by it, so it is positive and finite; "
            "take the largest magnitude / 127, say"
        )
    if not isinstance(scale, float):
        together(request, x=x, scale=scale)
    try:
        with np.errstate(all="ignore"):
            return xp, x / scale
    except ValueError:
        raise ShapeError(
            f"{request}: x has shape {x.shape}, scale {scale.shape}; one scale is for all, or they "
            "broadcast; "
            "pass a number, or scales of shape [rows, 1]"
        ) from None
