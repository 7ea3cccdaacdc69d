"""The parts of a ScaledArray, checked: codes, and scales and zero points that fit them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..base.devices import device_of, is_host, namespace
from ..codes import CODES, Code
from ..codes.tiling import Tile, Tiling
from ..errors import CodeError, DeviceError, DTypeError, ShapeError
from .buffers import refuse_mask
from .tensors import bits_of, is_tensor


def as_stored(request: str, array: Any, name: str = "codes") -> Any:
    """An array, or a tensor's bits as an array over its memory."""
    refuse_mask(request, array)
    return bits_of(request, array, name) if is_tensor(array) else array


class Beside(NamedTuple):
    """A checker of the scales and zero points that a caller passes beside codes."""

    request: str
    codes: Any
    tile: Tile
    over: Tiling

    def scales(self, scales: Any) -> Any:
        """The checked scales: float32, or e8m0 as bytes; a single number will do for one tile."""
        scales = as_stored(self.request, scales, "scales")
        if is_host(scales) and not isinstance(scales, np.ndarray):
            scales = np.asarray(scales, np.float32)
        if not scales.shape and self.over.shape == (1, 1):
            scales = namespace(self.codes).asarray(scales, np.float32).reshape(1, 1)
        if scales.dtype.name in CODES["e8m0"].aliases:
            scales = scales.view(np.uint8)
        if scales.dtype not in (np.float32, np.uint8):
            raise DTypeError(
                f"{self.request}: scales are {scales.dtype}; they are float32, or uint8 that hold e8m0; "
                "convert with scales.astype(np.float32)"
            )
        return self._fitting(scales, "scales")

    def zeros(self, zeros: Any, code: Code) -> Any:
        """The checked zero points: integers in the shape of the scales."""
        zeros = as_stored(self.request, zeros, "zeros")
        zeros = np.asarray(zeros) if is_host(zeros) else zeros
        if code.kind != "integer":
            raise CodeError(
                f"{self.request}: zeros with {code.name}; floats have a zero of their own, only integer "
                'codes have zero points; leave zeros out, or take "int8_full" or "uint8"'
            )
        if zeros.dtype.kind not in "iu":
            raise DTypeError(
                f"{self.request}: zeros are {zeros.dtype}; a zero point is the code of 0.0, an integer; "
                "round them, zeros.astype(np.int32)"
            )
        if not zeros.shape and self.over.shape == (1, 1):
            zeros = namespace(self.codes).asarray(zeros).reshape(1, 1)
        if is_host(zeros) and zeros.size and not (code.min <= zeros.min() and zeros.max() <= code.max):
            raise CodeError(
                f"{self.request}: zeros reach from {zeros.min()} to {zeros.max()}; a zero point is a code of "
                f"{code.name}, {code.min} … {code.max}; clip them to that"
            )
        return self._fitting(zeros, "zeros")

    def _fitting(self, array: Any, name: str) -> Any:
        """Raise an error unless scales or zero points lie on the device of the codes, one for each tile."""
        if device_of(array) != device_of(self.codes):
            raise DeviceError(
                f"{self.request}: codes are on {device_of(self.codes)}, {name} on {device_of(array)}; all "
                "parts are on one device; move them with cupy.asarray(a) or a.get()"
            )
        want = self.over.shape
        if array.shape != want:
            hint = ""
            if array.ndim != 2 and array.size == math.prod(want):
                hint = f"; pass {name}.reshape{want}"
            elif array.shape == want[::-1]:
                hint = f"; they look transposed, pass {name}.T"
            raise ShapeError(
                f"{self.request}: {name} have shape {array.shape}; codes {self.codes.shape} in tiles of "
                f"{self.tile} need {want}, one a tile: rows are those of all axes before the last "
                f"together{hint}"
            )
        return array
