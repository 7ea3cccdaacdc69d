"""Conversion of float16 operands and results of products, in vectors and by all threads."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...formats import FORMATS
from ..machine.kernels import kernel
from ..machine.workers import share_kernel
from ..unpack import decode_into

PART = 1 << 14  # numbers of a thread's part


class Narrowing(NamedTuple):
    """Arguments of the kernel of ``floats16.py``."""

    values: int  # address of float32
    halves: int  # of float16


def float_rows(x: Any) -> Any:
    """Rows x as contiguous float32; float16 is widened by the decoder of its format."""
    if x.dtype == np.float16 and x.size:
        halves, values = np.ascontiguousarray(x), np.empty(x.shape, np.float32)
        decode_into(FORMATS["f16"], halves.reshape(-1).view(np.uint8), values)
        return values
    return np.ascontiguousarray(x, np.float32)


def narrow_into(values: Any, halves: Any) -> bool:
    """Contiguous float32 to contiguous float16; False, and nothing done, where that had to be compiled."""
    work = kernel("encode.floats16.narrower")
    if not work.at_hand:
        return False
    share_kernel(work, Narrowing(values.ctypes.data, halves.ctypes.data), values.size, PART)
    return True
