"""``gq.scaled_linear``: products of two arrays of 8- or 16-bit codes with scales, ``x @ w.T``."""

from __future__ import annotations

from functools import partial
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..arrays.scaled import ScaledArray
from ..arrays.tensors import array_of, is_tensor
from ..arrays.weights import Divided, Float, Host, Out, operation
from ..base.devices import on_device_of
from ..codes import CODES
from ..dispatch.problems import INT32, ScaledLinear
from ..errors import DTypeError, ShapeError, UnsupportedError
from . import tensors, warm
from .call import Coding, result_of, run
from .operands import check_weights, with_scales

ACCUMULATE = {"integer": ("int32", "int64", "float32", "fp32_chunks"), "float": ("float32",)}
REQUEST = "scaled_linear(x, w)"


@overload
def scaled_linear(
    x: Host | ScaledArray, w: ScaledArray, *, activations: Any = ..., kernel: str = ...,
    accumulate: str | None = ..., out: None = ..., bias: Any = ..., dtype: type[np.float32] | None = ...,
    requantize: None = ...,
) -> NDArray[np.float32]: ...  # fmt: skip
@overload
def scaled_linear(
    x: Host | ScaledArray, w: ScaledArray, *, activations: Any = ..., kernel: str = ...,
    accumulate: str | None = ..., out: None = ..., bias: Any = ..., dtype: type[Float],
    requantize: None = ...,
) -> NDArray[Float]: ...  # fmt: skip
@overload
def scaled_linear(
    x: Host | ScaledArray, w: ScaledArray, *, activations: Any = ..., kernel: str = ...,
    accumulate: str | None = ..., out: Out, bias: Any = ..., dtype: Any = ..., requantize: None = ...,
) -> Out: ...  # fmt: skip
@overload
def scaled_linear(
    x: Host | ScaledArray, w: ScaledArray, *, activations: Any = ..., kernel: str = ...,
    accumulate: str | None = ..., out: None = ..., bias: Any = ..., dtype: Any = ...,
    requantize: tuple[Any, Any],
) -> ScaledArray: ...  # fmt: skip
@overload
def scaled_linear(
    x: Any, w: ScaledArray | Divided, *, activations: Any = ..., kernel: str = ...,
    accumulate: str | None = ..., out: Any = ..., bias: Any = ..., dtype: Any = ..., requantize: Any = ...,
) -> Any: ...  # fmt: skip


@operation
def scaled_linear(
    x: Any,
    w: ScaledArray | Divided,
    *,
    activations: Any = None,
    kernel: str = "auto",
    accumulate: str | None = None,
    out: Any = None,
    bias: Any = None,
    dtype: Any = np.float32,
    requantize: Any = None,
) -> Any:
    """Multiply codes with scales: ``x [..., K] @ w [N, K].T``.

    Integers are summed exactly, up to the scales; floats in float32, at the latest every group of K that
    shares a scale.

    Parameters
    ----------
    x : ScaledArray or array of floats
        [..., K], on the device of w. Floats are quantized first, see ``activations``. A torch tensor gives
        a torch tensor.
    w : ScaledArray
        Weights [N, K], or on several devices (:func:`ggmlq.parallel.shard`). Its code and that of x are
        both integers or both floats. Of the columns of their tiles one is a multiple of the other, or the
        whole axis.
    activations : (code, tile), optional
        How floats x are quantized: by default to the code of w, floats in tiles (1, 128), integers in
        (1, None), and to a code without a sign, such as uint8, with zero points. K need not be whole
        tiles.
    kernel : str
        ``"auto"``, or a kernel's name such as ``"cpu:naive"``; see ``gq.kernels("scaled_linear")``.
    accumulate : str, optional
        Of what the sums are: ``"int32"`` or ``"int64"`` (integers, exact; by default as K needs),
        ``"float32"``, or ``"fp32_chunks"``: 32 products in int32, the rest in float32.
    out : array, optional
        Receives the result, in its own dtype, and is returned.
    bias : array, optional
        Added to each row, [N].
    dtype : dtype
        Of the result: float16, bfloat16, float32 or float64.
    requantize : (code, scales), optional
        Give the result as a ScaledArray of this code under these scales: a number, or an array of shape
        (1, 1), (1, N), (M, 1) or (M, N). A GPU keeps an array of float32 scales itself, not a copy.

    Examples
    --------
    >>> import numpy as np, ggmlq as gq
    >>> x, w = np.ones((2, 256), np.float32), np.eye(3, 256, dtype=np.float32)
    >>> gq.scaled_linear(x, gq.quantize_scaled(w, "int8", (1, None)))
    array([[1., 1., 1.],
           [1., 1., 1.]], dtype=float32)
    """
    key = warm.scaled_key(x, w, activations, kernel, accumulate)
    if key is not None and requantize is None:
        try:
            if (y := warm.repeated(w, *key, out, bias, dtype)) is not None:
                return y
        except MemoryError:
            pass  # the next lines say it in words
    options: dict[str, Any] = {"activations": activations, "kernel": kernel, "accumulate": accumulate}
    if isinstance(w, Divided):
        return w.run("scaled_linear", x, out=out, bias=bias, dtype=dtype, requantize=requantize, **options)
    check_weights(REQUEST, w)
    if is_tensor(x):
        if requantize is None:
            shape = (*x.shape[:-1], w.shape[0])
            return tensors.called(scaled_linear, REQUEST, x, (w,), shape, out, dtype, bias, **options)
        x = array_of(REQUEST, x)
    if isinstance(x, ScaledArray):
        operand = with_scales(REQUEST, x, w, activations)
    else:
        with on_device_of(REQUEST, w.codes, w):  # in a CUDA graph what x becomes stays with w
            operand = with_scales(REQUEST, x, w, activations)
    rows = operand.as_rows()
    result = result_of(REQUEST, w, (*operand.shape[:-1], w.shape[0]), dtype, out, bias, "w")
    problem = ScaledLinear.of(rows, w, accumulate)
    _check_sums(problem, rows.code.kind)
    if requantize is not None:
        if out is not None:
            raise ShapeError(
                f"{REQUEST}: requantize gives a new ScaledArray, out takes floats; pass one of them"
            )
        result = result._replace(coding=coding_of(requantize, problem.m, problem.n))
    remake = None if operand is x else partial(with_scales, REQUEST, x, w, activations)
    return run(problem, (rows, w), result, kernel, None, key, remake)


def _check_sums(problem: ScaledLinear, kind: str) -> None:
    """Refuse a type of sums that does not suit the codes, or that could overflow."""
    accumulate = problem.accumulate
    known = ACCUMULATE[kind]
    if accumulate not in (None, *known):
        raise UnsupportedError(
            f"{problem}: accumulate={accumulate!r}; products of {kind} codes are summed in "
            f"{', '.join(known)}; pass one of these, or leave it out"
        )
    if accumulate == "int32" and problem.largest_sum > INT32:
        raise UnsupportedError(
            f'{problem}: accumulate="int32"; sums of {problem.group} products may reach '
            f'{problem.largest_sum:.3g}, int32 ends at {INT32}; leave accumulate out, or pass "int64"'
        )


def coding_of(how: Any, m: int, n: int) -> Coding:
    """The code, tile and scales of a result [M, N], from the argument ``requantize``."""
    if not (isinstance(how, tuple | list) and len(how) == 2):
        raise DTypeError(
            f"{REQUEST}: requantize={how!r}; it is (code, scales): a name in gq.codes, and a number or an "
            "array of scales"
        )
    code, scales = how
    if scales is None:
        raise DTypeError(
            f"{REQUEST}: requantize={how!r}; scales of a result are not computed; pass a number or an "
            "array, or quantize the floats, gq.quantize_scaled(x @ w.T, …)"
        )
    shape = tuple(getattr(scales, "shape", np.shape(scales)))
    tiles = {(): (None, None), (m, n): (1, 1), (m, 1): (1, None), (1, n): (None, 1), (1, 1): (None, None)}
    if shape not in tiles:
        raise ShapeError(
            f"{REQUEST}: requantize with scales of shape {shape}; the result is ({m}, {n}), its scales are a "
            f"number, (1, 1), (1, {n}), ({m}, 1) or ({m}, {n}); reshape them"
        )
    if not m * n:  # no tile has a scale then
        return Coding(CODES[code], tiles[shape], 1.0)
    return Coding(CODES[code], tiles[shape], scales)
