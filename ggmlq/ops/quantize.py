"""``gq.quantize``: floats encoded as blocks of any format, on the host or on a GPU."""

from __future__ import annotations

import importlib
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.buffers import check_row, frozen
from ..arrays.tensors import untraced
from ..base.devices import cuda_module, on_device_of, to_host
from ..base.progress import Progress
from ..base.threads import PARTS, num_threads, share
from ..base.unwinding import until_imported
from ..codes import CODES
from ..dispatch.checks import check_imatrix, finite_float32, row_index
from ..errors import FormatError, NonFiniteError, ShapeError, UnsupportedError
from ..formats import FORMATS, BlockFormat, Format
from ..formats.format import Bytes, Floats
from ..formats.scalars import ScalarFormat
from . import feedback
from .door import operand

# A format has a ``pack`` in NumPy, an encoder compiled by ``ggmlq/cpu/encode``, or both. Both write the
# same bytes. Loading compiled code takes seconds, so NumPy serves until it has taken about as long.

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


def encoded_rows(request: str, fmt: Format, x: NDArray[Any], weights: Floats | None = None) -> Bytes:
    """The bytes [..., bytes a row] of finite x [..., K]; a warning of blocks that are not valid."""
    raw = np.empty((*x.shape[:-1], fmt.row_bytes(x.shape[-1])), np.uint8)
    if not x.size:
        return raw
    rows, blocks = x.reshape(-1, x.shape[-1]), raw.reshape(-1, raw.shape[-1])
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

    with Progress(rows.size, f"encoding {fmt.name}", unit="w") as progress:
        first, step = 0, few * encoder.threads * PARTS
        while first < len(rows) and not refused:
            started, count = time.monotonic(), min(step, len(rows) - first)
            share(work, count, grain=few if encoder.threads > 1 else count)
            progress.advance(count * rows.shape[1])
            first += count
            if time.monotonic() - started < BLINK:
                step *= 2  # waking threads costs as much as encoding a little
    if refused:
        raise refused[min(refused)]  # the first by place, whichever thread was first in time
    if damaged:
        warn_of_invalid(request, fmt, blocks.view(fmt.dtype), x.shape)
    return raw


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


SQUARED = 1.8e19  # its square is the largest float32
HARMLESS = 1e4  # importance that overflows nothing with values that a half scale reaches


@untraced
def quantize(x: Any, format: str | int | Format, imatrix: Any = None, *, moments: Any = None) -> QuantArray:
    """Encode floats into blocks, with the bytes that ggml writes.

    Parameters
    ----------
    x : array of floats
        float16, bfloat16, float32 or float64; the last axis is cut into blocks. A CuPy array
        gives a QuantArray on its device, encoded there if there is a kernel for the format and no
        imatrix, else on the host.
    format : str, int or Format
        Name in any case, ggml id, or Format.
    imatrix : array, optional
        Importance of each column, 1-D of length K, at least 0. Formats whose encoder in ggml
        takes no notice of it ignore it here too; a few cannot be encoded without it.
    moments : array, optional
        Error feedback: ``x_in.T @ x_in`` of inputs of the product, [K, K]. Later columns make good what a
        column loses by rounding, so outputs are nearer, values farther, and bytes are not ggml's. Its
        diagonal is the importance where there is no imatrix.

    Raises
    ------
    NonFiniteError
        On the first NaN or infinity, with its place. ggml would store garbage.
    UnsupportedError
        For a format that this version only decodes.
    ShapeError, DTypeError
        For rows that are not whole blocks, and for x that is no array of floats.
    ImportanceError
        For an imatrix that is missing where it is needed, negative, or 0 everywhere.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.linspace(-1, 1, 32, dtype=np.float32), "q4_0")
    >>> q.blocks["d"][0], np.asarray(q)[[0, 31]]
    (np.float16(0.125), array([-1.   ,  0.875], dtype=float32))
    """
    fmt = _format(format)
    request = f"quantize(x, {fmt.name!r})"
    check_can_quantize(request, fmt)
    imatrix, moments, floats = to_host(imatrix), to_host(moments), operand(request, x, bfloat16=True)
    if floats.device == "cpu":
        return _encoded(request, fmt, floats.array, imatrix, moments)
    with on_device_of(request, floats.array):
        alone = imatrix is None and moments is None
        encoded = cuda_module("kernels.quantize").quantize(floats.array, fmt) if alone else None
        return encoded or _encoded(request, fmt, floats.array.get(), imatrix, moments).to(floats.device)


def _encoded(request: str, fmt: Format, x: NDArray[Any], imatrix: Any, moments: Any) -> QuantArray:
    """Floats on the host in blocks; their shape and the importance of columns are checked here."""
    if x.ndim == 0:
        raise ShapeError(f"{request}: x is a scalar; blocks need an axis, pass at least 1-D")
    columns = x.shape[-1]
    if columns % fmt.block_size:
        check_row(request, fmt, columns, _fallback(fmt, columns))
    if moments is not None:
        moments = feedback.checked(request, moments, columns)
        imatrix = moments.values.diagonal() if imatrix is None else imatrix
    weights = check_imatrix(request, fmt, imatrix, columns)
    if x.size and weights is not None:
        _warn_of_overflow(request, fmt, x, weights)
    if moments is None or fmt.block_size == 1 or not x.size:
        return QuantArray(fmt, x.shape, frozen(encoded_rows(request, fmt, x, weights)))
    rows = finite_float32(request, x.reshape(-1, columns), x.shape, 0)
    raw = feedback.fed_back(
        fmt, rows, moments.root,
        lambda values, some: encoded_rows(request, fmt, values, None if weights is None else weights[some]),
    )  # fmt: skip
    if any_invalid(fmt, raw):
        warn_of_invalid(request, fmt, raw.view(fmt.dtype), x.shape)
    return QuantArray(fmt, x.shape, frozen(raw.reshape(*x.shape[:-1], -1)))


def _format(format: str | int | Format) -> Format:
    try:
        return FORMATS[format]
    except FormatError as error:
        if isinstance(format, str) and format.lower() in CODES:
            raise FormatError(
                f"quantize(x, {format!r}): a code of {8 * CODES[format].dtype.itemsize} bits, whose scales "
                f"lie beside it, and no type of blocks; write gq.quantize_scaled(x, {CODES[format].name!r})"
            ) from None
        raise error


def check_can_quantize(request: str, fmt: Format) -> None:
    """Refuse a format that this version only decodes."""
    if not fmt.can_quantize:
        able = ", ".join(f.name for f in FORMATS.values() if f.can_quantize)
        raise UnsupportedError(
            f"{request}: this version decodes {fmt.name} but cannot encode it; it encodes {able}; "
            "blocks made elsewhere come in through QuantArray.from_bytes"
        )


def _fallback(fmt: Format, elements: int) -> str | None:
    """The type to which llama.cpp encodes rows that are no whole blocks."""
    name: str | None = getattr(fmt, "fallback", None)
    return name if name is None or elements % FORMATS[name].block_size == 0 else "f16"


def _warn_of_overflow(request: str, fmt: Format, x: NDArray[Any], weights: NDArray[np.float32]) -> None:
    """Warn of infinite squares of weighted sums: encoders compare them in float32, and none is the best."""
    largest = float(weights.max())
    if largest < HARMLESS or getattr(fmt, "imatrix", "ignored") == "ignored":
        return
    if largest * float(np.abs(x).max()) ** 2 * fmt.block_size >= SQUARED:
        warnings.warn(
            f"{request}: with importance up to {largest:.0e} squares of weighted sums pass float32, and "
            "ggml's "
            "encoder, whose bytes these are, takes wrong scales or none; only ratios count: divide the "
            "importance by its largest value",
            RuntimeWarning,
            stacklevel=3,
        )


def warn_of_invalid(request: str, fmt: Format, blocks: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Warn of blocks with scales that are not finite: finite float32 values may be too large for a half."""
    bad = fmt.invalid(blocks)
    if bad.any():
        row, block = np.argwhere(bad)[0].tolist()
        start = block * fmt.block_size
        place = ", ".join(map(str, [*row_index(row, shape), f"{start}:{start + fmt.block_size}"]))
        warnings.warn(
            f"{request}: {int(bad.sum())} blocks have a scale or value that {fmt.name} cannot hold "
            f"(the first is x[{place}]) and will not decode to what went in; rescale x first",
            RuntimeWarning,
            stacklevel=3,
        )
