"""``gq.gated_linear``: two products with the same activations, ``act(x @ gate.T) ∘ (x @ up.T)``."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..arrays.tensors import array_of, is_tensor
from ..arrays.weights import Divided, operation
from ..base import text
from ..base.devices import cuda_module, device_of, is_host, namespace, on_device_of
from ..dispatch.checks import check_device
from ..dispatch.ladder import choose, explain
from ..dispatch.problems import ExpertLinear
from ..dispatch.tuned import is_timed
from ..errors import DTypeError, ShapeError, UnsupportedError
from .door import Operation, enter
from .epilogue import (
    Result,
    Wishes,
    ended,
    finished,
    memory_of,
    place_for_sums,
    result_of,
    rows_of,
    takes_sums,
)
from .expert_linear import REQUEST as EXPERTS
from .expert_linear import expert_linear
from .linear import gated, linear, problem_of
from .operands import experts, shape_of_ids
from .scaled_linear import scaled_linear

# --- activations, in the memory of their arguments ----------------------------------------------
# They are NumPy's and CuPy's functions alone. Each is a few passes over rows that lie in the cache.

ALPHA, LIMIT = 1.702, 7.0  # of gpt-oss
Gate = Callable[[Any, Any, Any], Any]  # (NumPy or CuPy, gate, up): both float32, and may be overwritten


def _divided(xp: Any, gate: Any, exponent: Any, up: Any) -> Any:
    """``gate · sigmoid(-exponent) · up``; the exponent is overwritten."""
    xp.exp(exponent, out=exponent)
    exponent += np.float32(1)
    xp.divide(gate, exponent, out=gate)
    gate *= up
    return gate


def silu(xp: Any, gate: Any, up: Any) -> Any:
    """``gate · sigmoid(gate) · up``."""
    return _divided(xp, gate, -gate, up)


def gelu_tanh(xp: Any, gate: Any, up: Any) -> Any:
    """``gate · (1 + tanh(√(2/π) (gate + 0.044715 gate³))) / 2 · up``, by a sigmoid of twice that."""
    exponent = gate * gate
    exponent *= np.float32(-2 * math.sqrt(2 / math.pi) * 0.044715)
    exponent -= np.float32(2 * math.sqrt(2 / math.pi))
    exponent *= gate
    return _divided(xp, gate, exponent, up)


def relu(xp: Any, gate: Any, up: Any) -> Any:
    """``max(gate, 0) · up``."""
    xp.maximum(gate, np.float32(0), out=gate)
    gate *= up
    return gate


def swiglu_oai(xp: Any, gate: Any, up: Any) -> Any:
    """gpt-oss's clamped gate: ``(up + 1) · gate · sigmoid(1.702 · gate)``, gate up to 7, up in -7 … 7."""
    xp.minimum(gate, np.float32(LIMIT), out=gate)
    xp.clip(up, np.float32(-LIMIT), np.float32(LIMIT), out=up)
    up += np.float32(1)
    return _divided(xp, gate, gate * np.float32(-ALPHA), up)


FARTHEST = 14.0  # from here on a normal variable lies with a probability that float32 rounds to 0


@cache
def _tail() -> tuple[np.float32, ...]:
    """Coefficients, highest first, of Q in ``erfc(z) = t · exp(Q(t) - z²)``, t = 2 / (2 + z), z < 10."""
    polynomial = np.polynomial.Chebyshev.interpolate(_logarithm, 12, [2 / (2 + FARTHEST / math.sqrt(2)), 1])
    return tuple(np.float32(c) for c in polynomial.convert(kind=np.polynomial.Polynomial).coef[::-1])


def _logarithm(t: Any) -> Any:
    z = 2 / t - 2
    return np.array([math.log(math.erfc(float(n))) + float(n) ** 2 for n in z]) - np.log(t)


def gelu(xp: Any, gate: Any, up: Any) -> Any:
    """``gate · Φ(gate) · up`` with the normal distribution's Φ, by the error function."""
    size = xp.minimum(xp.abs(gate), np.float32(FARTHEST))
    z = size * np.float32(math.sqrt(0.5))
    t = np.float32(2) / (z + np.float32(2))
    first, *rest = _tail()
    q = t * first
    for coefficient in rest[:-1]:
        q += coefficient
        q *= t
    q += rest[-1]
    z *= z
    q -= z
    xp.exp(q, out=q)
    q *= t
    q *= np.float32(0.5)  # the smaller of Φ(gate) and Φ(-gate)
    q *= size
    xp.maximum(gate, np.float32(0), out=gate)
    gate -= q
    gate *= up
    return gate


ACTIVATIONS: dict[str, Gate] = {
    "silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu, "swiglu_oai": swiglu_oai,
}  # fmt: skip


# --- the operation ------------------------------------------------------------------------------

REQUEST = "gated_linear(x, gate, up)"
ONE_ROW, INT16 = "cuda:gemv_int16", "int16x"  # the kernel that does all for one row, and its arithmetic
GROUPED = "cuda:grouped"  # the kernel of many tokens with experts
ONE_LAUNCH = {"silu": "silu", "gelu_tanh": "gelu", "swiglu_oai": "swiglu_oai"}  # its names of activations
BEHIND = ("silu", "gelu_tanh")  # activations whose kernel behind two products keeps NaN; limits do not


@operation
def gated_linear(
    x: Any,
    gate: Any,
    up: Any,
    *,
    ids: Any = None,
    activation: str = "silu",
    kernel: str = "auto",
    arithmetic: str | None = None,
    out: Any = None,
    bias: Any = None,
    dtype: Any = np.float32,
    check: bool | None = None,
    invariant: bool = False,
) -> Any:
    """Multiply activations with two matrices, and one product with a function of the other.

    ``y = act(x @ gate.T) * (x @ up.T)``, as feed-forward layers begin. The products are float32 until the
    end, and y is rounded once.

    Parameters
    ----------
    x : array of floats, or ScaledArray
        Activations [..., K]; with ``ids`` [T, K] or [T, U, K]. A torch tensor gives a torch tensor.
    gate, up : QuantArray or ScaledArray
        Weights [N, K], or with ``ids`` experts [E, N, K]. Their formats may differ.
    ids : array of integers, optional
        [T, U]: the experts that each token uses, as in :func:`ggmlq.expert_linear`.
    activation : str
        ``"silu"``, ``"gelu"`` (by the error function), ``"gelu_tanh"``, ``"relu"``, or ``"swiglu_oai"``:
        gpt-oss's ``(up + 1) * gate * sigmoid(1.702 * gate)``, gate at most 7, up from -7 to 7.
    kernel : str
        ``"auto"``, or the name of a kernel of both products; see :func:`ggmlq.kernels`.
    arithmetic : str, optional
        Choose only kernels that multiply in this arithmetic; not for weights with scales.
    out : array, optional
        Receives the result, in its own dtype, and is returned. It may overlap the operands.
    bias : (array, array), optional
        Added to the two products first: [N] each, or [E, N] with ``ids``. One of them may be None.
    dtype : dtype
        Of the result: float16, bfloat16, float32 or float64.
    check : bool, optional
        Look at ids, as in :func:`ggmlq.expert_linear`.
    invariant : bool
        A row of the result has the same bits whatever rows are beside it, and how many.

    Returns
    -------
    array
        [..., N] or [T, U, N].

    >>> import numpy as np, ggmlq as gq
    >>> w = np.random.default_rng(0).standard_normal((3, 32), np.float32)
    >>> gate, up = gq.quantize(w, "q8_0"), gq.quantize(w, "f16")
    >>> gq.gated_linear(np.ones((1, 32), np.float32), gate, up, activation="relu").shape
    (1, 3)
    """
    _check(activation, gate, up, ids, arithmetic)
    wishes = Wishes(out, None, None, dtype, kernel, arithmetic, invariant)
    biases = tuple(_as_array(part) for part in _pair(bias))
    return enter(GATED, gate, x, wishes, up=up, ids=ids, activation=activation, both=biases, check=check)


def _shape(gate: Any, x: Any, ids: Any, **options: Any) -> tuple[int, ...]:
    return (*(rows_of(x) if ids is None else shape_of_ids(REQUEST, ids)), gate.shape[-2])


def multiply(
    gate: Any, x: Any, wishes: Wishes, up: Any, ids: Any, activation: str, both: Any, check: bool | None
) -> Any:  # fmt: skip
    """The product of arrays; ``both``: the biases of the two products."""
    invariant, n = wishes.invariant, gate.shape[-2]
    options: dict[str, Any] = {"kernel": wishes.kernel, "invariant": invariant}
    if wishes.arithmetic is not None:
        options["arithmetic"] = wishes.arithmetic
    if ids is not None:
        options["check"] = check
    memory = memory_of(gate, x)
    end = result_of(REQUEST, wishes, _shape(gate, x, ids), device_of(memory))
    holders = (w if hasattr(w, "recorded") else None for w in (gate, up))
    with ExitStack() as stack:
        for holder in holders:  # of memory that a CUDA graph records
            stack.enter_context(on_device_of(REQUEST, memory, holder))
        if ids is None and (name := _at_once(x, gate, up, activation, options, both, end)):
            return _in_one_launch(name, x, (gate, up), both, end)
        place = place_for_sums(end, *_reads(x, gate, up, ids, both))
        if activation in BEHIND and ids is None and not invariant and both[1] is None:
            sums = _product(x, gate, None, dict(options, bias=both[0], out=place))
            if (y := _gated_product(x, up, sums, activation, options, end)) is not None:
                return y
            others = _product(x, up, None, options)
        else:
            sums, others = _products(x, (gate, up), ids, options, both, place)
        if end.out is None and end.dtype == np.float32:
            end = end._replace(out=sums)
        if activation in BEHIND and sums.size and not end.place.on_host:
            operands = _reads(x, gate, up, ids, both)
            return _gated_on_device(ONE_LAUNCH[activation], (sums, others), end, operands)
        gates, ups = (y.reshape(-1, n) if y.size else y for y in (sums, others))
        act, xp = ACTIVATIONS[activation], end.place.xp
        return finished(end, sums, lambda rows: act(xp, gates[rows], ups[rows]))


GATED = Operation(REQUEST, multiply, shape=_shape)


def _products(
    x: Any, matrices: Any, ids: Any, options: dict[str, Any], biases: Any, place: Any
) -> tuple[Any, Any]:
    """Both products, in float32; ``place`` receives the first one, if it is there."""
    if ids is not None and all(bias is None for bias in biases):
        both = _of_experts(x, matrices, ids, options, place)
        if both is not None:
            return both
    (gate, up), (bias, other) = matrices, biases
    sums = _product(x, gate, ids, dict(options, bias=bias, out=place))
    return sums, _product(x, up, ids, dict(options, bias=other))


def _gated_product(
    x: Any, up: Any, sums: Any, activation: str, options: dict[str, Any], end: Result
) -> Any:  # fmt: skip
    """The result where the kernel of the second product multiplies with the gate; None where none does."""
    if not isinstance(up, QuantArray) or is_host(up.memory) or not isinstance(x, type(up.memory)):
        return None
    out = sums if end.out is None and end.dtype == np.float32 else end.out
    name, kernel, arithmetic = ONE_LAUNCH[activation], options["kernel"], options.get("arithmetic")
    wishes = Wishes(out, None, sums, end.dtype.type, kernel, arithmetic, gate=name)
    return gated(up, x, wishes)


def _product(x: Any, w: Any, ids: Any, options: dict[str, Any]) -> Any:
    """One of the two products, in float32."""
    if ids is not None:
        return expert_linear(x, w, ids, **options)
    return (scaled_linear if w.product == "scaled_linear" else linear)(x, w, **options)


def _of_experts(
    x: Any, both: tuple[Any, Any], ids: Any, options: dict[str, Any], place: Any
) -> tuple[Any, Any] | None:  # fmt: skip
    """Both products with experts, whose rows one kernel gathers for the two; None where none does.

    ``place`` receives the first one, if it is there.
    """
    gate, up = both
    if not all(isinstance(w, QuantArray) and w.scale is None and not is_host(w.memory) for w in both):
        return None
    if gate.format is not up.format or options["invariant"]:
        return None
    operands = experts(EXPERTS, x, gate, ids, look=bool(options["check"]))
    rung = choose(ExpertLinear.of(*operands), options["kernel"], options.get("arithmetic"))
    if rung.name != GROUPED or not math.prod(operands.shape):
        return None
    empty = namespace(gate.memory).empty
    outs = empty(operands.shape, np.float32) if place is None else place, empty(operands.shape, np.float32)
    cuda_module("ladder.expert_linear.r5_grouped").multiply(operands.x, both, operands.ids, outs)
    return outs


def _at_once(
    x: Any, gate: Any, up: Any, activation: str, options: dict[str, Any], biases: Any, end: Result
) -> str | None:
    """The kernel's name for the activation, where one launch on a GPU serves all; None where none does.

    Operands of wrong shapes or kinds are refused by the products.
    """
    named, memory = ONE_LAUNCH.get(activation), getattr(gate, "memory", None)
    if named is None or memory is None or is_host(memory) or options["invariant"]:
        return None
    if options["kernel"] not in ("auto", ONE_ROW) or options.get("arithmetic") not in (None, INT16):
        return None
    if not (isinstance(gate, QuantArray) and isinstance(up, QuantArray) and isinstance(x, type(memory))):
        return None
    if x.shape[-1:] != gate.shape[-1:] or x.size != gate.shape[-1] or device_of(x) != gate.device:
        return None
    there = [bias for bias in biases if bias is not None]
    if not all(isinstance(bias, type(memory)) for bias in there):
        return None
    if any(part.dtype.char not in "fe" for part in (x, end, *there)):
        return None
    if any((device_of(bias), bias.shape) != (gate.device, gate.shape[:1]) for bias in there):
        return None
    if cuda_module("kernels.gated").refuses(end.place.card, gate, up) is not None:
        return None
    # What was timed on this machine holds for the product.
    taken = explain(problem_of(x.reshape(1, -1), gate, end.place))
    return named if taken.rung.name == ONE_ROW or not is_timed(taken.why) else None


def _in_one_launch(activation: str, x: Any, matrices: Any, biases: Any, end: Result) -> Any:
    """The product of one row, which a kernel rounds and writes, with the gate, in one launch."""
    kernels, xp, share = cuda_module("kernels.gated"), end.place.xp, end.place.share
    biases = tuple(None if bias is None else xp.ascontiguousarray(bias) for bias in biases)
    direct = takes_sums(share, end.out, x, *biases, *(q.memory for q in matrices), dtype=end.dtype)
    y = end.out if direct else xp.empty(end.shape, end.dtype)
    kernels.multiply(activation, x.reshape(1, -1), kernels.pair_of(*matrices, biases), y)
    return ended(y, end)


def _gated_on_device(activation: str, products: Any, end: Result, operands: Any) -> Any:
    """The result of both products, which one launch makes and rounds."""
    sums, others = products
    xp, share = end.place.xp, end.place.share
    kind = end.dtype if end.dtype.char in "fe" else np.dtype(np.float32)
    direct = end.out is sums or (kind == end.dtype and takes_sums(share, end.out, *operands, dtype=kind))
    y = end.out if direct else sums if kind == np.float32 else xp.empty(end.shape, kind)
    cuda_module("kernels.epilogue.gates").gated(activation, sums, others, y)
    return end.out if direct else ended(y.reshape(end.shape).astype(end.dtype, copy=False), end)


def _reads(x: Any, gate: Any, up: Any, ids: Any, bias: Any) -> list[Any]:
    """Arrays that the second product reads when the result of the first is there."""
    parts: list[Any] = []
    for operand in (x, gate, up):
        if isinstance(operand, ScaledArray):
            parts += operand.parts()
        elif not isinstance(operand, Divided):
            parts.append(getattr(operand, "memory", operand))
    return [part for part in (*parts, ids, *bias) if hasattr(part, "dtype")]


def _pair(bias: Any) -> Any:
    if bias is None:
        return None, None
    if not (isinstance(bias, tuple | list) and len(bias) == 2):
        raise DTypeError(
            f"{REQUEST}: bias is a {type(bias).__name__}; it is a pair, for gate and for up; pass (b, None) "
            "for one of them"
        )
    return bias


def _as_array(part: Any) -> Any:
    return array_of(REQUEST, part, "bias") if is_tensor(part) else part


def _check(activation: Any, gate: Any, up: Any, ids: Any, arithmetic: Any) -> None:
    """Refuse an unknown activation, and matrices that do not go together."""
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        way = text.meant(str(activation), ACTIVATIONS, "pass one of these")
        raise UnsupportedError(
            f"{REQUEST}: activation={activation!r}; there are {', '.join(ACTIVATIONS)}; {way}"
        )
    for name, w in (("gate", gate), ("up", up)):
        if not isinstance(w, QuantArray | ScaledArray | Divided):
            raise DTypeError(
                f"{REQUEST}: {name} is a {type(w).__name__}; it must be a QuantArray or a ScaledArray; make "
                f'one with gq.quantize({name}, "q8_0")'
            )
        need = 2 if ids is None else 3
        if w.ndim != need:
            way = "pass ids for experts [E, N, K]" if w.ndim == 3 else "leave ids out for a matrix [N, K]"
            raise ShapeError(f"{REQUEST}: {name} is {w!r}, {w.ndim}-D; it is {need}-D here; {way}")
        if arithmetic is not None and w.product == "scaled_linear":
            raise UnsupportedError(
                f"{REQUEST}: arithmetic={arithmetic!r} with {name}, {w!r}; products of codes with scales "
                "have none; leave it out"
            )
    if gate.shape != up.shape:
        raise ShapeError(
            f"{REQUEST}: gate has shape {gate.shape}, up {up.shape}; both are of one shape; pass rows of one "
            "layer"
        )
    if not isinstance(gate, Divided) and not isinstance(up, Divided):
        check_device(REQUEST, gate.device, up, "gate", "up")
