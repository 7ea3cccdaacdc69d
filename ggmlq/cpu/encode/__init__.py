"""Encoders compiled for the CPU; their bytes are those of the format's own ``pack``, where it has one.

    tiles.py       sixteen blocks at a time through the program of a format (``formats/_program.py``)
    program.py     the words of a program in registers
    floats16.py    numbers without blocks, in vectors; float16 results of products
    halves.py      float16 operands and results of products, converted by all threads
    iq2_iq3.py     searches in code books: scales and rows, and how each format's bits are packed
    iq1.py         the formats of three levels: sorted weights split in three
    books.py       what both searches share: importance, rows near a point

``encoder(fmt)`` takes the function ``encode_<format>`` of the file that ``FILES`` names, or else the program
in the format's ``pack``.
An encoder is ``encode(values, imatrix, blocks)``: float32 [rows, K], contiguous and finite; float32 [K]
or None; uint8 [rows, bytes a row] to fill. It runs on the calling thread without the global lock;
``ggmlq/ops/quantize.py`` deals out the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from ...formats import BlockFormat, Format
from ...formats._program import Packer
from ...formats.format import Bytes, Floats

Encode = Callable[[Floats, Floats | None, Bytes], None]
FILES = {
    "f16": "floats16", "bf16": "floats16", "iq1_s": "iq1", "iq1_m": "iq1", "iq2_xxs": "iq2_iq3",
    "iq2_xs": "iq2_iq3", "iq2_s": "iq2_iq3", "iq3_xxs": "iq2_iq3", "iq3_s": "iq2_iq3",
}  # fmt: skip


@cache
def encoder(fmt: Format) -> Encode | None:
    """The compiled ``encode`` of a format, or None; only finding one loads Numba."""
    stem = fmt.name.lower()
    encode: Encode | None = None
    if stem in FILES:
        encode = getattr(import_module(f".{FILES[stem]}", __name__), f"encode_{stem}")
    elif isinstance(fmt, BlockFormat) and isinstance(fmt.pack, Packer) and fmt.dtype.itemsize >= 16:
        tiles = import_module(".tiles", __name__)
        encode = tiles.encoder(fmt, fmt.pack)
    return encode
