"""Encoding of rows on the host for ``quantize``: chooses the encoder, the threads and the rows at a time.

A format has a ``pack`` in NumPy, an encoder compiled by ``ggmlq/cpu/encode``, or both. Both write the same
bytes. Loading compiled code takes seconds, so NumPy serves until it has taken about as long.
"""

from __future__ import annotations

import importlib
import time
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ..base.progress import Progress
from ..base.threads import PARTS, num_threads, share
from ..base.unwinding import until_imported
from ..dispatch.checks import finite_float32
from ..errors import NonFiniteError, ShapeError
from ..formats import BlockFormat, Format
from ..formats.format import Bytes, Floats
from ..formats.scalars import ScalarFormat

# Elements encoded by one call: few enough that NumPy's copies stay in the cache, and enough that threads
# rarely wait for each other at Python's lock. A compiled search is long enough with fewer.
SLAB = 1 << 18
BLINK = 0.05  # seconds between two looks at the keyboard and at the progress, or more
PATIENCE = 1.0  # seconds that NumPy may have taken before a compiled encoder is loaded instead

# Seconds of NumPy so far, estimated, by format and weighting.
_spent: defaultdict[tuple[str, bool], float] = defaultdict(float)


Encode = Callable[[Floats, Floats | None, Bytes], None]


class Encoder(NamedTuple):
    """An encoder of rows, the number of its threads, and the elements of one call."""

    encode: Encode
    threads: int
    slab: int


def encode_rows(request: str, fmt: Format, x: NDArray[Any], weights: Floats | None, blocks: Bytes) -> bool:
    """Encode finite x [..., K] into blocks [rows, bytes a row]; True if all blocks are valid."""
    rows = x.reshape(-1, x.shape[-1])
    if blocks.shape != (len(rows), fmt.row_bytes(x.shape[-1])):  # or compiled code writes beyond them
        raise ShapeError(
            f"{request}: x has shape {x.shape}, its blocks of {fmt.name} {blocks.shape} bytes; they are rows "
            f"of {fmt.row_bytes(x.shape[-1])} bytes, one for each of x; make room of that shape"
        )
    encoder = _encoder(fmt, rows.size, weights is not None)
    few = max(1, encoder.slab // rows.shape[1])
    damaged: list[int] = []
    refused: dict[int, NonFiniteError] = {}

    def work(start: int, stop: int) -> None:
        for at in range(first + start, first + stop, few):
            slab = slice(at, min(at + few, first + stop))
            try:
                values = finite_float32(request, rows[slab], x.shape, at)
            except NonFiniteError as error:
                refused[at] = error
                return
            encoder.encode(values, weights, blocks[slab])
            if any_invalid(fmt, blocks[slab]):  # checked while they are in the cache
                damaged.append(at)

    progress = Progress(rows.size, f"encoding {fmt.name}", unit="w")
    try:
        first, step = 0, few * encoder.threads * PARTS
        while first < len(rows) and not refused:
            started, count = time.monotonic(), min(step, len(rows) - first)
            share(work, count, grain=few if encoder.threads > 1 else count)
            progress.advance(count * rows.shape[1])
            first += count
            if time.monotonic() - started < BLINK:
                step *= 2  # waking threads costs as much as encoding a little
    finally:
        progress.close()
    if refused:
        raise refused[min(refused)]  # the first by place, whichever thread was first in time
    return not damaged


def any_invalid(fmt: Format, blocks: Bytes) -> bool:
    """True if a block holds NaN, an infinity or a forbidden value; for 16 bits two maxima suffice."""
    if not isinstance(fmt, ScalarFormat) or fmt.dtype.itemsize != 2 or fmt.dtype.kind == "i":
        return bool(fmt.invalid(blocks.view(fmt.dtype)).any())
    bits, least = blocks.view("<u2"), 0x7F80 if fmt.bfloat else 0x7C00
    return bool(bits.size and (bits.view("<i2").max() >= least or bits.max() >= 0x8000 | least))


def prepare(fmt: Format, elements: int, weighted: bool) -> None:
    """Load the compiled encoder if so many elements, which come in many calls, repay the loading."""
    _encoder(fmt, elements, weighted)


def _encoder(fmt: Format, elements: int, weighted: bool) -> Encoder:
    """NumPy's encoder; the compiled one where there is no other, or NumPy has taken too long."""
    search = must = False
    if isinstance(fmt, BlockFormat):
        search = fmt.search == "always" or (fmt.search == "weighted" and weighted)
        must = fmt.compiled_only
    _spent[fmt.name, weighted] += 0.02 + elements / 5e6 if search else elements / 2e8
    dear = _spent[fmt.name, weighted] > (PATIENCE if search else PATIENCE / 2)
    encode = compiled_encoder(fmt) if must or dear else None
    if encode is not None:
        return Encoder(encode, num_threads(), SLAB // 4 if search or must else SLAB)

    def in_numpy(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
        blocks.view(fmt.dtype)[...] = fmt.encode(values, imatrix)

    # A search in NumPy takes so many small steps that a second thread would only wait for the first.
    return Encoder(in_numpy, 1 if search else num_threads(), SLAB)


@cache
def compiled_encoder(fmt: Format) -> Encode | None:
    """The compiled ``encode(values, imatrix, blocks)`` of a format, or None; loads Numba."""
    with until_imported("numba"):
        encode: Encode | None = importlib.import_module("ggmlq.cpu.encode").encoder(fmt)
    return encode
