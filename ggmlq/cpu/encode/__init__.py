"""Encoders compiled for the CPU; their bytes are those of the format's own ``pack``, where it has one.

    _tiles.py          sixteen blocks at a time through the program of a format (``formats/_program.py``)
    _program.py        the words of a program in registers
    f16.py, bf16.py    numbers without blocks, in vectors
    _halves.py         float16 operands and results of products, converted
    _narrowing.py      the kernel of such results
    iq2*.py, iq3*.py   searches in code books: settings, and how the bits are packed
    _search.py         their search for scales and rows of a code book
    _importance.py     weights in that search
    _fit.py            the scale and rows of a run
    _nearest.py        the row nearest to a point
    _neighbours.py     rows near a point that is none
    _rounding.py       ggml's float to integer
    iq1*.py            the formats of three levels, by _iq1.py
    _iq1.py            their search
    _thirds.py         sorted weights split in three

``encoder(fmt)`` takes the file of the format's name, or else the program in its ``pack``.
An encoder is ``encode(values, imatrix, blocks)``: float32 [rows, K], contiguous and finite; float32 [K]
or None; uint8 [rows, bytes a row] to fill. It runs on the calling thread without the global lock;
``ggmlq/ops/quantize.py`` deals out the rows.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from ...formats import BlockFormat, Format
from ...formats._program import Packer
from ...formats.format import Bytes, Floats

Encode = Callable[[Floats, Floats | None, Bytes], None]


@cache
def encoder(fmt: Format) -> Encode | None:
    """The compiled ``encode`` of a format, or None; only finding one loads Numba."""
    stem = fmt.name.lower()
    encode: Encode | None = None
    if stem in {module.name for module in pkgutil.iter_modules(__path__)}:
        encode = importlib.import_module(f"{__name__}.{stem}").encode
    elif isinstance(fmt, BlockFormat) and isinstance(fmt.pack, Packer) and fmt.dtype.itemsize >= 16:
        tiles = importlib.import_module(f"{__name__}._tiles")
        encode = tiles.encoder(fmt, fmt.pack)
    return encode
