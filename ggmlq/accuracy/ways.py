"""The ways of ``gq.error_table`` to write numbers in few bits: what is stored, and what is read back.

A code of ``gq.codes`` is the code next to x / s, read back as s times its value. ``_nosat`` behind the
name of a float: what does not fit becomes NaN or an infinity. ``_asym`` behind the name of an integer:
with a zero point, the code of 0.0. ``fp8_naive``: x / s rounded to a whole number and clipped at ±448,
which is how e4m3 is sometimes simulated and is not what e4m3 does. Types of ggml have scales of their own
within their blocks, or none: they take the numbers as they are, padded with zeros to whole blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..codes import CODES, Code
from ..errors import CodeError, GGMLQError
from ..formats import FORMATS, BlockFormat, Format
from ..ops import quantize

Wide = NDArray[np.float64]

NAIVE, LARGEST = "fp8_naive", 448.0
NO_SATURATION, ASYMMETRIC = "_nosat", "_asym"
EPS = 1e-10  # the least magnitude that a scale is made for, as in quantize_scaled


class Written(NamedTuple):
    """Numbers as a way writes them."""

    codes: list[int | None]  # the bits or the integer; None where there is none
    quantized: Wide  # the value of the code, before the scale
    dequantized: Wide
    saturated: NDArray[np.bool_]  # whether it did not fit
    hexadecimal: bool = False  # how codes are usually written


class Way(NamedTuple):
    """One way to write numbers, by the name of a format: its code or block format, and options."""

    name: str
    code: Code | None = None
    format: Format | None = None
    saturate: bool = True
    zeros: bool = False


def way(request: str, name: str) -> Way:
    """The Way that a name of a format stands for."""
    if name == NAIVE:
        return Way(name)
    stem = str(name).lower()
    try:
        if stem.endswith(NO_SATURATION) and CODES[stem.removesuffix(NO_SATURATION)].kind == "float":
            return Way(name, CODES[stem.removesuffix(NO_SATURATION)], saturate=False)
        if stem.endswith(ASYMMETRIC):
            code = CODES["int8_full" if stem == "int8_asym" else stem.removesuffix(ASYMMETRIC)]
            if code.kind == "integer" and code.min != -code.max:
                return Way(name, code, zeros=True)
        if stem in CODES:
            return Way(name, CODES[stem])
        return Way(name, format=FORMATS[stem])
    except GGMLQError:
        raise CodeError(
            f"{request}: there is no format {name!r}; formats are {', '.join(CODES)}, e4m3_nosat, "
            f"e5m2_nosat, int8_asym, uint8_asym, {NAIVE}, and the types of ggml such as f16, bf16 and q4_0; "
            "pass some of these"
        ) from None


def scale_of(how: Way, x: Wide, scale: float, calibrate: str | None) -> float | None:
    """The scale that a way writes numbers under; None where it has none beside them."""
    if how.format is not None:
        return None
    if calibrate is None:
        return scale
    finite = x[np.isfinite(x)]
    if how.zeros and how.code is not None:
        high, low = max(finite.max(initial=0), 0), min(finite.min(initial=0), 0)
        return float(max(high - low, EPS) / (how.code.max - how.code.min))
    largest = LARGEST if how.code is None else how.code.max
    return float(max(np.abs(finite).max(initial=0), EPS) / largest)


def written(how: Way, x: Wide, scale: float | None) -> Written:
    """Numbers as a way writes them under its scale."""
    with np.errstate(all="ignore"):
        if scale is None:
            return _as_blocks(how, x)
        if how.code is None:
            return _naive(x, scale)
        if how.code.kind == "integer":
            return _as_integers(how.code, x, scale, how.zeros)
        return _as_floats(how.code, x, scale, how.saturate)


def _naive(x: Wide, scale: float) -> Written:
    whole = np.clip(np.rint(x / scale), -LARGEST, LARGEST)
    return Written([None] * len(x), whole, whole * scale, np.abs(x / scale) > LARGEST)


def _as_integers(code: Code, x: Wide, scale: float, zeros: bool) -> Written:
    zero = 0.0
    if zeros:
        zero = float(np.clip(np.rint(code.min - min(np.nanmin(x, initial=0), 0) / scale), code.min, code.max))
    whole = np.rint(x / scale) + zero
    whole = np.where(np.isnan(whole), zero, whole)
    clipped = np.clip(whole, code.min, code.max) + 0.0  # no negative zero
    return Written([int(c) for c in clipped], clipped, (clipped - zero) * scale, clipped != whole)


def _as_floats(code: Code, x: Wide, scale: float, saturate: bool) -> Written:
    quotient = (x / scale).astype(np.float32)
    fits = np.isfinite(code.decode(code.encode(quotient, saturate=False))) | ~np.isfinite(x)
    codes = code.encode(quotient, saturate=saturate)
    values = code.decode(codes).astype(np.float64)
    lost = ~fits | (np.isinf(x) & (values != x))
    return Written([int(c) for c in codes], values, values * scale, lost, True)


def _as_blocks(how: Way, x: Wide) -> Written:
    """The values as one row of a type of ggml."""
    fmt = how.format
    assert fmt is not None
    padded = np.zeros(-(-len(x) // fmt.block_size) * fmt.block_size, np.float32)
    padded[: len(x)] = x
    weights = np.ones(len(padded), np.float32) if fmt.needs_imatrix else None
    q = quantize(padded, fmt, weights)
    values = q.dequantize().astype(np.float64)[: len(x)]
    lost = np.isinf(values) & np.isfinite(x)
    if isinstance(fmt, BlockFormat):
        codes = fmt.unpack(q.blocks).codes.reshape(-1)[: len(x)]
        return Written([int(c) for c in codes], codes.astype(np.float64), values, lost)
    bits = q.blocks.view(f"u{fmt.dtype.itemsize}").reshape(-1)[: len(x)]
    return Written([int(b) for b in bits], values, values, lost, True)
