"""``gq.linear``: activations (floats) times weights in blocks, ``x @ q.T``."""

from __future__ import annotations

import math
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.weights import Divided, Float, Host, Out, Transposed, operation
from ..base.devices import Place, is_over_torch, on_device_of, place_at
from ..dispatch import ladder
from ..dispatch.checks import FLOAT32, is_bfloat16
from ..dispatch.problems import Linear
from . import plan, transposed
from .door import Operation, enter
from .epilogue import Result, Wishes, ended, lies_as_results, result_of, sums_dtype
from .operands import activations, check_blocks
from .product import ALONE, by_pieces, divided, kernel_of, run, takes_alone

FLOAT16 = np.dtype(np.float16)
REQUEST = "linear(x, q)"


@overload
def linear(
    x: Host, q: QuantArray | Transposed, *, kernel: str = ..., arithmetic: str | None = ..., out: None = ...,
    bias: Any = ..., residual: Any = ..., dtype: type[np.float32] | None = ..., invariant: bool = ...,
) -> NDArray[np.float32]: ...  # fmt: skip
@overload
def linear(
    x: Host, q: QuantArray | Transposed, *, kernel: str = ..., arithmetic: str | None = ..., out: None = ...,
    bias: Any = ..., residual: Any = ..., dtype: type[Float], invariant: bool = ...,
) -> NDArray[Float]: ...  # fmt: skip
@overload
def linear(
    x: Host, q: QuantArray | Transposed, *, kernel: str = ..., arithmetic: str | None = ..., out: Out,
    bias: Any = ..., residual: Any = ..., dtype: Any = ...,
    invariant: bool = ...,
) -> Out: ...  # fmt: skip
@overload
def linear(
    x: Any, q: QuantArray | Transposed | Divided, *, kernel: str = ..., arithmetic: str | None = ...,
    out: Any = ..., bias: Any = ..., residual: Any = ..., dtype: Any = ...,
    invariant: bool = ...,
) -> Any: ...  # fmt: skip


@operation
def linear(
    x: Any,
    q: QuantArray | Transposed | Divided,
    *,
    kernel: str = "auto",
    arithmetic: str | None = None,
    out: Any = None,
    bias: Any = None,
    residual: Any = None,
    dtype: Any = np.float32,
    invariant: bool = False,
) -> Any:
    """Multiply activations with quantized weights: ``x [..., K] @ q [N, K].T + bias + residual``.

    Parameters
    ----------
    x : array of floats
        Activations [..., K], on the device of q. A torch tensor gives a torch tensor.
    q : QuantArray
        Weights [N, K], or on several devices (:func:`ggmlq.parallel.shard`). Those of f64 and integer
        tensors are rounded to float32. With ``q.T``, and x [..., N], the product is ``x @ q``, which sums
        over rows of q: the gradient of activations, or the other use of a tied embedding.
    kernel : str
        ``"auto"``, or a kernel's name such as ``"cpu:panels"``; see :func:`ggmlq.kernels`.
    arithmetic : str, optional
        Choose only kernels that multiply in this arithmetic.
    out : array, optional
        Receives the result, in its own dtype, and is returned. It may overlap the operands.
    bias : array, optional
        Added to each row, [N].
    residual : array, optional
        Added to the result, whose shape it has or is broadcast to. It may be ``out``. The sums are float32
        until all is added, and rounded once.
    dtype : dtype
        Of the result: float16, bfloat16 (of ml_dtypes), float32 or float64; the sums are float32 or better.
    invariant : bool
        A row of the result has the same bits whatever rows are beside it, and how many. This may take longer.

    Returns
    -------
    array
        [..., N] on the device of q.

    >>> import numpy as np, ggmlq as gq
    >>> w = gq.quantize(np.eye(3, 32, dtype=np.float32), "q8_0")
    >>> gq.linear(np.ones(32, np.float32), w) > 0.99
    array([ True,  True,  True])
    """
    how = ("invariant", arithmetic) if invariant else arithmetic
    try:
        if (y := plan.repeat(x, q, kernel, how, out, bias, dtype, residual)) is not None:
            return y
    except MemoryError:
        pass  # the next lines say it in words
    wishes = Wishes(out, bias, residual, dtype, kernel, arithmetic, invariant)
    if isinstance(q, Transposed):
        return transposed.product("linear(y, q.T)", x, q, wishes)
    if isinstance(q, Divided):
        return divided(REQUEST, "linear", x, q, wishes, {"arithmetic": arithmetic})
    check_blocks(REQUEST, q)
    return enter(LINEAR, q, x, wishes)


def multiply(q: QuantArray, x: Any, wishes: Wishes, lies: bool = False) -> Any:
    """The product of arrays. ``lies``: on a GPU by a kernel that reads all as it lies, bits of bfloat16, too;
    None, and nothing done, where there is none.
    """
    if lies:
        return _as_it_lies(q, x, wishes)
    floats = activations(REQUEST, x, q, bfloat16=True)
    x = floats.array
    if x.dtype is FLOAT16 and floats.on_host and x.size <= plan.MOST_HALVES:
        x = x.astype(FLOAT32)  # a small product, whose plan is that of float32
    result = result_of(REQUEST, wishes, (*x.shape[:-1], q.shape[0]), floats.device, q)
    kernel, arithmetic, invariant = wishes.kernel, wishes.arithmetic, wishes.invariant
    if x.dtype is not FLOAT32 and is_bfloat16(x):  # which some kernels read on the host, and none of CuPy's
        problem = problem_of(x, q, result.place)
        if not (floats.on_host and ladder.choose(problem, kernel, arithmetic, invariant).narrow):
            x = x.astype(FLOAT32)
    problem = problem_of(x, q, result.place)
    if invariant and not floats.on_host:
        alone = takes_alone(one := problem.with_rows(1), str(kernel), arithmetic)
        if not alone or problem.m > ALONE or result.residual is not None:
            named = kernel if alone else kernel_of(one, str(kernel), arithmetic)
            piece = Wishes(None, result.bias, None, sums_dtype(result), named, arithmetic, alone)
            with on_device_of(problem, q.memory, q):
                y = by_pieces(x, len(q), piece.dtype, lambda rows: multiply(q, rows, piece), alone)
                return ended(y, result)
    return run(problem, (x, q), result, wishes, plan.linear_key(x, problem.m, kernel, wishes.how))


LINEAR = Operation(REQUEST, multiply, bits=True)


def gated(q: QuantArray, x: Any, wishes: Wishes) -> Any:
    """The product on a GPU times a function of float32 sums of its shape, the residual of the wishes.

    None where its kernel does not multiply with it.
    """
    floats, sums = activations(REQUEST, x, q, bfloat16=True), wishes.residual
    place = place_at(floats.device)
    if sums.shape[-1] % 2 or not sums.size or q.scale is not None or not sums.flags.c_contiguous:
        return None
    problem = problem_of(floats.array, q, place)
    if problem.m > ladder.choose(problem, wishes.kernel, wishes.arithmetic).gates:
        return None
    out, _, _, dtype, kernel, arithmetic, _, gate = wishes
    y = plan.on_device(floats.array, q, kernel, arithmetic, out, None, dtype, sums, gate)
    return multiply(q, floats.array, wishes) if y is None else y


def problem_of(x: Any, q: QuantArray, place: Place) -> Linear:
    """The problem of a product with blocks."""
    m, (n, k) = math.prod(x.shape[:-1]), q.shape
    if place.on_host:
        return Linear(q.format, m, n, k, device="cpu")
    without_cublas = is_over_torch(type(q.memory))  # which is CuPy's, so as while a graph is recorded
    narrow = x.dtype.itemsize == 2
    return Linear(q.format, m, n, k, narrow, device="cuda", card=place.card, captured=without_cublas)


def _as_it_lies(q: QuantArray, x: Any, wishes: Wishes) -> Any:
    """The product by a kernel that reads and writes bits of bfloat16; with a residual it does all."""
    out, bias, residual, _, kernel, arithmetic, _, _ = wishes
    place, n = place_at(q.device), len(q)
    if q.scale is not None or x.shape[-1:] != q.shape[1:] or f"cuda:{x.device.id}" != q.device:
        return None
    if not plan.is_aligned(x) or not x.size:
        return None
    problem = problem_of(x, q, place)
    if not (rung := ladder.choose(problem, kernel, arithmetic)).repeats:
        return None
    key = plan.linear_key(x, problem.m, kernel, arithmetic)
    if residual is None and out.dtype != np.uint16:
        return run(problem, (x, q), result_of(REQUEST, wishes, (*x.shape[:-1], n), q.device, q), wishes, key)
    if not (rung.narrow and rung.ends) or n % 2 or (bias is not None and bias.shape != (n,)):
        return None
    is_bias = bias is None and problem.m == 1
    if not (residual is None or is_bias or (rung.adds and lies_as_results(residual, (problem.m, n)))):
        return None
    result = Result(REQUEST, out.shape, out.dtype, place, out, bias, residual)
    return run(problem, (x, q), result, wishes, key)
