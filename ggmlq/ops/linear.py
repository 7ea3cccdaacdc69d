"""``gq.linear``: activations (floats) times weights in blocks, ``x @ q.T``."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.tensors import is_tensor
from ..arrays.weights import Divided, Float, Host, Out, Transposed, operation
from ..base.devices import device_of, is_host, is_over_torch, on_device_of, place_of
from ..dispatch import ladder
from ..dispatch.checks import FLOAT32, activations, check_bias, float_dtype, is_bfloat16
from ..dispatch.problems import Linear
from . import tensors, transposed, warm
from .call import Result, as_wanted, by_pieces, kernel_of, result_of, run
from .epilogue import added, ended, ending, lies_as_results, rows_of
from .operands import check_blocks

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
    if residual is not None:
        return _added(x, q, kernel, arithmetic, out, bias, residual, dtype, invariant)
    how = ("invariant", arithmetic) if invariant else arithmetic  # the name of it in keys of recordings
    try:
        y = None
        if type(x) is np.ndarray:
            if type(q) is QuantArray and x.dtype is FLOAT32 and x.flags.c_contiguous:
                y = warm.repeated(q, (x.shape, kernel, how), (x,), out, bias, dtype)
            elif x.dtype is FLOAT16 and type(q) is QuantArray and out is None and x.size <= warm.MOST_NUMBERS:
                return _of_halves(x, q, kernel, arithmetic, bias, dtype, invariant)
        elif (product := _warm(x)) is not None:
            y = product(x, q, kernel, how, out, bias, dtype)
        if y is not None:
            return y
    except MemoryError:
        pass  # the next lines say it in words
    if isinstance(q, Transposed):
        return _added(x, q, kernel, arithmetic, out, bias, None, dtype, invariant)
    options: dict[str, Any] = {"kernel": kernel, "arithmetic": arithmetic}
    if invariant:
        options["invariant"] = True
    if isinstance(q, Divided):
        return q.run("linear", x, out=out, bias=bias, dtype=dtype, **options)
    check_blocks(REQUEST, q)
    if is_tensor(x):
        shape, bits = (*x.shape[:-1], q.shape[0]), None if invariant else of_bits
        return tensors.called(linear, REQUEST, x, (q,), shape, out, dtype, bias, bits, **options)
    x = activations(REQUEST, x, q, bfloat16=True)
    return _product(x, q, kernel, arithmetic, out, bias, dtype, invariant)


def _of_halves(
    x: Any, q: QuantArray, kernel: str, arithmetic: Any, bias: Any, dtype: Any, invariant: bool
) -> Any:
    """A small product of float16 on the host, as one of float32, whose repeated calls are warm."""
    wanted = float_dtype(REQUEST, dtype)
    rows = np.ascontiguousarray(x, np.float32)
    y = linear(rows, q, kernel=kernel, arithmetic=arithmetic, bias=bias, invariant=invariant)
    with np.errstate(over="ignore", invalid="ignore"):
        return as_wanted(y, wanted)


def _added(
    x: Any, q: Any, kernel: str, arithmetic: Any, out: Any, bias: Any, residual: Any, dtype: Any,
    invariant: bool,
) -> Any:  # fmt: skip
    """The product plus a residual, where there is one. On a GPU a kernel may add it, and repeated calls are
    warm; elsewhere they are warm but for that.
    """
    if residual is not None and not invariant and (on_device := _warm(x)) is not None:
        y = on_device(x, q, kernel, arithmetic, out, bias, dtype, residual)
        if y is not None:
            return y
    options: dict[str, Any] = {"kernel": kernel, "arithmetic": arithmetic, "invariant": invariant}
    if isinstance(q, Transposed):
        options |= {"out": out, "bias": bias, "residual": residual, "dtype": dtype}
        return transposed.multiply("linear(y, q.T)", x, q, **options)
    if not isinstance(q, Divided):
        check_blocks(REQUEST, q)
        if bias is not None and not is_tensor(x):
            bias = check_bias(REQUEST, bias, q)
    shape = (*rows_of(x), q.shape[0])
    if is_tensor(x):
        y = None
        if not (invariant or isinstance(q, Divided)):
            product = partial(of_bits, q=q, kernel=kernel, arithmetic=arithmetic)
            y = tensors.linear_added(REQUEST, product, q.memory, x, residual, shape, out, dtype, bias)
        if y is not None:
            return y
        options |= {"bias": bias}
        return tensors.added(REQUEST, lambda: linear(x, q, **options), x, residual, shape, out, dtype)
    if not (invariant or isinstance(q, Divided) or is_host(q.memory)):
        x = activations(REQUEST, x, q, bfloat16=True)
        end = ending(REQUEST, shape, q.device, residual, out, dtype)
        return _product(x, q, kernel, arithmetic, out, bias, dtype, residual=end.residual)
    return added(REQUEST, partial(linear, x, q, **options), q, shape, bias, residual, out, dtype)


def gated(
    x: Any, q: QuantArray, sums: Any, gate: str, kernel: str, arithmetic: Any, out: Any, dtype: Any
) -> Any:
    """The product on a GPU times a function of float32 ``sums`` of its shape; None where its kernel does not
    multiply with it. ``gate``: as in an Epilogue.
    """
    x = activations(REQUEST, x, q, bfloat16=True)
    if sums.shape[-1] % 2 or not sums.size or q.scale is not None or not sums.flags.c_contiguous:
        return None
    problem = problem_of(x, q)
    if problem.m > ladder.choose(problem, kernel, arithmetic).gates:
        return None
    y = warm.on_device(x, q, kernel, arithmetic, out, None, dtype, sums, gate)
    if y is None:
        y = _product(x, q, kernel, arithmetic, out, None, dtype, residual=sums, gate=gate)
    return y


def _warm(x: Any) -> Any:
    """The function for warm products of torch tensors or CuPy arrays; None for other arrays."""
    if not is_host(x):
        return warm.on_device
    return tensors.linear if is_tensor(x) else None


def _product(
    x: Any, q: QuantArray, kernel: str, arithmetic: Any, out: Any, bias: Any, dtype: Any,
    invariant: bool = False, residual: Any = None, gate: str | None = None,
) -> Any:  # fmt: skip
    """The product of checked activations, floats or the bits of bfloat16.

    ``residual``, on a GPU alone; ``gate``: the function of it that multiplies the product.
    """
    result = result_of(REQUEST, q, (*x.shape[:-1], q.shape[0]), dtype, out, bias)
    result = result._replace(residual=residual, gate=gate)
    problem = problem_of(x, q)
    if (
        x.dtype is not FLOAT32
        and is_bfloat16(x)
        and not (is_host(x) and ladder.choose(problem, kernel, arithmetic, invariant).narrow)
    ):
        x = x.astype(np.float32)
    if invariant and not is_host(x):
        named = kernel_of(problem.with_rows(1), str(kernel), arithmetic)
        options = {"kernel": named, "arithmetic": arithmetic, "bias": result.bias, "dtype": result.dtype}
        with on_device_of(problem, q.memory, q):
            y = by_pieces(x, len(q), result.dtype, lambda rows: linear(rows, q, **options))
            return ended(y, out)
    key = warm.linear_key(x, problem.m, kernel, ("invariant", arithmetic) if invariant else arithmetic)
    return run(problem, (x, q), result, kernel, arithmetic, key, None, invariant)


def problem_of(x: Any, q: QuantArray) -> Linear:
    """The problem of a product with blocks."""
    device, card, _ = place_of(x)
    without_cublas = is_over_torch(type(q.memory))  # which is CuPy's, so as while a graph is recorded
    m, n, k = math.prod(x.shape[:-1]), *q.shape
    narrow = device == "cuda" and x.dtype.itemsize == 2
    return Linear(q.format, m, n, k, narrow, device=device, card=card, captured=without_cublas)


def of_bits(
    bits: Any, q: QuantArray, *, out: Any, kernel: str, arithmetic: Any, bias: Any = None,
    residual: Any = None,
) -> bool:  # fmt: skip
    """Multiply on a GPU, by a kernel that reads arrays as they lie, bits of bfloat16, too; False, and nothing
    done, where there is none.

    ``out`` is float32, or uint16 for the bits of bfloat16; then ``bias`` may be bits, too. With a residual
    each of them, x too, is bits or floats of up to 32 bits, and the kernel does all.
    """
    if (
        q.scale is not None
        or bits.shape[-1:] != q.shape[1:]
        or device_of(bits) != q.device
        or not warm.is_aligned(bits)
    ):
        return False
    problem = problem_of(bits, q)
    if not bits.size or not (rung := ladder.choose(problem, kernel, arithmetic)).repeats:
        return False
    n = len(q)
    if residual is None and out.dtype != np.uint16:
        _product(bits, q, kernel, arithmetic, out, bias, np.float32)
        return True
    if not (rung.narrow and rung.ends) or n % 2 or (bias is not None and bias.shape != (n,)):
        return False
    is_bias = bias is None and problem.m == 1
    if not (residual is None or is_bias or (rung.adds and lies_as_results(residual, (problem.m, n)))):
        return False
    result = Result(REQUEST, out.shape, out.dtype, out, bias, residual=residual)
    run(problem, (bits, q), result, kernel, arithmetic, warm.linear_key(bits, problem.m, kernel, arithmetic))
    return True
