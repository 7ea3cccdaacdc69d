"""``gq.quantize_scaled`` and ``gq.dequantize_scaled``: floats to 8- or 16-bit codes with scales, and back."""

from __future__ import annotations

import importlib
import math
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..arrays.scaled import ScaledArray, as_stored
from ..arrays.tensors import untraced
from ..arrays.weights import operation
from ..base.devices import cuda_device, cuda_module, device_of, is_host, namespace, on_device_of
from ..base.text import Request
from ..codes import CODES, Code, scaling
from ..codes.scaling import Quantized, Rule
from ..codes.tiling import Tile, Tiling, checked_tile, expanded, tiling
from ..dispatch.checks import as_floats
from ..errors import CodeError, DeviceError, DTypeError, NonFiniteError, ShapeError, UnsupportedError
from .door import operand
from .epilogue import Wishes, ended, result_of

SCALES, ORDERS, RAGGED = ("float32", "e8m0"), ("rows", "columns"), ("error", "pad")
PATIENCE = 1 << 18  # elements that NumPy quantizes, or decodes, sooner than a kernel is compiled
SLAB = 1 << 18  # elements that are decoded at a time


@untraced
def quantize_scaled(
    x: Any,
    code: str | Code,
    tile: Any = (1, 128),
    *,
    scale: str = "float32",
    scales: Any = None,
    eps: float = 1e-10,
    rounding: str = "half_even",
    zeros: bool = False,
    order: str = "rows",
    ragged: str = "error",
    check_finite: bool = False,
) -> ScaledArray:
    """Quantize floats to codes of 8 or 16 bits with a scale for every tile.

    The scale of a tile is max(amax, eps) / max of the code; codes are the codes next to x / scale. The
    same bits come out on every device.

    Parameters
    ----------
    x : array of floats
        float16, bfloat16, float32 or float64 [..., C], of any strides: NumPy, CuPy or a torch tensor. Wider
        floats are rounded to float32 first.
    code : str or Code
        ``"e4m3"``, ``"int8"`` …: a name in ``gq.codes``.
    tile : (int or None, int or None)
        Rows × columns that share a scale; None is the whole axis. A tensor (None, None), a token or
        channel (1, None), a group (1, 128), a block (128, 128).
    scale : str
        How scales are kept: ``"float32"``, or ``"e8m0"``, rounded up to powers of two.
    scales : array or float, optional
        Scales to use instead of computing them (static quantization), one a tile or one for all. Kept as
        e8m0 they are rounded up too.
    eps : float
        The least magnitude that a scale is made for, so that a tile of zeros has one. With 0 such a tile
        has scale 0 and codes of NaN.
    rounding : str
        Of ties, for integer codes: ``"half_even"`` or ``"half_away"`` from zero.
    zeros : bool
        Use the whole range with a zero point a tile; for ``"int8_full"``, ``"uint8"`` and 16 bits.
    order : str
        How scales lie in memory: ``"rows"``, or ``"columns"``: down columns, each padded to 16 bytes, which
        matrix units read; the shape is the same.
    ragged : str
        ``"error"`` where rows are not whole tiles of columns, or ``"pad"``: the last tile is shorter.
    check_finite : bool
        Make NaN and infinities an error. Otherwise a tile with an infinity has an infinite scale; NaN is
        left out of scales and encoded as NaN by floats, while integers, which have no code for it, get
        the scale NaN for its tile. Under given scales integers encode NaN as 0.0.

    Examples
    --------
    >>> import numpy as np, ggmlq as gq
    >>> s = gq.quantize_scaled(np.float32([[1, 2, 3, 448], [0, 0, 0, 0]]), "e4m3", (1, 4))
    >>> s.scales.ravel(), np.asarray(s)
    (array([1.0000000e+00, 2.2321428e-13], dtype=float32), array([[  1.,   2.,   3., 448.],
           [  0.,   0.,   0.,   0.]], dtype=float32))
    """
    code = CODES[code]
    request = f"quantize_scaled(x, {code.name!r}, {tile!r})"
    rule = _rule(request, code, scale, eps, rounding, zeros, order)
    tile = checked_tile(request, tile)
    if isinstance(x, ScaledArray):
        raise DTypeError(f"{request}: x is {x!r}; floats are quantized; pass x.dequantize()")
    floats = operand(request, x, bfloat16=True)
    x, shape = floats.array, floats.shape
    if not shape:
        raise ShapeError(f"{request}: x is a scalar; tiles need an axis, pass at least 1-D")
    _check_ragged(request, shape, tile, ragged)
    over = tiling(tile, math.prod(shape[:-1]), shape[-1])
    with nullcontext() if floats.on_host else on_device_of(request, x):
        if check_finite:
            _check_finite(request, x)
        if scales is not None:
            scales = _static(request, scales, floats.device, shape, over, rule)
        return _quantized(x, floats.on_host, over, rule, tile, scales)


def coded(
    request: str, x: Any, code: Code, tile: Any, zeros: bool = False, scales: Any = None
) -> ScaledArray:  # fmt: skip
    """A ScaledArray of checked floats [..., C] by the usual rule; the last tile may be shorter.

    ``scales``: static ones, as :func:`static_scales` gives them.
    """
    rule, tile = _rule(request, code, zeros=zeros), checked_tile(request, tile)
    over = tiling(tile, math.prod(x.shape[:-1]), x.shape[-1])
    return _quantized(x, is_host(x), over, rule, tile, scales)


def _quantized(
    x: Any, on_host: bool, over: Tiling, rule: Rule, tile: Tile, scales: Any
) -> ScaledArray:  # fmt: skip
    """Codes, scales and zero points by the quickest way for such an array."""
    rows, static = x.reshape(over.rows, over.columns), scales is not None
    if not on_host:
        quantizer: Any = cuda_module("kernels.quantize_scaled")
    else:
        quantizer = importlib.import_module("ggmlq.cpu.quantize_scaled")
        if rows.size < PATIENCE and not quantizer.at_hand(rows, over, rule, static):
            quantizer = scaling
    if static:
        points = quantizer.zeros_of(rows, over, rule, scales) if rule.zeros else None
        parts = Quantized(quantizer.encode(rows, over, rule, scales, points), scales, points)
    else:
        parts = quantizer.quantize(rows, over, rule)
    if on_host:
        for part in parts:
            if part is not None:
                part.flags.writeable = False
    codes, scales, points = parts
    return ScaledArray.assembled(codes.reshape(x.shape), scales, rule.code, tile, points, over)


def _rule(
    request: str, code: Code, scale: str = "float32", eps: float = 1e-10, rounding: str = "half_even",
    zeros: bool = False, order: str = "rows",
) -> Rule:  # fmt: skip
    if code.kind == "scale":
        raise CodeError(
            f"{request}: {code.name} is a code for scales; pass it as scale={code.name!r}, and for the "
            "values "
            f"one of {', '.join(c.name for c in CODES.values() if c.kind != 'scale')}"
        )
    for name, value, names in (("scale", scale, SCALES), ("order", order, ORDERS)):
        if value not in names:
            raise UnsupportedError(
                f"{request}: {name}={value!r}; it is one of {', '.join(names)}; pass one of these"
            )
    code.check_rounding(request, rounding)
    if zeros and (code.kind != "integer" or code.min == -code.max):
        raise CodeError(
            f"{request}: zeros=True with {code.name}; zero points are for integers with their whole range; "
            'take "int8_full" or "uint8"'
        )
    if not (isinstance(eps, int | float | np.number) and 0 <= float(eps.real) < np.inf):
        raise ShapeError(f"{request}: eps={eps!r}; it is a magnitude, finite and at least 0; 1e-10 is usual")
    return Rule(code, scale, np.float32(eps), rounding, bool(zeros), order)


def _check_ragged(request: str, shape: tuple[int, ...], tile: Tile, ragged: str) -> None:
    if ragged not in RAGGED:
        raise UnsupportedError(f'{request}: ragged={ragged!r}; it is "error" or "pad"; pass one of these')
    c = tile[1]
    if ragged == "error" and c is not None and shape[-1] % c:
        up = -(-shape[-1] // c) * c
        raise ShapeError(
            f"{request}: rows have {shape[-1]} elements, tiles {c} columns; rows are whole tiles; pad the "
            f'last axis to {up}, or pass ragged="pad" for a last tile of {shape[-1] % c}'
        )


def _check_finite(request: str, x: Any) -> None:
    xp = namespace(x)
    finite = xp.isfinite(x.astype(np.float32) if x.dtype.name == "bfloat16" else x)
    if not bool(finite.all()):
        index = [int(i[0]) for i in xp.nonzero(~finite)]
        raise NonFiniteError(
            f"{request}: x{index} is {float(x[tuple(index)])}; check_finite=True refuses NaN and infinities; "
            "clear them with np.nan_to_num, or leave check_finite out"
        )


def static_scales(
    request: str, scales: Any, like: Any, shape: tuple[int, ...], code: Code, tile: Tile
) -> Any:  # fmt: skip
    """Static scales for a result of this shape, on the device of ``like``, as a ScaledArray holds them.

    An array that already has that form is taken without a copy, which would cost as much as a small product.
    """
    over = tiling(tile, *shape)
    if isinstance(scales, type(like)) and scales.dtype == np.float32 and scales.shape == over.shape:
        return scales
    return _static(request, scales, device_of(like), shape, over, _rule(request, code))


def _static(request: str, scales: Any, device: str, shape: tuple[int, ...], over: Tiling, rule: Rule) -> Any:
    """A caller's static scales, checked and in the form that a ScaledArray holds, on this device."""
    scales = as_stored(request, scales, "scales")
    there, xp = device_of(scales), np if device == "cpu" else cuda_device().cupy()
    if there == "cpu" != device and np.ndim(scales):
        raise DeviceError(
            f"{request}: x is on {device}, scales on the host; move them with cupy.asarray(scales)"
        )
    if device == "cpu" != there:
        raise DeviceError(f"{request}: x is on the host, scales on {there}; pass scales.get()")
    scales = xp.asarray(scales)
    if scales.dtype.name in CODES["e8m0"].aliases:
        scales = scales.view(np.uint8)
    if scales.dtype == np.uint8 and rule.scale != "e8m0":
        raise DTypeError(f'{request}: scales are uint8, which holds e8m0; pass scale="e8m0" with them')
    if scales.shape == (*shape[:-1], over.shape[1]) and over.r == 1:
        scales = scales.reshape(over.shape)
    if scales.shape not in ((), (1,), (1, 1), over.shape):
        raise ShapeError(
            f"{request}: scales have shape {scales.shape}; x {shape} needs {over.shape}, one a tile, or a "
            "single number for all"
        )
    if scales.dtype != np.uint8:
        scales = scaling.stored(as_floats(request, scales, "scales").astype(np.float32), rule.scale)
    room = scaling.empty(xp, over.shape, scales.dtype, rule.order)
    room[...] = scales
    return room


@operation
def dequantize_scaled(s: ScaledArray, dtype: DTypeLike | None = np.float32, out: Any = None) -> Any:
    """The values of a :class:`ggmlq.ScaledArray` on its device."""
    request: Any = Request("dequantize of", s)
    result = result_of(request, Wishes(out, dtype=dtype), s.shape, s.device)
    with on_device_of(request, s.codes, s), np.errstate(over="ignore", invalid="ignore"):
        decode = _values if is_host(s.codes) else cuda_module("kernels.quantize_scaled.decode").dequantize
        return ended(decode(s, result.dtype), result)


def _values(s: ScaledArray, kind: np.dtype[Any]) -> Any:
    """The values of an array on the host, all of them."""
    m = s.matrix()
    values = np.empty((m.over.rows, m.over.columns), kind)
    decoding = importlib.import_module("ggmlq.cpu.decode_scaled")
    if values.size >= PATIENCE or decoding.at_hand(m):
        decoding.decode_into(m, values)
        return values.reshape(s.shape)
    step = max(1, SLAB // max(m.over.columns, 1))
    for start in range(0, m.over.rows, step):
        part = slice(start, start + step)
        values[part] = decoded(m, np.arange(start, min(start + step, m.over.rows)))
    return values.reshape(s.shape)


def decoded(m: Any, rows: NDArray[Any]) -> Any:
    """Scale · (code - zero) of some rows that lie together, on the host, in float32."""
    over = m.over._replace(r=1, rows=len(rows))
    tiles = rows // m.over.r
    values = m.code.decode(m.codes[int(rows[0]) : int(rows[-1]) + 1])
    if m.zeros is not None:
        values = values - expanded(np, m.zeros[tiles], over).astype(np.float32)
    return values * expanded(np, m.scales[tiles], over)
