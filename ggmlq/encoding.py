"""Rows of floats to blocks: by which encoder, on how many threads, how many rows at a time.

Every format that can be encoded has a ``pack`` in NumPy. Where ``ggmlq/cpu/encode`` has a file of
the format's name, large arrays go through that: the same bytes from compiled code.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from .checks import finite_float32
from .cpu.threads import num_threads, share
from .formats import BlockFormat, Format
from .formats.format import Bytes, Floats
from .progress import Progress

Encoder = Callable[[Floats, Floats | None, Bytes], None]

SLAB = 1 << 18  # elements a thread encodes between two looks at the keyboard; temporaries stay in the cache
COMPILING = 2e6  # microseconds that loading and compiling an encoder takes, roughly


def encode_rows(asked: str, fmt: Format, x: NDArray[Any], weights: Floats | None, blocks: Bytes) -> None:
    """Encode x [..., K], checked to be finite, into blocks [rows, bytes a row]."""
    rows = x.reshape(-1, x.shape[-1])
    encode = _encoder(fmt, rows.size)
    step = max(1, SLAB * num_threads() // rows.shape[1])
    progress = Progress(rows.size, f"encoding {fmt.name}", unit="w")
    try:
        for first in range(0, len(rows), step):
            slab = slice(first, first + step)
            _encode_slab(asked, encode, rows[slab], x.shape, first, weights, blocks[slab])
            progress.advance(rows[slab].size)
    finally:
        progress.close()


def prepare(fmt: Format, elements: int) -> None:
    """Load the compiled encoder if so many elements, to be encoded in many calls, repay it."""
    _encoder(fmt, elements)


def _encode_slab(
    asked: str, encode: Encoder, rows: NDArray[Any], shape: tuple[int, ...], first: int,
    weights: Floats | None, blocks: Bytes,
) -> None:  # fmt: skip
    def work(start: int, stop: int) -> None:
        encode(finite_float32(asked, rows[start:stop], shape, first + start), weights, blocks[start:stop])

    share(work, len(rows))


def _encoder(fmt: Format, elements: int) -> Encoder:
    """The compiled encoder once it is loaded, or when so many elements repay the loading."""
    module = f"{__package__}.cpu.encode.{fmt.name.lower()}"
    large = isinstance(fmt, BlockFormat) and elements > fmt.pack_speed * COMPILING
    if module in sys.modules or (large and importlib.util.find_spec(module)):
        compiled: Encoder = importlib.import_module(module).encode
        return compiled

    def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
        blocks.view(fmt.dtype)[...] = fmt.encode(values, imatrix)

    return encode
