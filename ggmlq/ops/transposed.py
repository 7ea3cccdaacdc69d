"""Products with weights as they lie: ``y @ q``, which is ``gq.linear(y, q.T)``, sums over rows of q.

On the CPU a kernel decodes a tile at a time into the cache. On a Hopper card kernels multiply blocks in 16
bits, and write results of 16 bits with their bias (cuda/kernels/mma/transposed.py). Elsewhere, and by name,
some rows are decoded, at most ``MOST_DECODED`` bytes, and CuPy multiplies with them, in float32.
"""

from __future__ import annotations

import math
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..arrays.weights import Divided, Transposed
from ..base.devices import cuda_module, namespace, on_device_of, place_at
from ..dispatch.checks import check_device
from ..errors import DTypeError, ShapeError, UnsupportedError
from .door import Operation, enter, operand
from .epilogue import Result, Wishes, delivered, ended, place_for_sums, result_of, takes_sums
from .product import by_pieces, does_without_cublas

MOST_DECODED = 256 << 20  # bytes of decoded weights at a time, on a GPU
NAMES = {"cpu": "cpu:transposed", "cuda": "cuda:transposed"}
ARITHMETIC = "f32"
PACKED, ROUNDED = "cuda:transposed_bf16", "bf16s"  # the kernel for blocks on Hopper, and its arithmetic


def product(request: str, y: Any, transposed: Transposed, wishes: Wishes) -> Any:
    """The product y [..., N] @ q [N, K] for ``q.T``, plus bias [K] and residual."""
    q = transposed.T
    packed = _check(request, q, wishes.kernel, wishes.arithmetic, wishes.invariant)
    return enter(Operation(request, multiply, shape=_shape), q, y, wishes, request=request, packed=packed)


def _shape(q: Any, y: Any, **options: Any) -> tuple[int, ...]:
    return (*y.shape[:-1], q.shape[1])


def multiply(q: Any, y: Any, wishes: Wishes, request: str, packed: bool) -> Any:
    """The product of arrays; ``packed``: by the kernel of packed weights."""
    floats = operand(request, y)
    check_device(request, floats.device, q, "y")
    y, (n, k) = floats.array, q.shape
    if y.ndim == 0 or y.shape[-1] != n:
        lies = y.ndim and y.shape[-1] == k
        way = "write x @ q.T for the product along rows of q" if lies else f"pass y as [..., {n}]"
        raise ShapeError(
            f"{request} with {q!r}: y has shape {tuple(y.shape)}; y @ q is [..., N] @ [N, K], with N {n}; "
            f"{way}"
        )
    result = result_of(request, wishes, (*y.shape[:-1], k), q.device, q, axis=1)
    with on_device_of(request, q.memory, q):
        if packed:
            return _by_packed(y, q, result)
        parts = q.parts() if isinstance(q, ScaledArray) else (q.memory,)
        xp, sums = result.place.xp, place_for_sums(result, y, result.bias, *parts)
        if sums is None:
            sums = xp.empty(result.shape, np.float32)
        rows = xp.ascontiguousarray(y.reshape(math.prod(y.shape[:-1]), n), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            to = sums.reshape(len(rows), k)
            if floats.on_host:
                if isinstance(q, QuantArray) and q.scale is not None:
                    rows, q = rows * q.scale, q.unscaled()
                import_module("ggmlq.cpu.linear.transposed").multiply(rows, q, to)
            elif wishes.invariant:
                to[...] = by_pieces(rows, k, np.float32, partial(_on_device, q=q))
            else:
                _on_device(rows, q, to)
        return delivered(result, sums, result.bias, result.residual)


def _check(request: str, q: Any, kernel: str, arithmetic: str | None, invariant: bool) -> bool:
    """True for the kernel of packed weights. Refuse weights that are no matrix on one device, and kernels
    that there are not.
    """
    if isinstance(q, Divided):
        raise UnsupportedError(
            f"{request} with {q!r}: weights on several devices are multiplied along their rows only, "
            "x @ s.T; gather them on one device for y @ q"
        )
    if not isinstance(q, QuantArray | ScaledArray):
        raise DTypeError(f"{request}: the weights are a {type(q).__name__}; they must be a QuantArray")
    if q.ndim != 2:
        way = f"q[e] for one of its {q.shape[0]} matrices" if q.ndim > 2 else "an array with rows"
        raise ShapeError(f"{request}: {q!r} is {q.ndim}-D; weights are [N, K]; pass {way}")
    device = q.device.partition(":")[0]
    kernels = {NAMES[device]: ARITHMETIC}
    reason = _refusal(q, invariant) if device == "cuda" else "is for a GPU"
    if reason is None:
        kernels = {PACKED: ROUNDED, **kernels}
    able = [name for name, way in kernels.items() if kernel in ("auto", name) and arithmetic in (None, way)]
    if not able:
        words = " or ".join(f"{name!r}, in the arithmetic {way!r}" for name, way in kernels.items())
        if kernel == PACKED:
            words += f"; {PACKED} {reason}" if reason else ""
        raise UnsupportedError(
            f"{request}: kernel={kernel!r}, arithmetic={arithmetic!r}; products along the rows of q have the "
            f"kernel {words}; leave both out"
        )
    return able[0] == PACKED


def _refusal(q: Any, invariant: bool) -> str | None:
    """The reason why the kernel of packed weights does not serve q, or None."""
    if invariant:
        return "does not keep the bits of a row whatever rows are beside it"
    if isinstance(q, ScaledArray):
        return "is written for blocks"
    reason: str | None = cuda_module("kernels.mma.transposed").refuses(q, place_at(q.device).card)
    return reason


def _by_packed(y: Any, q: QuantArray, result: Result) -> Any:
    """The product by the kernel of packed weights, which writes the result itself where it can."""
    k, xp, bias, kind = q.shape[1], result.place.xp, result.bias, result.dtype
    rows = y.reshape(math.prod(y.shape[:-1]), q.shape[0])
    if rows.dtype.char not in "fe":
        rows = rows.astype(np.float32)
    whole = result.residual is None and kind.char in "fe" and (bias is None or bias.dtype.char in "fe")
    if bias is not None:
        bias = xp.ascontiguousarray(bias)
    share = result.place.share
    direct = whole and takes_sums(share, result.out, y, q.memory, bias, dtype=kind)
    sums = result.out if direct else xp.empty(result.shape, kind if whole else np.float32)
    flat = sums.reshape(len(rows), k)
    by_library = not does_without_cublas(q.memory)
    cuda_module("kernels.mma.transposed").multiply(rows, q, flat, bias if whole else None, by_library)
    return ended(sums, result) if whole else delivered(result, sums, bias, result.residual)


def _on_device(y: Any, q: Any, out: Any = None) -> Any:
    """The product by CuPy, for some rows of weights at a time, decoded."""
    xp, (n, k) = namespace(y), q.shape
    if out is None:
        out = xp.empty((len(y), k), np.float32)
    out[...] = 0
    step = max(1, MOST_DECODED // (4 * max(k, 1)))
    for start in range(0, n, step):
        out += xp.matmul(y[:, start : start + step], q[start : start + step].dequantize())
    return out
