"""Rows of floats to blocks: by which encoder, on how many threads, how many rows at a time.

A format has a ``pack`` in NumPy, a compiled encoder in ``ggmlq/cpu/encode``, or both: then the bytes
are the same, and since loading compiled code takes seconds NumPy serves until it has cost as much.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

from .checks import finite_float32
from .cpu.threads import num_threads, share
from .errors import NonFiniteError
from .formats import BlockFormat, Format
from .formats.format import Bytes, Floats
from .progress import Progress

SLAB = 1 << 18  # elements a thread encodes between two looks at the keyboard; NumPy's copies fit the cache
PART = 1 << 15  # elements that are worth waking a thread for
PATIENCE = 1.0  # seconds that NumPy may have taken before a compiled encoder is loaded instead

_spent: defaultdict[tuple[str, bool], float] = defaultdict(
    float
)  # seconds of NumPy, estimated, by format and weighting


class Encoder(NamedTuple):
    """What encodes rows, and how rows are dealt out to it."""

    encode: Callable[[Floats, Floats | None, Bytes], None]
    threads: int


def encode_rows(asked: str, fmt: Format, x: NDArray[Any], weights: Floats | None, blocks: Bytes) -> None:
    """Encode x [..., K], checked to be finite, into blocks [rows, bytes a row]."""
    rows = x.reshape(-1, x.shape[-1])
    encoder = _encoder(fmt, rows.size, weights is not None)
    step = max(1, SLAB * encoder.threads // rows.shape[1])
    progress = Progress(rows.size, f"encoding {fmt.name}", unit="w")
    try:
        for first in range(0, len(rows), step):
            slab = slice(first, first + step)
            _encode_slab(asked, encoder, rows[slab], x.shape, first, weights, blocks[slab])
            progress.advance(rows[slab].size)
    finally:
        progress.close()


def prepare(fmt: Format, elements: int, weighted: bool) -> None:
    """Load the compiled encoder if so many elements, to be encoded in many calls, repay it."""
    _encoder(fmt, elements, weighted)


def _encode_slab(
    asked: str, encoder: Encoder, rows: NDArray[Any], shape: tuple[int, ...], first: int,
    weights: Floats | None, blocks: Bytes,
) -> None:  # fmt: skip
    refused: dict[int, NonFiniteError] = {}

    def work(start: int, stop: int) -> None:
        try:
            values = finite_float32(asked, rows[start:stop], shape, first + start)
        except NonFiniteError as error:
            refused[start] = error
        else:
            encoder.encode(values, weights, blocks[start:stop])

    share(work, len(rows), grain=math.ceil(PART / rows.shape[1]) if encoder.threads > 1 else len(rows))
    if refused:
        raise refused[min(refused)]  # the first by place, whichever thread was first in time


def _encoder(fmt: Format, elements: int, weighted: bool) -> Encoder:
    """NumPy's, or the compiled one where there is no other or NumPy has become dear."""
    search = must = False
    if isinstance(fmt, BlockFormat):
        search = fmt.search == "always" or (fmt.search == "weighted" and weighted)
        must = fmt.pack is None
    _spent[fmt.name, weighted] += 0.02 + elements / 5e6 if search else elements / 2e8
    dear = _spent[fmt.name, weighted] > (PATIENCE if search else PATIENCE / 2)
    if (must or dear) and fmt.has_compiled_encoder:
        return Encoder(fmt.compiled_encoder(), num_threads())

    def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
        blocks.view(fmt.dtype)[...] = fmt.encode(values, imatrix)

    # A search in NumPy takes so many small steps that a second thread would only wait for the first.
    return Encoder(encode, 1 if search else num_threads())
