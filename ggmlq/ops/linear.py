"""``gq.linear``: activations (floats) times weights in blocks, ``x @ q.T``."""

from __future__ import annotations

import math
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.tensors import is_tensor
from ..arrays.weights import Divided, Float, Host, Out, operation
from ..base.devices import device_of, is_host, place_of
from ..dispatch import ladder
from ..dispatch.checks import FLOAT32, activations
from ..dispatch.problems import Linear
from . import tensors, warm
from .call import result_of, run
from .operands import check_blocks

REQUEST = "linear(x, q)"


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
        y = None
        if type(x) is np.ndarray:
            if type(q) is QuantArray and x.dtype is FLOAT32 and x.flags.c_contiguous:
                y = warm.repeated(q, (x.shape, kernel, arithmetic), (x,), out, bias, dtype)
        elif (product := _warm(x)) is not None:
            y = product(x, q, kernel, arithmetic, out, bias, dtype)
        if y is not None:
            return y
    except MemoryError:
        pass  # the next lines say it in words
    if isinstance(q, Divided):
        return q.run("linear", x, kernel=kernel, arithmetic=arithmetic, out=out, bias=bias, dtype=dtype)
    check_blocks(REQUEST, q)
    if is_tensor(x):
        shape, options = (*x.shape[:-1], q.shape[0]), {"kernel": kernel, "arithmetic": arithmetic}
        return tensors.called(linear, REQUEST, x, (q,), shape, out, dtype, bias, of_bits, **options)
    return _product(activations(REQUEST, x, q), q, kernel, arithmetic, out, bias, dtype)


def _warm(x: Any) -> Any:
    """The function for warm products of torch tensors or CuPy arrays; None for other arrays."""
    if not is_host(x):
        return warm.on_device
    return tensors.linear if is_tensor(x) else None


def _product(x: Any, q: QuantArray, kernel: str, arithmetic: Any, out: Any, bias: Any, dtype: Any) -> Any:
    """The product of checked activations, floats or the bits of bfloat16."""
    result = result_of(REQUEST, q, (*x.shape[:-1], q.shape[0]), dtype, out, bias)
    problem = _problem(x, q)
    key = warm.linear_key(x, problem.m, kernel, arithmetic)
    return run(problem, (x, q), result, kernel, arithmetic, key)


def _problem(x: Any, q: QuantArray) -> Linear:
    device, card, _ = place_of(x)
    return Linear(q.format, math.prod(x.shape[:-1]), *q.shape, device=device, card=card)


def of_bits(
    bits: Any, q: QuantArray, *, out: Any, kernel: str, arithmetic: Any, bias: Any = None
) -> bool:  # fmt: skip
    """Multiply bfloat16 on a GPU by a kernel that reads its bits; False where there is none."""
    if bits.shape[-1:] != q.shape[1:] or device_of(bits) != q.device or not warm.is_aligned(bits):
        return False
    if not bits.size or not ladder.choose(_problem(bits, q), kernel, arithmetic).repeats:
        return False
    _product(bits, q, kernel, arithmetic, out, bias, np.float32)
    return True
