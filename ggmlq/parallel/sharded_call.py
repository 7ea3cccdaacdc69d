"""The arguments of one product with sharded weights, checked, and the codes that x is sent as."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..arrays.scaled import ScaledArray
from ..base.devices import device_of
from ..dispatch.checks import as_floats, check_bias, float_dtype
from ..errors import DeviceError, DTypeError, ShapeError
from ..ops.operands import check_ids, check_rows, how_quantized, takes_zeros
from .parts import Parts


class ShardedCall(NamedTuple):
    """One product with its operands checked."""

    text: str  # as the caller wrote it
    operation: str
    s: Any
    x: Any  # an array or a ScaledArray at home, or Parts
    codes: Any  # code, tile, and whether with zero points, of the quantization of floats at home, or None
    ids: Any  # at home, of products with experts
    home: str
    shape: tuple[int, ...]  # of the result
    bias: Any
    kind: np.dtype[Any]
    options: dict[str, Any]  # for every part alike

    @property
    def terms(self) -> bool:
        """True where the devices' results are added."""
        return self.s.axis in (1, "experts") and len(self.s.parts) > 1


def checked(
    text: str, operation: str, s: Any, x: Any, rest: tuple[Any, ...], options: dict[str, Any]
) -> ShardedCall:
    """The call with its operands checked; ``options`` keeps the arguments that every part gets alike."""
    if operation not in (s.product, "expert_linear"):
        raise DTypeError(
            f"{text}: the weights are {s!r}; their products are {s.product}; call gq.{s.product}, or x @ s.T"
        )
    need = 3 if operation == "expert_linear" else 2
    if len(s.shape) != need:
        way = "gq.expert_linear takes experts" if need == 2 else "gq.linear takes a matrix"
        raise ShapeError(f"{text}: {s!r} is {len(s.shape)}-D; weights are {need}-D here; {way}")
    home = s.devices[0] if isinstance(x, Parts) else x.device if hasattr(x, "dequantize") else device_of(x)
    if isinstance(x, Parts) and x.devices != s.devices:
        raise DeviceError(
            f"{text}: x is {x!r}, s {s!r}; parts lie on the same devices in the same order; shard both "
            "alike, or pass x.gather()"
        )
    if (home == "cpu") != (s.devices[0] == "cpu"):
        raise DeviceError(
            f"{text}: x is on {home}, s on {s.device}; both are on the host or both on GPUs; move x with "
            "cupy.asarray(x) or x.get()"
        )
    kind = float_dtype(text, options.pop("dtype", np.float32))
    bias = options.pop("bias", None)
    ids = None
    if operation == "expert_linear":
        look = options.pop("check", None)
        face: Any = Face(home, s.shape)
        ids = check_ids(text, rest[0], face, look=home == "cpu" if look is None else look)
        options["check"] = False
    if bias is not None:
        face = Face(home, s.shape)
        bias = check_bias(text, bias, face, "s")
    x = _operand(text, s, x, ids)
    codes = _codes(s, x, options)
    shape = (*ids.shape, s.shape[1]) if ids is not None else (*x.shape[:-1], s.shape[0])
    return ShardedCall(text, operation, s, x, codes, ids, home, shape, bias, kind, options)


class Face:
    """The device and shape of a sharded array, for checks that are written for single arrays."""

    def __init__(self, device: str, shape: tuple[int, ...]) -> None:
        self.device, self.shape = device, shape

    def __len__(self) -> int:
        return self.shape[0]


def _operand(text: str, s: Any, x: Any, ids: Any) -> Any:
    """Activations of a type and shape that fit."""
    scaled = isinstance(s.parts[0], ScaledArray)
    if isinstance(x, ScaledArray) and not scaled:
        raise DTypeError(f"{text}: x is {x!r}, s {s!r}; codes go with codes; pass x.dequantize()")
    if not isinstance(x, Parts | ScaledArray):
        x = as_floats(text, x)
    if ids is not None:
        face: Any = Face("", s.shape)
        check_rows(text, x.shape, face, ids.shape)
    elif not x.shape or x.shape[-1] != s.shape[-1]:
        raise ShapeError(
            f"{text}: x has shape {x.shape}, s {s.shape}; the last axis of both is K; "
            f"pass x as [..., {s.shape[-1]}]"
        )
    return x


def _codes(s: Any, x: Any, options: dict[str, Any]) -> Any:
    """The codes that floats become for weights with scales; fitting Parts are quantized where they are."""
    first = s.parts[0]
    if not isinstance(first, ScaledArray) or isinstance(x, ScaledArray):
        return None
    if isinstance(x, Parts) and (x.spans == s.spans if s.axis == 1 else x.spans is None):
        return None
    how = options.get("activations")
    code, tile = how_quantized(how, first)
    if s.axis == 1 and tile[1] is not None and any(cut % tile[1] for cut in s.cuts):
        return None  # tiles end where columns are cut: each part has tiles of its own
    options.pop("activations", None)
    return code, tile, takes_zeros(how, code)
