"""``gq.scaled_linear``: products of two arrays of 8- or 16-bit codes with scales, ``x @ w.T``."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..arrays.scaled import ScaledArray
from ..arrays.weights import Divided, Float, Host, Out, Transposed, operation
from ..base.devices import on_device_of
from ..codes import CODES
from ..dispatch.problems import INT32, ScaledLinear
from ..errors import DTypeError, ShapeError, UnsupportedError
from . import plan, transposed
from .door import Operation, enter
from .epilogue import Coding, Wishes, ended, result_of, sums_dtype
from .operands import check_weights, with_scales
from .product import by_pieces, divided, run

ACCUMULATE = {"integer": ("int32", "int64", "float32", "fp32_chunks"), "float": ("float32",)}
REQUEST = "scaled_linear(x, w)"


@overload
def scaled_linear(
    x: Host | ScaledArray, w: ScaledArray, *, activations: Any = ..., kernel: str = ...,
    accumulate: str | None = ..., out: None = ..., bias: Any = ..., dtype: type[np.float32] | None = ...,
    requantize: None = ..., residual: Any = ..., dynamic: bool = ..., invariant: bool = ...,
) -> NDArray[np.float32]: ...  # fmt: skip
@overload
def scaled_linear(
    x: Host | ScaledArray, w: ScaledArray, *, activations: Any = ..., kernel: str = ...,
    accumulate: str | None = ..., out: None = ..., bias: Any = ..., dtype: type[Float],
    requantize: None = ..., residual: Any = ..., dynamic: bool = ..., invariant: bool = ...,
) -> NDArray[Float]: ...  # fmt: skip
@overload
def scaled_linear(
    x: Host | ScaledArray, w: ScaledArray, *, activations: Any = ..., kernel: str = ...,
    accumulate: str | None = ..., out: Out, bias: Any = ..., dtype: Any = ..., requantize: None = ...,
    residual: Any = ..., dynamic: bool = ..., invariant: bool = ...,
) -> Out: ...  # fmt: skip
@overload
def scaled_linear(
    x: Host | ScaledArray, w: ScaledArray, *, activations: Any = ..., kernel: str = ...,
    accumulate: str | None = ..., out: None = ..., bias: Any = ..., dtype: Any = ...,
    requantize: tuple[Any, Any], dynamic: bool = ..., invariant: bool = ...,
) -> ScaledArray: ...  # fmt: skip
@overload
def scaled_linear(
    x: Any, w: ScaledArray | Transposed | Divided, *, activations: Any = ..., kernel: str = ...,
    accumulate: str | None = ..., out: Any = ..., bias: Any = ..., dtype: Any = ..., requantize: Any = ...,
    residual: Any = ..., dynamic: bool = ..., invariant: bool = ...,
) -> Any: ...  # fmt: skip


@operation
def scaled_linear(
    x: Any,
    w: ScaledArray | Transposed | Divided,
    *,
    activations: Any = None,
    kernel: str = "auto",
    accumulate: str | None = None,
    out: Any = None,
    bias: Any = None,
    dtype: Any = np.float32,
    requantize: Any = None,
    residual: Any = None,
    dynamic: bool = False,
    invariant: bool = False,
) -> Any:
    """Multiply codes with scales: ``x [..., K] @ w [N, K].T + bias + residual``.

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
        whole axis. With ``w.T``, and floats x [..., N], the product is ``x @ w``, which sums over rows of w,
        decoded to float32.
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
    residual : array, optional
        Added to the result, whose shape it has or is broadcast to; not with requantize. It may be ``out``.
    dynamic : bool
        Codes and scales of w may be rewritten between calls: nothing that is made of them is kept, and on a
        GPU nothing is waited for on the host, so that the product may be recorded in a graph.
    invariant : bool
        A row of the result has the same bits whatever rows are beside it, and how many. This may take longer.

    Examples
    --------
    >>> import numpy as np, ggmlq as gq
    >>> x, w = np.ones((2, 256), np.float32), np.eye(3, 256, dtype=np.float32)
    >>> gq.scaled_linear(x, gq.quantize_scaled(w, "int8", (1, None)))
    array([[1., 1., 1.],
           [1., 1., 1.]], dtype=float32)
    """
    key = None if dynamic else _key(x, w, activations, kernel, accumulate, invariant)
    if key is not None and requantize is None and residual is None:
        try:
            if (y := plan.repeated(w, *key, out, bias, dtype)) is not None:
                return y
        except MemoryError:
            pass  # the next lines say it in words
    wishes = Wishes(out, bias, residual, dtype, kernel, None, invariant)
    if isinstance(w, Transposed):
        _check_transposed(w, x, activations, accumulate, requantize)
        return transposed.product("scaled_linear(y, w.T)", x, w, wishes)
    if residual is not None and requantize is not None:
        raise UnsupportedError(
            f"{REQUEST}: requantize and residual; codes are made of sums and bias alone; leave requantize "
            "out, and quantize the result, gq.quantize_scaled(y, …)"
        )
    how = {"activations": activations, "accumulate": accumulate} | ({"dynamic": True} if dynamic else {})
    if isinstance(w, Divided):
        more = {} if requantize is None else {"requantize": requantize}
        return divided(REQUEST, "scaled_linear", x, w, wishes, how | more)
    check_weights(REQUEST, w)
    if requantize is None:
        return enter(SCALED, w, x, wishes, **how)
    return enter(CODED, w, x, wishes, requantize=requantize, **how)


def multiply(
    w: ScaledArray, x: Any, wishes: Wishes, *, activations: Any = None, accumulate: str | None = None,
    dynamic: bool = False, requantize: Any = None,
) -> Any:  # fmt: skip
    """The product of arrays: codes, or floats that are quantized first."""
    weights, on_host = w, w.device == "cpu"
    key = None if dynamic else _key(x, w, activations, wishes.kernel, accumulate, wishes.invariant)
    with on_device_of(REQUEST, w.codes, w):  # in a CUDA graph what x becomes stays with w
        operand = with_scales(REQUEST, x, w, activations)
        if dynamic:
            w = w.passing()
    if wishes.invariant and operand is not x and operand.tiling.r != 1:
        raise UnsupportedError(
            f"{REQUEST}: invariant=True, and floats x quantized in tiles of {operand.tile}, whose rows share "
            "scales; pass activations=(code, (1, columns)), or x quantized"
        )
    shape = (*operand.shape[:-1], w.shape[0])
    result = result_of(REQUEST, wishes, shape, w.device, w, "w")
    rows = operand.as_rows()
    problem = ScaledLinear.of(rows, w, accumulate)
    _check_sums(problem, rows.code.kind)
    if requantize is not None:
        if wishes.out is not None:
            raise ShapeError(
                f"{REQUEST}: requantize gives a new ScaledArray, out takes floats; pass one of them"
            )
        result = result._replace(coding=coding_of(requantize, problem.m, problem.n))
    if wishes.invariant and not on_host:
        if requantize is not None:
            raise UnsupportedError(f"{REQUEST}: invariant=True with requantize on a GPU; quantize the result")
        piece = Wishes(None, result.bias, None, sums_dtype(result), wishes.kernel)
        how: dict[str, Any] = {"accumulate": accumulate, "dynamic": dynamic}
        with on_device_of(problem, w.codes, w):
            y = by_pieces(operand, len(w), piece.dtype, lambda x: multiply(weights, x, piece, **how))
            return ended(y, result)

    def remade(*arrays: Any) -> Any:
        if operand is not x:
            return with_scales(REQUEST, arrays[0], w, activations).as_rows()
        codes, scales, zeros = (*arrays, None)[:3]
        return ScaledArray.assembled(codes, scales, x.code, x.tile, zeros, x.tiling).as_rows()

    return run(problem, (rows, w), result, wishes, key, remade)


SCALED, CODED = Operation(REQUEST, multiply), Operation(REQUEST, multiply, floats=False)


def _key(
    x: Any, w: Any, activations: Any, kernel: Any, accumulate: Any, invariant: bool
) -> plan.Key | None:  # fmt: skip
    key = plan.scaled_key(x, w, activations, kernel, accumulate)
    return key._replace(key=("invariant", key.key)) if key is not None and invariant else key


def _check_transposed(w: Transposed, y: Any, activations: Any, accumulate: Any, requantize: Any) -> None:
    """Refuse what the product with codes as they lie does not do: it decodes w and sums in float32."""
    request = "scaled_linear(y, w.T)"
    if isinstance(y, ScaledArray):
        raise DTypeError(
            f"{request}: y is {y!r}; the product along the rows of w, y @ w, takes floats and decodes w; "
            "pass y.dequantize()"
        )
    if not (activations is None and requantize is None and accumulate in (None, "float32")):
        raise UnsupportedError(
            f"{request} with {w.T!r}: activations={activations!r}, accumulate={accumulate!r}, "
            f"requantize={requantize!r}; the product along the rows of w decodes w and sums in float32; "
            "leave these out"
        )


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
