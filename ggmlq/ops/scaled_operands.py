"""Operands of products of codes with scales, checked; and what floats become beside such weights."""

from __future__ import annotations

from typing import Any

from ..arrays.scaled import ScaledArray
from ..arrays.weights import Transposed
from ..codes import CODES, Code
from ..errors import CodeError, DeviceError, DTypeError, ShapeError


def check_weights(asked: str, w: Any) -> None:
    """Rows of codes with scales, [N, K]."""
    if isinstance(w, Transposed):
        raise DTypeError(f"{asked}: w is {w!r}; rows of w lie along K; pass w, not w.T")
    if not isinstance(w, ScaledArray):
        raise DTypeError(
            f"{asked}: the weights are a {type(w).__name__}; they must be a ScaledArray; make one with "
            'gq.quantize_scaled(w, "e4m3", (128, 128)) or ScaledArray(codes, scales, code, tile)'
        )
    if w.ndim != 2:
        way = "w[e] for one matrix of them, or use gq.expert_linear" if w.ndim > 2 else "w.reshape(1, -1)"
        raise ShapeError(f"{asked}: {w!r} is {w.ndim}-D; weights are [N, K]; pass {way}")


def check_columns(asked: str, x: Any, w: ScaledArray) -> None:
    """One K."""
    if x.ndim == 0 or x.shape[-1] != w.shape[-1]:
        raise ShapeError(
            f"{asked}: x has shape {x.shape}, w {w.shape}; the last axis of both is K; "
            f"pass x as [..., {w.shape[-1]}]"
        )


def check_operands(asked: str, x: ScaledArray, w: ScaledArray) -> None:
    """One device, one K, one kind of codes, and tiles that fit along K."""
    if x.device != w.device:
        raise DeviceError(
            f"{asked}: x is on {x.device}, w on {w.device}; both must be on one device; move one with "
            f"x.to({w.device!r})"
        )
    check_columns(asked, x, w)
    if x.code.kind != w.code.kind:
        raise CodeError(
            f"{asked}: x has codes of {x.code.name}, w of {w.code.name}; both are floats or both integers; "
            "quantize one of them again, gq.quantize_scaled(x.dequantize(), …)"
        )
    a, b = sorted((x.tiling.c, w.tiling.c))
    if b % a and b < w.shape[-1]:
        raise ShapeError(
            f"{asked}: tiles of x have {x.tiling.c} columns, those of w {w.tiling.c}; one must be a multiple "
            "of the other or the whole axis, so that scales change together; quantize one of them again"
        )


def how_quantized(how: Any, w: ScaledArray) -> tuple[Code, Any]:
    """Code and tile that floats x are quantized to; by default those that go with w."""
    usual = (1, 128) if w.code.kind == "float" else (1, None)
    c = w.tile[1]
    if usual[1] is not None and c is not None and c % usual[1] and usual[1] % c:
        usual = (1, c)  # neither would be a multiple of the other
    if how is None:
        return w.code, usual
    if isinstance(how, str | Code):
        return CODES[how], usual
    if not (isinstance(how, tuple | list) and len(how) == 2):
        raise DTypeError(
            f"scaled_linear(x, w): activations={how!r}; it says how floats x are quantized, as (code, tile); "
            'pass ("int8", (1, None)) or the like'
        )
    return CODES[how[0]], how[1]


def takes_zeros(how: Any, code: Code) -> bool:
    """Whether floats x get zero points: where nothing is said and negative ones would be lost."""
    return how is None and code.min == 0
