"""Products of codes with scales: check, choose a kernel, run."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ..arrays.scaled import ScaledArray
from ..arrays.tensors import array_of, is_tensor
from ..arrays.weights import Divided, Float, Host, Out, operation
from ..base.devices import device_of, namespace, on_device_of, place_of
from ..codes import CODES, Code
from ..codes.tiling import Tile
from ..dispatch import ladder
from ..dispatch.checks import as_floats_or_bfloat16, check_bias, check_out, float_dtype, takes_sums, written
from ..dispatch.epilogue import PLAIN, Epilogue, is_written
from ..dispatch.problems import INT32, ScaledLinear
from ..errors import DeviceError, DTypeError, ShapeError, UnsupportedError
from . import fast_path, torch
from .quantize_scaled import quantize_scaled, static_scales
from .scaled_operands import check_columns, check_operands, check_weights, how_quantized, takes_zeros

ACCUMULATE = {"integer": ("int32", "int64", "float32", "fp32_chunks"), "float": ("float32",)}
ASKED = "scaled_linear(x, w)"


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
    if requantize is None:
        with suppress(MemoryError):  # what follows says it in words
            y = fast_path.scaled_on_host(x, w, activations, kernel, accumulate, out, bias, dtype)
            if y is not None:
                return y
    if isinstance(w, Divided):
        how: dict[str, Any] = {"kernel": kernel, "accumulate": accumulate, "activations": activations}
        return w.run("scaled_linear", x, out=out, bias=bias, dtype=dtype, requantize=requantize, **how)
    check_weights(ASKED, w)
    if is_tensor(x):
        if requantize is None:
            more = {"activations": activations, "kernel": kernel, "accumulate": accumulate}
            return torch.linear(scaled_linear, x, w, out, bias, dtype, asked=ASKED, check=_same, **more)
        x = array_of(ASKED, x)
    given, x = x, _activations(x, w, activations)
    check_operands(ASKED, x, w)
    shape = (*x.shape[:-1], w.shape[0])
    kind = float_dtype(ASKED, dtype)
    if requantize is not None and out is not None:
        raise ShapeError(f"{ASKED}: requantize gives a new ScaledArray, out takes floats; pass one of them")
    if out is not None:
        check_out(ASKED, out, shape, w.device)
    if bias is not None:
        bias = check_bias(ASKED, bias, w, "w")
    rows = _flat(x)
    problem = ScaledLinear.of(rows, w, accumulate)
    _check_sums(problem, x.code.kind)
    coding = None if requantize is None else coding_of(requantize, problem.m, problem.n)
    with on_device_of(problem, w.codes, w):
        rung = ladder.choose(problem, kernel)
        xp, end = namespace(w.codes), PLAIN
        if rung.ends and min(problem.m, problem.n, problem.k) and (bias is None or bias.dtype.itemsize <= 4):
            end = PLAIN if bias is None else Epilogue(xp.ascontiguousarray(bias, np.float32))
            if coding is not None and is_written(coding.code):
                return _in_codes(rung, rows, w, shape, end, coding)
        rest = bias if end.bias is None else None  # what the kernel does not add
        wanted = np.dtype(np.float32)
        if rung.narrow and rest is None and coding is None:
            wanted = written(kind if out is None else out.dtype)
        direct = takes_sums(place_of(w.codes).share, out, *x.parts(), *w.parts(), bias, dtype=wanted)
        y = out.reshape(problem.m, problem.n) if direct else xp.empty((problem.m, problem.n), wanted)
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are results, as on a GPU
            again = (lambda: rows) if given is x else (lambda: _flat(_activations(given, w, activations)))
            asked = activations, kernel, accumulate
            if rung.ends or not fast_path.keep_scaled_on_host(rung, given, again, w, y, *asked):
                rung.launch(rows, w, y, **({} if end is PLAIN else {"end": end}))
            if rest is not None:
                y += rest
            if coding is not None:
                return quantize_scaled(y.reshape(shape), coding.code, coding.tile, scales=coding.scales)
            if out is None:
                return y.astype(kind, copy=False).reshape(shape)
            if not direct:
                out[...] = y.reshape(shape)
    return out


def _same(asked: str, x: Any, w: Any) -> Any:
    return x


def _activations(x: Any, w: ScaledArray, how: Any) -> ScaledArray:
    """X with scales: as it is, or quantized here."""
    if isinstance(x, ScaledArray):
        if how is not None:
            raise DTypeError(
                f"{ASKED}: activations={how!r}, but x is {x!r}, quantized already; leave activations out, "
                "or pass floats"
            )
        return x
    if device_of(x) != w.device:
        raise DeviceError(
            f"{ASKED}: x is on {device_of(x)}, w on {w.device}; both must be on one device; move w with "
            'w.to("cpu") or w.to("cuda"), or x with cupy.asarray(x) or x.get()'
        )
    with on_device_of(ASKED, w.codes, w):  # as in a CUDA graph what x becomes stays with w
        x = as_floats_or_bfloat16(ASKED, x)
        check_columns(ASKED, x, w)
        code, tile = how_quantized(how, w)
        return quantize_scaled(x, code, tile, zeros=takes_zeros(how, code), ragged="pad")


def _flat(x: ScaledArray) -> ScaledArray:
    if x.ndim == 2:
        return x
    codes = x.codes.reshape(x.tiling.rows, x.tiling.columns)
    return ScaledArray(codes, x.scales, x.code, x.tile, x.zeros)


def _check_sums(problem: ScaledLinear, kind: str) -> None:
    """Whether sums of such codes can be what was asked."""
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


class Coding(NamedTuple):
    """What a result is requantized to."""

    code: Code
    tile: Tile
    scales: Any


def coding_of(how: Any, m: int, n: int) -> Coding:
    """What ``requantize`` means for a result [M, N]."""
    if not (isinstance(how, tuple | list) and len(how) == 2):
        raise DTypeError(
            f"{ASKED}: requantize={how!r}; it is (code, scales): a name in gq.codes, and a number or an "
            "array of scales"
        )
    code, scales = how
    if scales is None:
        raise DTypeError(
            f"{ASKED}: requantize={how!r}; scales of a result are given, not found; pass a number or an "
            "array, or quantize the floats, gq.quantize_scaled(x @ w.T, …)"
        )
    shape = tuple(getattr(scales, "shape", np.shape(scales)))
    tiles = {(): (None, None), (m, n): (1, 1), (m, 1): (1, None), (1, n): (None, 1), (1, 1): (None, None)}
    if shape not in tiles:
        raise ShapeError(
            f"{ASKED}: requantize with scales of shape {shape}; the result is ({m}, {n}), its scales are a "
            f"number, (1, 1), (1, {n}), ({m}, 1) or ({m}, {n}); reshape them"
        )
    if not m * n:  # no tile has a scale then
        return Coding(CODES[code], tiles[shape], 1.0)
    return Coding(CODES[code], tiles[shape], scales)


def _in_codes(
    rung: ladder.Rung, x: ScaledArray, w: ScaledArray, shape: tuple[int, ...], end: Epilogue, coding: Coding
) -> ScaledArray:
    """By a kernel that writes codes itself."""
    code, tile, scales = coding
    m, n = len(x), len(w)
    codes = namespace(w.codes).empty((m, n), code.dtype)
    made = static_scales(f"{ASKED} with requantize", scales, codes, code, tile)
    rung.launch(x, w, codes, end=end._replace(code=code, scales=made))
    return ScaledArray(codes.reshape(shape), made, code, tile)
