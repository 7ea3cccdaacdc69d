"""Operands of products, checked: activations, weights of blocks or of codes with scales, and ids of experts.

linear          check_blocks, check_linear
scaled_linear   check_weights; with_scales: x as codes with scales; check_pair
expert_linear   check_matrices, check_ids, check_rows, experts: all of them at once
put, take       numbered: ids of rows, as those of experts
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..base.devices import is_host
from ..codes import CODES, Code
from ..dispatch.checks import check_columns, check_device
from ..errors import BlockIndexError, CodeError, DTypeError, ShapeError
from .door import Operand, integers, operand
from .quantize_scaled import coded

# --- blocks -----------------------------------------------------------------------------------


def check_blocks(request: str, q: Any) -> None:
    """Refuse weights that are no QuantArray [N, K]."""
    if not isinstance(q, QuantArray):
        raise DTypeError(
            f"{request}: the weights are a {type(q).__name__}; they must be a QuantArray; "
            "make one with gq.quantize(w, 'q8_0') or QuantArray.from_bytes"
        )
    if q.ndim != 2:
        way = "an array with rows"
        if q.ndim == 1:
            way = "q[i:i+1] for one row"
        elif q.ndim:
            way = f"q[e] for one of its {q.shape[0]} matrices, or use gq.expert_linear"
        raise ShapeError(f"{request}: {q!r} is {q.ndim}-D; weights are [N, K]; pass {way}")


def check_linear(request: str, x: Any, q: QuantArray) -> Any:
    """The activations of ``x @ q.T`` as an array of floats; both operands are checked."""
    check_blocks(request, q)
    return activations(request, x, q).array


def activations(request: str, x: Any, weights: Any, name: str = "q", bfloat16: bool = False) -> Operand:
    """Activations [..., K] as an operand, checked; ``name``: of the weights, for error messages."""
    floats = operand(request, x, bfloat16=bfloat16)
    check_device(request, floats.device, weights, "x", name)
    check_columns(request, floats.array, weights, name)
    return floats


# --- codes with scales ------------------------------------------------------------------------


def check_weights(request: str, w: Any) -> None:
    """Refuse weights that are no ScaledArray [N, K]."""
    if not isinstance(w, ScaledArray):
        raise DTypeError(
            f"{request}: the weights are a {type(w).__name__}; they must be a ScaledArray; make one with "
            'gq.quantize_scaled(w, "e4m3", (128, 128)) or ScaledArray(codes, scales, code, tile)'
        )
    if w.ndim != 2:
        way = "w[e] for one matrix of them, or use gq.expert_linear" if w.ndim > 2 else "w.reshape(1, -1)"
        raise ShapeError(f"{request}: {w!r} is {w.ndim}-D; weights are [N, K]; pass {way}")


def with_scales(request: str, x: Any, w: ScaledArray, how: Any = None, name: str = "w") -> ScaledArray:
    """Activations as codes with scales: a ScaledArray x as it is, or floats quantized as ``how`` says."""
    if isinstance(x, ScaledArray):
        if how is not None:
            raise DTypeError(
                f"{request}: activations={how!r}, but x is {x!r}, quantized already; leave activations out, "
                "or pass floats"
            )
    else:
        x = _quantized(request, activations(request, x, w, name, bfloat16=True).array, w, how)
    codes: ScaledArray = x
    check_pair(request, codes, w)
    return codes


def _quantized(request: str, floats: Any, w: ScaledArray, how: Any = None) -> ScaledArray:
    code, tile = how_quantized(how, w)
    return coded(request, floats, code, tile, takes_zeros(how, code))


def check_pair(request: str, x: ScaledArray, w: ScaledArray) -> None:
    """Refuse codes on two devices, of two lengths or kinds, and tiles that do not fit along K."""
    check_device(request, x.device, w, "x", "w")
    check_columns(request, x, w)
    if x.code.kind != w.code.kind:
        raise CodeError(
            f"{request}: x has codes of {x.code.name}, w of {w.code.name}; both are floats or both integers; "
            "quantize one of them again, gq.quantize_scaled(x.dequantize(), …)"
        )
    a, b = sorted((x.tiling.c, w.tiling.c))
    if b % a and b < w.shape[-1]:
        raise ShapeError(
            f"{request}: tiles of x have {x.tiling.c} columns, those of w {w.tiling.c}; one must be a "
            "multiple "
            "of the other or the whole axis, so that scales change together; quantize one of them again"
        )


def how_quantized(how: Any, w: ScaledArray) -> tuple[Code, Any]:
    """The code and tile to which floats x are quantized; by default those that suit w."""
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
    """True if floats x get zero points: the code has no sign, and without them negatives would be lost."""
    return how is None and code.min == 0


# --- experts ----------------------------------------------------------------------------------


class Experts(NamedTuple):
    """Operands of a product with experts, in the shapes that kernels take."""

    x: Any  # [R, K]: floats, or a ScaledArray; R is T, or T·U
    q: Any  # [E, N, K]
    ids: Any  # int64 [T, U]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return (*self.ids.shape, self.q.shape[1])


def experts(request: str, x: Any, q: Any, ids: Any, *, look: bool, quantize: bool = True) -> Experts:
    """The checked operands of a product with experts: one device, shapes that fit.

    ``look``: check that each id is the number of an expert. Floats for weights with scales are quantized,
    unless ``quantize`` says otherwise.
    """
    check_matrices(request, q)
    rows: Any = x if isinstance(x, ScaledArray) else operand(request, x)
    check_device(request, rows.device, q)
    ids = check_ids(request, ids, q, look=look)
    check_rows(request, rows.shape, q, ids.shape)
    has_scales = isinstance(rows, ScaledArray)
    if isinstance(q, ScaledArray) and (quantize or has_scales):
        codes = rows if has_scales else _quantized(request, rows.array, q)
        check_pair(request, codes, q)
        return Experts(codes.as_rows(), q, ids)
    if has_scales:
        raise DTypeError(
            f"{request}: x is {x!r}, q {q!r}; activations with scales go with weights that have some; "
            "pass x.dequantize()"
        )
    return Experts(rows.array.reshape(math.prod(rows.shape[:-1]), rows.shape[-1]), q, ids)


def check_matrices(request: str, q: Any) -> None:
    """Refuse weights that are no array [E, N, K]."""
    if not isinstance(q, QuantArray | ScaledArray):
        raise DTypeError(
            f"{request}: the weights are a {type(q).__name__}; they must be a QuantArray or a ScaledArray "
            '[E, N, K]; make one with gq.quantize(w, "q8_0") or gq.quantize_scaled(w, "e4m3", (128, 128))'
        )
    if q.ndim != 3:
        way = "gq.linear takes a matrix" if q.ndim == 2 else "reshape the weights"
        raise ShapeError(f"{request}: {q!r} is {q.ndim}-D; weights of experts are [E, N, K]; {way}")


def shape_of_ids(request: str, ids: Any) -> tuple[int, ...]:
    """The shape of ids that are not checked yet: an array, a tensor, or lists."""
    try:
        return tuple(getattr(ids, "shape", None) or np.shape(ids))
    except ValueError as error:
        raise DTypeError(f"{request}: ids are no array ({error}); pass integers [T, U]") from None


def check_ids(request: str, ids: Any, q: Any, *, look: bool) -> Any:
    """Ids as int64 [T, U] on the device of q; ``look``: check that each is the number of an expert."""
    entries = integers(request, ids, "ids", "integers [T, U]")
    if len(entries.shape) != 2:
        raise ShapeError(
            f"{request}: ids have shape {entries.shape}; they are [T, U]: for each token the numbers of "
            "the experts that it uses; one expert a token is ids[:, None], one token ids[None]"
        )
    numbers = numbered(request, entries, q, "experts", "ids.astype(np.int32)")
    if look:
        look_at(request, entries.array, q, "experts", "for rows of NaN there")
    return numbers


def numbered(request: str, ids: Operand, q: Any, things: str, way: str) -> Any:
    """Ids as int64 on the device of q, whose ``things`` they number; the largest of uint64, which number
    nothing, become negative. ``way``: how others are converted.
    """
    if ids.dtype.kind not in "iu" and 0 not in ids.shape:
        raise DTypeError(
            f"{request}: ids are {ids.dtype}; they are numbers of {things}, integers of any type; convert "
            f"with {way}"
        )
    check_device(request, ids.device, q, "ids")
    return ids.array.astype(np.int64, order="C", copy=False)


def look_at(request: str, ids: Any, q: Any, things: str, way: str) -> None:
    """Refuse an id that is no number of one of the ``things`` along the first axis of q."""
    if ids.size and bool((wrong := (ids < 0) | (ids >= len(q))).any()):
        at = tuple(int(i) for i in np.argwhere(wrong if is_host(wrong) else wrong.get())[0])
        raise BlockIndexError(
            f"{request}: ids[{', '.join(map(str, at))}] is {int(ids[at])}; q has {len(q)} {things}, numbered "
            f"from 0; correct the ids, or pass check=False {way}"
        )


def check_rows(request: str, shape: tuple[int, ...], q: Any, used: tuple[int, ...]) -> None:
    """Refuse activations that are neither [T, K] nor [T, U, K]."""
    (t, u), k = used, q.shape[2]
    if shape in ((t, k), (t, u, k)):
        return
    if not shape or shape[-1] != k:
        rule = "the last axis of both is K"
    else:
        rule = "x has a row for each token, or one for each token and expert"
    raise ShapeError(
        f"{request}: x has shape {shape}, q {q.shape}, ids {(t, u)}; {rule}; pass x as {(t, k)} or "
        f"{(t, u, k)}"
    )
