"""Operands of products with experts, checked: activations, matrices, and which token uses which of them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.buffers import refuse_mask
from ..arrays.scaled import ScaledArray
from ..arrays.tensors import bits_of, is_tensor
from ..base.devices import device_of, is_host
from ..dispatch.checks import as_floats
from ..errors import BlockIndexError, DeviceError, DTypeError, ShapeError
from .quantize_scaled import quantize_scaled
from .scaled_operands import check_operands, how_quantized, takes_zeros

ASKED = "expert_linear(x, q, ids)"


class Experts(NamedTuple):
    """All in the shapes that kernels take."""

    x: Any  # [R, K]: floats, or a ScaledArray; R is T, or T·U
    q: Any  # [E, N, K]
    ids: Any  # int64 [T, U]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        return (*self.ids.shape, self.q.shape[1])


def checked(
    x: Any, q: Any, ids: Any, *, look: bool, asked: str = ASKED, quantize: bool = True
) -> Experts:  # fmt: skip
    """Everything of one device and of shapes that fit; ``look``: and each id is an expert.

    Floats for weights with scales are quantized, unless ``quantize`` says otherwise.
    """
    check_matrices(asked, q)
    place = x.device if isinstance(x, ScaledArray) else device_of(x)
    if place != q.device:
        raise DeviceError(
            f"{asked}: x is on {place}, q on {q.device}; all operands are on one device; move q with "
            'q.to("cpu") or q.to("cuda"), or x with cupy.asarray(x) or x.get()'
        )
    ids = check_ids(asked, ids, q, look=look)
    if not isinstance(x, ScaledArray):
        x = as_floats(asked, x)
    check_rows(asked, x.shape, q, ids.shape)
    if isinstance(q, ScaledArray) and (quantize or isinstance(x, ScaledArray)):
        return Experts(_codes(asked, x, q), q, ids)
    if isinstance(x, ScaledArray):
        raise DTypeError(
            f"{asked}: x is {x!r}, q {q!r}; activations with scales go with weights that have some; "
            "pass x.dequantize()"
        )
    return Experts(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), q, ids)


def check_matrices(asked: str, q: Any) -> None:
    """Weights [E, N, K]."""
    if not isinstance(q, QuantArray | ScaledArray):
        raise DTypeError(
            f"{asked}: the weights are a {type(q).__name__}; they must be a QuantArray or a ScaledArray "
            '[E, N, K]; make one with gq.quantize(w, "q8_0") or gq.quantize_scaled(w, "e4m3", (128, 128))'
        )
    if q.ndim != 3:
        way = "gq.linear takes a matrix" if q.ndim == 2 else "reshape the weights"
        raise ShapeError(f"{asked}: {q!r} is {q.ndim}-D; weights of experts are [E, N, K]; {way}")


def check_ids(asked: str, ids: Any, q: Any, *, look: bool) -> Any:
    """Integers [T, U] on the device of q, as int64; ``look``: each is the number of an expert."""
    refuse_mask(asked, ids)
    if is_tensor(ids):
        ids = bits_of(asked, ids, "ids")
    if is_host(ids):
        try:
            ids = np.asarray(ids)
        except (ValueError, TypeError) as error:
            raise DTypeError(f"{asked}: ids are no array ({error}); pass integers [T, U]") from None
    if ids.ndim != 2:
        raise ShapeError(
            f"{asked}: ids have shape {ids.shape}; they are [T, U]: for each token the numbers of "
            "the experts that it uses; one expert a token is ids[:, None], one token ids[None]"
        )
    if ids.dtype.kind not in "iu" and ids.size:
        raise DTypeError(
            f"{asked}: ids are {ids.dtype}; they are numbers of experts, integers of any type; convert with "
            "ids.astype(np.int32)"
        )
    if device_of(ids) != q.device:
        raise DeviceError(
            f"{asked}: ids are on {device_of(ids)}, q on {q.device}; all operands are on one device; move "
            "ids with cupy.asarray(ids) or ids.get()"
        )
    if not ids.size:
        return ids.astype(np.int64)
    if look and _host(wrong := (ids < 0) | (ids >= len(q))).any():
        t, u = (int(i) for i in np.argwhere(_host(wrong))[0])
        raise BlockIndexError(
            f"{asked}: ids[{t}, {u}] is {int(ids[t, u])}; q has {len(q)} experts, numbered from 0; "
            "correct the ids, or pass check=False for rows of NaN there"
        )
    return ids.astype(np.int64, order="C", copy=False)  # the largest of uint64 become negative: no expert


def _host(array: Any) -> Any:
    return array if is_host(array) else array.get()


def check_rows(asked: str, shape: tuple[int, ...], q: Any, used: tuple[int, ...]) -> None:
    """[T, K], or [T, U, K]."""
    (t, u), k = used, q.shape[2]
    if shape in ((t, k), (t, u, k)):
        return
    if not shape or shape[-1] != k:
        rule = "the last axis of both is K"
    else:
        rule = "x has a row for each token, or one for each token and expert"
    raise ShapeError(
        f"{asked}: x has shape {shape}, q {q.shape}, ids {(t, u)}; {rule}; pass x as {(t, k)} or {(t, u, k)}"
    )


def _codes(asked: str, given: Any, q: ScaledArray) -> ScaledArray:
    """Activations with scales [R, K]: as they are, or quantized here, once a row."""
    x: ScaledArray = given
    if not isinstance(given, ScaledArray):
        code, tile = how_quantized(None, q)
        x = quantize_scaled(given, code, tile, zeros=takes_zeros(None, code), ragged="pad")
    check_operands(asked, x, q)
    codes = x.codes.reshape(x.tiling.rows, x.tiling.columns)
    return x if x.ndim == 2 else ScaledArray(codes, x.scales, x.code, x.tile, x.zeros)
