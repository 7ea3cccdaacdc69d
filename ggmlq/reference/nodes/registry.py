"""The table of operations: ``oracle`` enters a function into it, and ``Call`` is one use of it.

An operation has the name that ggml gives a node (``ggml_op_desc``): ``ADD``, and of unary and gated ones
``SILU``, ``SWIGLU``. Its parameters are 32-bit words, which ``words`` names in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays.array import QuantArray
from ...errors import ShapeError, UnsupportedError
from .number import HALF, LARGEST, SMALLEST, SMALLEST_HALF, Number, Wide, quick

Mask = NDArray[np.bool_]
LIMITS = {"f16": 65504.0 * (1 + HALF), "bf16": LARGEST, "f32": LARGEST}


@dataclass(frozen=True)
class Result:
    """Values in NumPy's order of axes [ne3, ne2, ne1, ne0], and a bound for each.

    ``exact``: bits must agree, as of a copy. ``accepts``: for results that are not unique (the order of equal
    elements, codes at a tie), a function from a kernel's result to the mask of its right elements.
    """

    value: NDArray[Any]
    bound: Wide
    exact: bool = False
    accepts: Callable[[NDArray[Any]], Mask] | None = None

    @property
    def discrete(self) -> bool:
        """True where results are right or wrong to the bit."""
        return self.exact or self.accepts is not None or self.value.dtype.kind in "iu"

    def wrong(self, y: NDArray[Any]) -> Mask:
        """The elements of a kernel's result that are out of bound, or finite where they should not be."""
        mask: Mask = self.excess(y) > 1
        return mask

    def excess(self, y: NDArray[Any]) -> Wide:
        """The error of each element in units of its bound: more than 1 is wrong."""
        y = np.asarray(y)
        if self.accepts is not None:
            return np.where(self.accepts(y), 0.0, np.inf)
        if self.value.dtype.kind in "iu":
            return np.where(y == self.value, 0.0, np.inf)
        y = y.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.abs(y - self.value)
            ratio = np.where(error == 0, 0.0, error / self.bound)
        same = (y == self.value) | (np.isnan(y) & np.isnan(self.value))
        if self.exact:
            signs = np.signbit(y) == np.signbit(self.value)
            return np.where(same & (signs | np.isnan(y)), 0.0, np.inf)
        judged = ~np.isposinf(self.bound) & ~np.isnan(self.bound)
        odd = ~np.isfinite(self.value) | ~np.isfinite(y)
        ratio = np.where(odd, np.where(same, 0.0, np.inf), ratio)
        # An expected NaN or infinity may be the other one; a large sum may overflow on its way.
        ratio = np.where(~np.isfinite(self.value) & ~np.isfinite(y), 0.0, ratio)
        return np.where(judged, ratio, 0.0)


def settled(n: Number, kind: str = "f32") -> Result:
    """The result of a Number as a kernel stores it, in float32 or in 16 bits."""
    size = np.abs(n.value)
    error = n.errors() + SMALLEST
    if kind == "f16":
        error = error + np.maximum(HALF * (size + error), SMALLEST_HALF)
    elif kind == "bf16":
        error = error + 2.0**-8 * (size + error)
    with np.errstate(invalid="ignore"):
        over = size + error > LIMITS.get(kind, LARGEST)  # to be finite is not promised
    error = np.where(over & np.isfinite(n.value), np.inf, error)
    return Result(n.value, np.where(np.isnan(error), np.inf, error))


def copied(values: NDArray[Any]) -> Result:
    """The result of an operation that moves elements and computes nothing: to the bit."""
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
    return Result(values, np.zeros(values.shape), exact=True)


@dataclass(frozen=True)
class Operation:
    """An operation with its oracle."""

    name: str
    compute: Callable[[Call], Result]
    sources: int = 2  # tensors that it reads, at most
    words: tuple[tuple[str, str], ...] = ()  # names and kinds (f, i, a dash for none) of its parameters
    rowwise: bool = True  # each slice of the result along its outermost axis needs that slice of its sources


@dataclass(frozen=True)
class Call:
    """One use of an operation: its sources, parameters, and the shape and type of its result."""

    op: str
    inputs: Sequence[Any]
    params: Mapping[str, Any]

    def has(self, i: int) -> bool:
        """True where source number i is there."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def array(self, i: int) -> NDArray[Any]:
        """Source number i as an array; blocks are decoded."""
        if not self.has(i):
            raise ShapeError(
                f"node {self.op}: source {i} of {len(self.inputs)} is missing; pass all that it reads"
            )
        source = self.inputs[i]
        if isinstance(source, Number):
            if np.any(source.error):
                raise UnsupportedError(
                    f"node {self.op}: source {i} has errors of its own, which this oracle does not carry on; "
                    "pass an array"
                )
            return source.value
        return source.dequantize(np.float32) if isinstance(source, QuantArray) else np.asarray(source)

    def number(self, i: int) -> Number:
        """Source number i in float64: exact values, or a Number with the errors that it has.

        A GPU may take numbers below 2^-126 for zero.
        """
        source = self.inputs[i] if self.has(i) else None
        if isinstance(source, Number):
            return source
        value = self.array(i).astype(np.float64)
        size = np.abs(value)
        return Number(value, np.where(size < SMALLEST, size, 0.0)) if quick() else Number(value)

    def uncertain(self, i: int) -> bool:
        """True where source number i is a Number: what another operation made, with its errors."""
        return self.has(i) and isinstance(self.inputs[i], Number)

    @property
    def kind(self) -> str:
        """The type of the result."""
        return str(self.params.get("type", "f32"))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result, where the operation has it from its tensor."""
        if "shape" not in self.params:
            raise ShapeError(f"node {self.op}: its result has the shape that you want; pass params['shape']")
        return tuple(int(n) for n in self.params["shape"])


OPERATIONS: dict[str, Operation] = {}


def oracle(
    *names: str, sources: int = 2, words: str = "", rowwise: bool = True
) -> Callable[[Callable[[Call], Result]], Callable[[Call], Result]]:
    """Enter a function into the table, under one or more names."""
    named = tuple((name, kind) for name, _, kind in (word.partition(":") for word in words.split()))

    def enter(compute: Callable[[Call], Result]) -> Callable[[Call], Result]:
        for name in names:
            OPERATIONS[name] = Operation(name, compute, sources, named, rowwise)
        return compute

    return enter


def named_words(op: str, words: NDArray[np.int32]) -> dict[str, Any]:
    """The parameters of an operation by name, from the words of a tensor."""
    floats, values = words.view(np.float32), dict[str, Any]()
    for i, (name, kind) in enumerate(OPERATIONS[op].words):
        if name != "-":
            values[name] = float(floats[i]) if kind == "f" else int(words[i])
    return values


def evaluate(op: str, inputs: Sequence[Any], params: Mapping[str, Any]) -> Result:
    """The result of a node by its oracle."""
    if op not in OPERATIONS:
        raise UnsupportedError(
            f"node {op}: there is no oracle; reference.nodes.NOT_COVERED says why; known are "
            f"{', '.join(sorted(OPERATIONS))}"
        )
    with np.errstate(all="ignore"):
        return OPERATIONS[op].compute(Call(op, inputs, params))


def repeated(b: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """An array repeated along its axes until it has a shape, as ggml broadcasts: 2 rows serve 6."""
    b = b.reshape((1,) * (len(shape) - b.ndim) + b.shape)
    if b.shape == shape:
        return b
    if any(length == 0 or whole % length for length, whole in zip(b.shape, shape, strict=True)):
        raise ShapeError(
            f"{b.shape} is repeated into {shape}: each length must divide the other; pass others"
        )
    for axis, (length, whole) in enumerate(zip(b.shape, shape, strict=True)):
        if length not in (1, whole):
            b = np.concatenate([b] * (whole // length), axis=axis)
    return np.broadcast_to(b, shape)


# --- operations without an oracle here, each with the reason --------------------------------------

PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")  # judged in their own arithmetic: ggmlq.reference.linear
_TRAINING = "computes gradients or a training step; no model that is run has it"
_VIEW = "computes nothing: another look at the memory of its source"
_CUSTOM = "a function of the program's own, whose meaning ggml does not know"

NOT_COVERED = {
    **dict.fromkeys(("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"), _VIEW),
    **dict.fromkeys(
        (
            "IM2COL_BACK", "POOL_2D_BACK", "FLASH_ATTN_BACK", "CROSS_ENTROPY_LOSS", "CROSS_ENTROPY_LOSS_BACK",
            "OPT_STEP_ADAMW", "OPT_STEP_SGD",
        ),
        _TRAINING,
    ),
    **dict.fromkeys(("MAP_CUSTOM1", "MAP_CUSTOM2", "MAP_CUSTOM3", "CUSTOM"), _CUSTOM),
}  # fmt: skip
