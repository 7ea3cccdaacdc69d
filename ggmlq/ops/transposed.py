"""Products with weights as they lie: ``y @ q``, which is ``gq.linear(y, q.T)``, sums over rows of q.

On the CPU a kernel decodes a tile at a time into the cache. On a Hopper card kernels multiply blocks in 16
bits, and write results of 16 bits with their bias (cuda/linear/transposed.py). Elsewhere, and by name,
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
from ..arrays.tensors import is_tensor
from ..arrays.weights import Divided, Transposed
from ..base.devices import cuda_module, device_of, is_host, namespace, on_device_of, place_of
from ..dispatch.checks import as_floats, check_bias, check_device, takes_sums
from ..errors import DTypeError, ShapeError, UnsupportedError
from . import tensors
from .call import by_pieces, does_without_cublas
from .epilogue import Ending, empty_sums, ended, ending, place_for_sums, plus

MOST_DECODED = 256 << 20  # bytes of decoded weights at a time, on a GPU
NAMES = {"cpu": "cpu:transposed", "cuda": "cuda:transposed"}
ARITHMETIC = "f32"
PACKED, ROUNDED = "cuda:transposed_bf16", "bf16s"  # the kernel for blocks on Hopper, and its arithmetic


def multiply(
    request: str, y: Any, transposed: Transposed, *, kernel: str = "auto", arithmetic: str | None = None,
    out: Any = None, bias: Any = None, residual: Any = None, dtype: Any = np.float32, invariant: bool = False,
) -> Any:  # fmt: skip
    """The product y [..., N] @ q [N, K] for ``q.T``, plus bias [K] and residual."""
    q = transposed.T
    packed = _check(request, q, kernel, arithmetic, invariant)
    if is_tensor(y):
        shape = (*y.shape[:-1], q.shape[1])

        def product(rows: Any, **options: Any) -> Any:
            return multiply(request, rows, transposed, kernel=kernel, arithmetic=arithmetic, **options)

        more = {"residual": residual, "invariant": invariant}
        return tensors.called(product, request, y, (), shape, out, dtype, bias, **more)
    y = as_floats(request, y)
    check_device(request, device_of(y), q, "y")
    n, k = q.shape
    if y.ndim == 0 or y.shape[-1] != n:
        lies = y.ndim and y.shape[-1] == k
        way = "write x @ q.T for the product along rows of q" if lies else f"pass y as [..., {n}]"
        raise ShapeError(
            f"{request} with {q!r}: y has shape {tuple(y.shape)}; y @ q is [..., N] @ [N, K], with N {n}; "
            f"{way}"
        )
    if bias is not None:
        bias = check_bias(request, bias, q, axis=1)
    end = ending(request, (*y.shape[:-1], k), q.device, residual, out, dtype)
    memory = q.codes if isinstance(q, ScaledArray) else q.memory
    with on_device_of(request, memory, q):
        if packed:
            return _by_packed(y, q, end, bias)
        parts = q.parts() if isinstance(q, ScaledArray) else (memory,)
        sums = place_for_sums(end, y, bias, *parts)
        if sums is None:
            sums = empty_sums(memory, (*y.shape[:-1], k))
        rows = namespace(memory).ascontiguousarray(y.reshape(math.prod(y.shape[:-1]), n), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            to = sums.reshape(len(rows), k)
            if is_host(memory):
                if isinstance(q, QuantArray) and q.scale is not None:
                    rows, q = rows * q.scale, q.unscaled()
                _on_host(rows, q, to)
            elif invariant:
                to[...] = by_pieces(rows, k, np.float32, partial(_on_device, q=q))
            else:
                _on_device(rows, q, to)
        return plus(end, sums, bias)


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
    reason: str | None = cuda_module("linear.transposed").refuses(q, place_of(q.memory).card)
    return reason


def _by_packed(y: Any, q: QuantArray, end: Ending, bias: Any) -> Any:
    """The product by the kernel of packed weights, which writes the result itself where it can."""
    k, xp = q.shape[1], namespace(q.memory)
    rows = y.reshape(math.prod(y.shape[:-1]), q.shape[0])
    if rows.dtype.char not in "fe":
        rows = rows.astype(np.float32)
    whole = end.residual is None and end.dtype.char in "fe" and (bias is None or bias.dtype.char in "fe")
    if bias is not None:
        bias = xp.ascontiguousarray(bias)
    direct = whole and end.out is not None and takes_sums(
        place_of(end.out).share, end.out, y, q.memory, bias, dtype=end.dtype
    )  # fmt: skip
    sums = end.out if direct else xp.empty((*y.shape[:-1], k), end.dtype if whole else np.float32)
    flat = sums.reshape(len(rows), k)
    by_library = not does_without_cublas(q.memory)
    cuda_module("linear.transposed").multiply(rows, q, flat, bias if whole else None, by_library)
    if direct:
        return end.out
    return ended(sums, end.out) if whole else plus(end, sums, bias)


def _on_host(y: Any, q: Any, out: Any) -> None:
    import_module("ggmlq.cpu.linear.transposed").multiply(y, q, out)


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
