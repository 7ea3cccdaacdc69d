"""``gq.equal``: True if two arrays of weights have the same format, shape and bytes."""

from __future__ import annotations

from typing import Any

from ..arrays.array import QuantArray
from ..arrays.companion import same_scales
from ..arrays.scaled import ScaledArray
from ..base.devices import namespace, on_device_of
from ..errors import DTypeError


def equal(a: QuantArray | ScaledArray, b: QuantArray | ScaledArray) -> bool:
    """Compare two arrays: True if format, shape and bytes are the same, on the host or on a device.

    Of a big-endian file the little-endian bytes count. NaN equals NaN here if the bytes do. Companion scales
    are the same too. ScaledArrays are
    the same if their codes, scales and zero points are, and their tiles as they lie over the shape.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.eye(2, 64, dtype=np.float32), "q8_0")
    >>> gq.equal(q, q.copy()), gq.equal(q, q[:1])
    (True, False)
    """
    for name, array in (("a", a), ("b", b)):
        if not isinstance(array, QuantArray | ScaledArray):
            raise DTypeError(
                f"equal(a, b): {name} is a {type(array).__name__}; both must be QuantArrays or ScaledArrays; "
                "compare values as np.array_equal(np.asarray(q), x)"
            )
    if type(a) is not type(b) or a.shape != b.shape or _means(a) != _means(b):
        return False
    if isinstance(a, QuantArray) and isinstance(b, QuantArray) and not same_scales(a._scale, b._scale):
        return False
    if a is b:
        return True
    if a.device != b.device:
        a, b = a.to("cpu"), b.to("cpu")
    with on_device_of("equal(a, b)", a.memory):
        return all(bool((x == y).all()) for x, y in zip(_bytes(a), _bytes(b), strict=True))


def _means(array: QuantArray | ScaledArray) -> tuple[object, ...]:
    """The facts that give its bytes a meaning."""
    if isinstance(array, QuantArray):
        return (array.format.name,)
    return array.code.name, array.tiling, array.scale, array.zeros is not None


def _bytes(array: QuantArray | ScaledArray) -> list[Any]:
    if isinstance(array, QuantArray):
        return [array.raw]
    xp = namespace(array.codes)
    codes, scales, *zeros = array.parts()
    return [xp.ascontiguousarray(codes).view("u1"), xp.ascontiguousarray(scales).view("u1"), *zeros]
