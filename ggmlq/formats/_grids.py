"""The code books of the IQ formats: data, read out of ggml by ``tools/make_grids.py``.

Each is an int8 array [rows, values]; a format's index names a row.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ._bits import sign_bits

FILE = Path(__file__).with_name("_grids.npz")

# The eight sign bits of each 7-bit sign index.
SIGNS = np.array([sign_bits(index) for index in range(128)], np.uint8)


@cache
def _all() -> dict[str, NDArray[np.int8]]:
    with np.load(FILE) as books:
        return dict(books)


def grid(name: str) -> NDArray[np.int8]:
    """The code book of that name."""
    return _all()[name]
