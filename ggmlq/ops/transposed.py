"""Products with weights as they lie: ``y @ q``, which is ``gq.linear(y, q.T)``, sums over rows of q.

On the CPU a kernel decodes a tile at a time into the cache. On a GPU some rows are decoded, at most
``MOST_DECODED`` bytes, and CuPy multiplies with them, in float32.
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
from ..base.devices import device_of, is_host, namespace, on_device_of
from ..base.unwinding import until_imported
from ..dispatch.checks import as_floats, check_bias, check_device
from ..errors import DTypeError, ShapeError, UnsupportedError
from . import tensors
from .epilogue import empty_sums, ending, place_for_sums, plus
from .invariant import by_pieces

MOST_DECODED = 256 << 20  # bytes of decoded weights at a time, on a GPU
NAMES = {"cpu": "cpu:transposed", "cuda": "cuda:transposed"}
ARITHMETIC = "f32"


def multiply(
    request: str, y: Any, transposed: Transposed, *, kernel: str = "auto", arithmetic: str | None = None,
    out: Any = None, bias: Any = None, residual: Any = None, dtype: Any = np.float32, invariant: bool = False,
) -> Any:  # fmt: skip
    """The product y [..., N] @ q [N, K] for ``q.T``, plus bias [K] and residual."""
    q = transposed.T
    _check(request, q, kernel, arithmetic)
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


def _check(request: str, q: Any, kernel: str, arithmetic: str | None) -> None:
    """Refuse weights that are no matrix on one device, and kernels that there are not."""
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
    name = NAMES[q.device.partition(":")[0]]
    if kernel not in ("auto", name) or arithmetic not in (None, ARITHMETIC):
        raise UnsupportedError(
            f"{request}: kernel={kernel!r}, arithmetic={arithmetic!r}; products along the rows of q have the "
            f"kernel {name!r}, in the arithmetic {ARITHMETIC!r}; leave both out"
        )


def _on_host(y: Any, q: Any, out: Any) -> None:
    with until_imported("numba"):
        product = import_module("ggmlq.cpu.linear.transposed")
    product.multiply(y, q, out)


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
