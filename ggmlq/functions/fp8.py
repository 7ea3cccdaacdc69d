"""FP8 functions: quantize activations in groups of 128 and weights in blocks of 128 × 128, and multiply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..arrays.scaled import ScaledArray
from ..base.devices import namespace, on_device_of
from ..codes import CODES
from ..dispatch.checks import as_floats, float_dtype
from ..errors import ShapeError
from ..ops import quantize_scaled, scaled_linear
from .operands import as_codes, as_scales, block_pair, length, product, through_arrays, together, writable


@through_arrays
def act_quant(
    x: Any, block_size: int = 128, *, eps: float = 1e-10, scale: str = "float32"
) -> tuple[Any, Any]:
    """Quantize activations to e4m3, a scale for each ``block_size`` elements of the last axis.

    Parameters
    ----------
    x : array of floats
        [..., K], K a multiple of block_size, of any strides.
    block_size : int
        Elements that share a scale.
    eps : float
        The least magnitude that a scale is made for. The document has none: with ``eps=0`` a group of
        zeros has scale 0 and codes of NaN, as there.
    scale : str
        ``"float32"``, or ``"e8m0"``: powers of two, rounded up, as bytes.

    Returns
    -------
    codes uint8 [..., K] and scales [..., K / block_size].

    >>> import numpy as np, ggmlq as gq
    >>> y, s = gq.functions.act_quant(np.ones((2, 256), np.float32))
    >>> y.shape, y.dtype, s.shape, s.dtype
    ((2, 256), dtype('uint8'), (2, 2), dtype('float32'))
    """
    size = length("act_quant(x)", "block_size", block_size)
    request = f"act_quant(x, block_size={size})"
    x = as_floats(request, x, bfloat16=True)
    if not x.ndim or x.shape[-1] % size:
        raise ShapeError(
            f"{request}: x has shape {x.shape}; its last axis is cut into groups of {size} that share a "
            "scale, "
            f"so it is a multiple of {size}; pad it with zeros, or see "
            f'gq.quantize_scaled(x, "e4m3", (1, {size}), ragged="pad")'
        )
    s = quantize_scaled(x, "e4m3", (1, size), eps=eps, scale=scale)
    return writable(s.codes), writable(s.scales).reshape(*x.shape[:-1], x.shape[-1] // size)


@through_arrays
def weight_quant(
    w: Any, block_size: int = 128, *, eps: float = 1e-10, scale: str = "float32"
) -> tuple[Any, Any]:
    """Quantize weights [N, K] to e4m3, a scale for each block of ``block_size`` × ``block_size``.

    Blocks at the edges are smaller. Returns codes uint8 [N, K] and scales
    [N / block_size, K / block_size], each rounded up.

    >>> import numpy as np, ggmlq as gq
    >>> y, s = gq.functions.weight_quant(np.ones((576, 300), np.float32))
    >>> y.shape, s.shape
    ((576, 300), (5, 3))
    """
    size = length("weight_quant(w)", "block_size", block_size)
    request = f"weight_quant(w, block_size={size})"
    w = as_floats(request, w, "w", bfloat16=True)
    _two(request, "w", w)
    s = quantize_scaled(w, "e4m3", (size, size), eps=eps, scale=scale, ragged="pad")
    return writable(s.codes), writable(s.scales)


@through_arrays
def weight_dequant(codes: Any, s: Any, block_size: int = 128, dtype: DTypeLike = np.float32) -> Any:
    """The values code · scale of weights [N, K] in blocks, as :func:`weight_quant` makes them.

    Checkpoints may call s ``weight_scale_inv``; it is what codes are multiplied with all the same.
    """
    size = length("weight_dequant(codes, s)", "block_size", block_size)
    request = f"weight_dequant(codes, s, block_size={size})"
    array, code = as_codes(request, "codes", codes)
    _two(request, "codes", array)
    s = as_scales(request, "s", s)
    together(request, codes=array, s=s)
    want = tuple(-(-n // size) for n in array.shape)
    if s.shape != want:
        turned = "pass s.T" if s.shape == want[::-1] else "pass them so, or another block_size"
        raise ShapeError(
            f"{request}: s has shape {s.shape}, codes {array.shape} need {want}: "
            f"[N / {size}, K / {size}], each rounded up; {turned}"
        )
    return ScaledArray(array, s, code, (size, size)).dequantize(dtype)


@through_arrays
def fp8_gemm(
    a: Any, a_s: Any, b: Any, b_s: Any, *, block_size: int = 128, output_dtype: Any = np.float32
) -> Any:
    """``a [..., K] @ b [N, K].T`` of codes e4m3 with scales for every ``block_size`` of K.

    Parameters
    ----------
    a, a_s : arrays
        As :func:`act_quant` gives them: codes [..., K] and scales [..., K / block_size].
    b, b_s : arrays
        Codes [N, K], and scales [N / block_size, K / block_size] as :func:`weight_quant` gives them or
        [N, K / block_size] as :func:`act_quant` does, each rounded up.

    The sum of each group of K is multiplied with both scales and added up in float32: a scale that
    changes along K cannot be applied to the final result. K need not be whole groups.
    """
    size = length("fp8_gemm(a, a_s, b, b_s)", "block_size", block_size)
    request = f"fp8_gemm(a, a_s, b, b_s, block_size={size})"
    shape = as_codes(request, "b", b)[0].shape
    scales = as_scales(request, "b_s", b_s).shape
    rows = 1 if len(shape) == 2 and scales == (shape[0], -(-shape[1] // size)) else size
    p = product(request, a, b, a_s, b_s, (rows, size), "a b a_s b_s")
    return scaled_linear(p.x, p.w, dtype=output_dtype).reshape(p.shape)


def _two(request: str, name: str, w: Any) -> None:
    if w.ndim != 2:
        raise ShapeError(
            f"{request}: {name} has shape {w.shape}; weights are [N, K]"
            + (
                f"; pass {name}[e] for one matrix of them"
                if w.ndim > 2
                else f"; pass {name}[None] for one row"
            )
        )


# --- blocks: w8a8_block_fp8_matmul of serving frameworks --------------------------------------
# A [..., K] codes      As [..., K / block_k]              one scale for each group of a row
# B [N, K] codes        Bs [N / block_n, K / block_k]      one for each block, each rounded up
#
# C[m, n] = Σ over groups i of K:  (Σ A[m, k] · B[n, k]) · (As[m, i] · Bs[n / block_n, i])
#
# A comment that is often copied says Bs is [K / block_k, N / block_n]; the code beside it reads Bs as above.
# Scales of that shape are refused, and the error says how to pass them; where both shapes are the same they
# cannot be told apart.

NAMES = "A B As Bs"


@through_arrays
def w8a8_block_fp8_matmul(
    A: Any, B: Any, As: Any, Bs: Any, block_size: Any, output_dtype: Any = np.float16,
    config: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """``A [..., K] @ B [N, K].T`` of codes e4m3 with scales of groups (1, block_k) and of blocks.

    Parameters
    ----------
    A, B : arrays of codes
        [..., K] and [N, K], of any strides; K, N and the number of rows may be anything.
    As, Bs : arrays
        Scales [..., K / block_k] and [N / block_n, K / block_k], each rounded up.
    block_size : (int, int)
        [block_n, block_k].
    output_dtype : dtype
        Of the result; sums are float32. In float16 what does not fit becomes infinite.
    config : mapping, optional
        Tile sizes of a Triton kernel. They have no effect: the fastest kernel is taken, as by
        ``gq.scaled_linear``.
    """
    request = "w8a8_block_fp8_matmul(A, B, As, Bs, block_size)"
    block = block_pair(request, block_size)
    p = product(request, A, B, As, Bs, block, NAMES)
    return scaled_linear(p.x, p.w, dtype=float_dtype(request, output_dtype)).reshape(p.shape)


@through_arrays
def native_w8a8_block_fp8_matmul(
    A: Any, B: Any, As: Any, Bs: Any, block_size: Any, output_dtype: Any = np.float16
) -> Any:
    """Compute the product in plain array operations of float32, block by block: the check of the document.

    It is there to be read and to be compared with; :func:`w8a8_block_fp8_matmul` says what the arguments are.
    """
    request = "native_w8a8_block_fp8_matmul(A, B, As, Bs, block_size)"
    p = product(request, A, B, As, Bs, block_pair(request, block_size), NAMES)
    kind = float_dtype(request, output_dtype)
    with on_device_of(request, p.w.codes), np.errstate(over="ignore", invalid="ignore"):
        a, a_s, _ = _decoded(p.x)
        b, b_s, xp = _decoded(p.w)
        (bn, bk), (n, k) = p.block, b.shape
        c = xp.zeros((len(a), n), np.float32)
        for i, at in enumerate(range(0, k, bk)):
            for j, row in enumerate(range(0, n, bn)):
                part, rows = slice(at, at + bk), slice(row, row + bn)
                c[:, rows] += (a[:, part] @ b[rows, part].T) * (a_s[:, i : i + 1] * b_s[j, i])
        return c.astype(kind, copy=False).reshape(p.shape)


def _decoded(s: ScaledArray) -> tuple[Any, Any, Any]:
    """Codes as float32 and scales."""
    m = s.matrix()
    return CODES[s.code].decode(m.codes), m.scales, namespace(m.codes)
