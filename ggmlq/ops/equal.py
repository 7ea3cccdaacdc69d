"""Whether two arrays hold the same."""

from __future__ import annotations

from ..array import QuantArray
from ..devices import on_device_of
from ..errors import DTypeError


def equal(a: QuantArray, b: QuantArray) -> bool:
    """Whether two arrays have the same format, shape and bytes, on the host or on a device.

    Of a big-endian file the little-endian bytes count. NaN equals NaN here if the bytes do.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.eye(2, 64, dtype=np.float32), "q8_0")
    >>> gq.equal(q, q.copy()), gq.equal(q, q[:1])
    (True, False)
    """
    for name, each in (("a", a), ("b", b)):
        if not isinstance(each, QuantArray):
            raise DTypeError(
                f"equal(a, b): {name} is a {type(each).__name__}; both must be QuantArrays; "
                "compare values as np.array_equal(np.asarray(q), x)"
            )
    if a.format is not b.format or a.shape != b.shape:
        return False
    if a is b:
        return True
    if a.device != b.device:
        a, b = a.to("cpu"), b.to("cpu")
    with on_device_of("equal(a, b)", a.memory):
        return bool((a.raw == b.raw).all())
