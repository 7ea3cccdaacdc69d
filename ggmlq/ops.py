"""The operations: check, choose a kernel, run."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import ladder, ordinary, tensors
from .array import QuantArray
from .buffers import check_row, frozen
from .checks import (
    as_floats,
    check_bias,
    check_imatrix,
    check_linear,
    check_out,
    float_dtype,
    row_index,
    takes_sums,
)
from .decoding import decode_into
from .devices import cuda_driver, cuda_module, device_of, is_host, namespace, on_device_of, to_host
from .encoding import encode_rows
from .errors import DTypeError, ShapeError, UnsupportedError
from .formats import FORMATS, Format

SQUARED = 1.8e19  # its square is the largest float32
HARMLESS = 1e4  # importance that overflows nothing with values that a half scale reaches


def quantize(x: Any, format: str | int | Format, imatrix: Any = None) -> QuantArray:
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
    fmt = FORMATS[format]
    asked = f"quantize(x, {fmt.name!r})"
    imatrix = to_host(imatrix)
    if tensors.is_tensor(x):
        x = tensors.array_of(asked, x, "x")
    if not is_host(x):
        with on_device_of(asked, x):
            encoded = None if imatrix is not None else cuda_module("quantize").quantize(x, fmt)
            return encoded or quantize(x.get(), fmt, imatrix).to(device_of(x))
    _check_can_quantize(asked, fmt)
    x = as_floats(asked, x)
    if x.ndim == 0:
        raise ShapeError(f"{asked}: x is a scalar; blocks need an axis, pass at least 1-D")
    check_row(asked, fmt, x.shape[-1], _fallback(fmt, x.shape[-1]))
    weights = check_imatrix(asked, fmt, imatrix, x.shape[-1])
    raw = np.empty((*x.shape[:-1], fmt.row_bytes(x.shape[-1])), np.uint8)
    if x.size:
        if weights is not None:
            _warn_of_overflow(asked, fmt, x, weights)
        blocks = raw.reshape(-1, raw.shape[-1])
        if not encode_rows(asked, fmt, x, weights, blocks):
            _warn_of_invalid(asked, fmt, blocks.view(fmt.dtype), x.shape)
    return QuantArray(fmt, x.shape, frozen(raw))


def _check_can_quantize(asked: str, fmt: Format) -> None:
    if not fmt.can_quantize:
        able = ", ".join(f.name for f in FORMATS.values() if f.can_quantize)
        raise UnsupportedError(
            f"{asked}: this version decodes {fmt.name} but cannot encode it; it encodes {able}; "
            "blocks made elsewhere come in through QuantArray.from_bytes"
        )


def _fallback(fmt: Format, elements: int) -> str | None:
    """What llama.cpp encodes rows with that are no whole blocks."""
    name: str | None = getattr(fmt, "fallback", None)
    return name if name is None or elements % FORMATS[name].block_size == 0 else "f16"


def _warn_of_overflow(asked: str, fmt: Format, x: NDArray[Any], weights: NDArray[np.float32]) -> None:
    """Encoders compare squares of weighted sums in float32; where these are infinite none is the best."""
    largest = float(weights.max())
    if largest < HARMLESS or getattr(fmt, "imatrix", "ignored") == "ignored":
        return
    if largest * float(np.abs(x).max()) ** 2 * fmt.block_size >= SQUARED:
        warnings.warn(
            f"{asked}: with importance up to {largest:.0e} squares of weighted sums pass float32, and ggml's "
            "encoder, whose bytes these are, takes wrong scales or none; only ratios count: divide the "
            "importance by its largest value",
            RuntimeWarning,
            stacklevel=3,
        )


def _warn_of_invalid(asked: str, fmt: Format, blocks: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Values that are finite as float32 may still be too large for a half scale."""
    bad = fmt.invalid(blocks)
    if bad.any():
        row, block = np.argwhere(bad)[0].tolist()
        start = block * fmt.block_size
        place = ", ".join(map(str, [*row_index(row, shape), f"{start}:{start + fmt.block_size}"]))
        warnings.warn(
            f"{asked}: {int(bad.sum())} blocks have a scale or value that {fmt.name} cannot hold "
            f"(the first is x[{place}]) and will not decode to what went in; rescale x first",
            RuntimeWarning,
            stacklevel=3,
        )


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


def dequantize(q: QuantArray, dtype: DTypeLike | None = np.float32) -> Any:
    """Decode blocks to floats on the device of q, with the bits of ggml's float32.

    float16 and float64 are that float32 converted (an f64 or integer tensor converts directly).
    """
    if not isinstance(q, QuantArray):
        raise DTypeError(
            f"dequantize(q): got {type(q).__name__}; it takes a QuantArray; "
            "wrap bytes with QuantArray.from_bytes(raw, format, shape)"
        )
    kind = float_dtype(f"dequantize of {q!r}", dtype)
    if q.device != "cpu":
        with on_device_of(f"dequantize of {q!r}", q.memory, q):
            return cuda_module("dequantize").dequantize(q, kind)
    values = np.empty(q.shape, kind)
    if values.size:
        decode_into(q, values)
    return values


def linear(
    x: Any,
    q: QuantArray,
    *,
    kernel: str = "auto",
    arithmetic: str | None = None,
    out: Any = None,
    bias: Any = None,
    dtype: DTypeLike | None = np.float32,
) -> Any:
    """Multiply activations with quantized weights: ``x [..., K] @ q [N, K].T``.

    Parameters
    ----------
    x : array of floats
        Activations [..., K], on the device of q. A torch tensor gives a torch tensor.
    q : QuantArray
        Weights [N, K]. Those of f64 and integer tensors are rounded to float32.
    kernel : str
        ``"auto"``, or a kernel's name such as ``"cpu:panels"``; see :func:`ggmlq.kernels`.
    arithmetic : str, optional
        Choose only kernels that multiply in this arithmetic.
    out : array, optional
        Receives the result, in its own dtype, and is returned. It may overlap the operands.
    bias : array, optional
        Added to each row, [N].
    dtype : dtype
        Of the result, float16, float32 or float64; the sums are float32 or better.

    Returns
    -------
    array
        [..., N] on the device of q.

    >>> import numpy as np, ggmlq as gq
    >>> w = gq.quantize(np.eye(3, 32, dtype=np.float32), "q8_0")
    >>> gq.linear(np.ones(32, np.float32), w) > 0.99
    array([ True,  True,  True])
    """
    if not is_host(x):
        try:
            if (y := ordinary.linear(x, q, kernel, arithmetic, out, bias, dtype)) is not None:
                return y
        except MemoryError:
            pass  # what follows says it in words
    if tensors.is_tensor(x):
        return tensors.linear(linear, x, q, out, bias, dtype, kernel=kernel, arithmetic=arithmetic)
    asked = "linear(x, q)"
    x = check_linear(asked, x, q)
    n, k = q.shape
    shape = (*x.shape[:-1], n)
    kind = float_dtype(asked, dtype)
    if out is not None:
        check_out(asked, out, shape, q.device)
    if bias is not None:
        bias = check_bias(asked, bias, q)
    rows = x.reshape(math.prod(x.shape[:-1]), k)
    problem = ladder.Problem("linear", q.format, len(rows), n, k, q.device.partition(":")[0], q.lasting)
    share = np.may_share_memory if is_host(x) else cuda_driver().share
    direct = takes_sums(share, out, x, q.memory, bias)
    with on_device_of(problem, x, q):
        rung = ladder.choose(problem, kernel, arithmetic)
        y = out.reshape(len(rows), n) if direct else namespace(x).empty((len(rows), n), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are results, as on a GPU
            rung.launch(rows, q, y)
            if bias is not None:
                y += bias
            if out is None:
                return y.astype(kind, copy=False).reshape(shape)
            if not direct:
                out[...] = y.reshape(shape)
    return out
