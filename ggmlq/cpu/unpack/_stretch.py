"""Blocks to float32 by code that may have come with the package: ``_decode.py``, asked by address."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats import Format
from ...formats.format import Bytes
from ..machine.kernels import kernel
from ..machine.workers import alone
from . import has_file


class Stretch(NamedTuple):
    """Arguments of a decoder."""

    raw: int  # address of whole blocks
    nbytes: int
    values: int  # address of float32
    length: int


def decode_into(fmt: Format, raw: Bytes, values: NDArray[np.float32]) -> bool:
    """Contiguous blocks to contiguous floats; False, and nothing done, where only NumPy decodes a format."""
    if not has_file(fmt):
        return False
    arguments = Stretch(raw.ctypes.data, raw.size, values.ctypes.data, values.size)
    alone(kernel("unpack._decode.floats", fmt), arguments, values.size)
    return True
