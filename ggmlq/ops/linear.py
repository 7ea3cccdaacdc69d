"""Activations times quantized weights: check, choose a kernel, run."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.tensors import is_tensor
from ..arrays.weights import Divided, Float, Host, Out, operation
from ..base.devices import is_host, namespace, on_device_of, place_of
from ..dispatch import ladder
from ..dispatch.checks import check_bias, check_linear, check_out, float_dtype, takes_sums
from ..dispatch.problems import Linear
from . import fast_path, fast_torch, torch


@overload
def linear(
    x: Host, q: QuantArray, *, kernel: str = ..., arithmetic: str | None = ..., out: None = ...,
    bias: Any = ..., dtype: type[np.float32] | None = ...,
) -> NDArray[np.float32]: ...  # fmt: skip
@overload
def linear(
    x: Host, q: QuantArray, *, kernel: str = ..., arithmetic: str | None = ..., out: None = ...,
    bias: Any = ..., dtype: type[Float],
) -> NDArray[Float]: ...  # fmt: skip
@overload
def linear(
    x: Host, q: QuantArray, *, kernel: str = ..., arithmetic: str | None = ..., out: Out, bias: Any = ...,
    dtype: Any = ...,
) -> Out: ...  # fmt: skip
@overload
def linear(
    x: Any, q: QuantArray | Divided, *, kernel: str = ..., arithmetic: str | None = ..., out: Any = ...,
    bias: Any = ..., dtype: Any = ...,
) -> Any: ...  # fmt: skip


@operation
def linear(
    x: Any,
    q: QuantArray | Divided,
    *,
    kernel: str = "auto",
    arithmetic: str | None = None,
    out: Any = None,
    bias: Any = None,
    dtype: Any = np.float32,
) -> Any:
    """Multiply activations with quantized weights: ``x [..., K] @ q [N, K].T``.

    Parameters
    ----------
    x : array of floats
        Activations [..., K], on the device of q. A torch tensor gives a torch tensor.
    q : QuantArray
        Weights [N, K], or on several devices (:func:`ggmlq.parallel.shard`). Those of f64 and integer
        tensors are rounded to float32.
    kernel : str
        ``"auto"``, or a kernel's name such as ``"cpu:panels"``; see :func:`ggmlq.kernels`.
    arithmetic : str, optional
        Choose only kernels that multiply in this arithmetic.
    out : array, optional
        Receives the result, in its own dtype, and is returned. It may overlap the operands.
    bias : array, optional
        Added to each row, [N].
    dtype : dtype
        Of the result: float16, bfloat16 (of ml_dtypes), float32 or float64; the sums are float32 or better.

    Returns
    -------
    array
        [..., N] on the device of q.

    >>> import numpy as np, ggmlq as gq
    >>> w = gq.quantize(np.eye(3, 32, dtype=np.float32), "q8_0")
    >>> gq.linear(np.ones(32, np.float32), w) > 0.99
    array([ True,  True,  True])
    """
    try:
        fast = _fast(x)
        if fast is not None and (y := fast(x, q, kernel, arithmetic, out, bias, dtype)) is not None:
            return y
    except MemoryError:
        pass  # what follows says it in words
    if isinstance(q, Divided):
        return q.run("linear", x, kernel=kernel, arithmetic=arithmetic, out=out, bias=bias, dtype=dtype)
    if is_tensor(x):
        product = partial(fast_torch.recorded, linear, x)
        return torch.linear(product, x, q, out, bias, dtype, kernel=kernel, arithmetic=arithmetic)
    asked = "linear(x, q)"
    x = check_linear(asked, x, q)
    n, k = q.shape
    m, shape = math.prod(x.shape[:-1]), (*x.shape[:-1], n)
    kind = float_dtype(asked, dtype)
    if out is not None:
        check_out(asked, out, shape, q.device)
    if bias is not None:
        bias = check_bias(asked, bias, q)
    device, card, share = place_of(x)
    problem = Linear(q.format, m, n, k, device=device, card=card)
    direct = takes_sums(share, out, x, q.memory, bias)
    with on_device_of(problem, x, q):
        rung = ladder.choose(problem, kernel, arithmetic)
        rows = x.reshape(m, k)  # here, for it may be a copy: in a CUDA graph that stays with q
        y = out.reshape(m, n) if direct else namespace(x).empty((m, n), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are results, as on a GPU
            if device != "cpu" or not fast_path.keep_on_host(rung, x, rows, q, y, kernel, arithmetic):
                rung.launch(rows, q, y)
            if bias is not None:
                y += bias
            if out is None:
                return y.astype(kind, copy=False).reshape(shape)
            if not direct:
                out[...] = y.reshape(shape)
    return out


def _fast(x: Any) -> Any:
    """What does the ordinary products of such an x, or None."""
    if type(x) is np.ndarray:
        return fast_path.on_host
    if not is_host(x):
        return fast_path.linear
    return fast_torch.linear if is_tensor(x) else None
