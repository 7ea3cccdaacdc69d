"""Operations element by element, of one tensor or two; the second is repeated where it is shorter."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...formats import FORMATS
from .copies import encoded
from .number import SMALLEST, Number, choose, quick, smaller
from .registry import Call, Result, oracle, repeated, settled

TWO = {"ADD": operator.add, "SUB": operator.sub, "MUL": operator.mul, "DIV": operator.truediv}
ONE: dict[str, Callable[[Number], Number]] = {
    "SQR": lambda a: a * a, "SQRT": Number.sqrt, "LOG": Number.log, "SIN": Number.sin, "COS": Number.cos,
}  # fmt: skip


def stored(n: Number, kind: str) -> Result:
    """A result in the type of its tensor, which may have blocks."""
    return settled(n, kind) if FORMATS[kind].block_size == 1 else encoded(n.value, kind)


@oracle(*TWO)
def two(c: Call) -> Result:
    """The sum, difference, product or quotient of two tensors, element by element."""
    a, b = c.number(0), c.number(1)
    if c.op == "DIV" and quick():  # a GPU's quick quotient by these is zero
        b = Number(b.value, np.where(np.abs(b.value) >= 1 / SMALLEST, np.inf, b.error))
    return stored(TWO[c.op](a, b.map(lambda v: repeated(v, a.shape))), c.kind)


@oracle(*ONE)
def one(c: Call) -> Result:
    """The square, root, logarithm, sine or cosine of each element."""
    return settled(ONE[c.op](c.number(0)), c.kind)


@oracle("ADD1")
def add1(c: Call) -> Result:
    """A number added to each element."""
    return stored(c.number(0) + float(c.array(1).reshape(-1)[0]), c.kind)


@oracle("ADD_ID", sources=3, rowwise=False)
def add_id(c: Call) -> Result:
    """To each row of a [T, U, N] the row of b that an id names."""
    ids = c.array(2).reshape(c.array(2).shape[-2:])
    rows = c.number(1).map(lambda b: b.reshape(b.shape[-2:])[ids])
    return settled(c.number(0) + rows, c.kind)


@oracle("SCALE", words="scale:f bias:f")
def scale(c: Call) -> Result:
    """A tensor times a number, plus a number."""
    product = c.number(0) * c.params["scale"]
    bias = c.params.get("bias", 0.0)
    return settled(product + bias if bias else product, c.kind)


@oracle("CLAMP", words="low:f high:f")
def clamp(c: Call) -> Result:
    """Each element within two limits, which computes nothing."""
    return settled(c.number(0).clip(c.params["low"], c.params["high"]), c.kind)


@oracle("LEAKY_RELU", words="slope:f")
def leaky_relu(c: Call) -> Result:
    """Elements above zero as they are, others times a slope."""
    a = c.number(0)
    return settled(choose(a.value > 0, a, a * c.params["slope"]), c.kind)


@oracle("FILL", words="value:f")
def fill(c: Call) -> Result:
    """One number in every element."""
    return settled(Number(np.full(c.array(0).shape, c.params["value"])), c.kind)


@oracle("ARANGE", sources=0, words="start:f stop:f step:f", rowwise=False)
def arange(c: Call) -> Result:
    """Numbers from start in equal steps."""
    n = c.shape[-1]
    steps: Any = np.arange(n, dtype=np.float64)
    values = Number(steps) * c.params["step"] + c.params["start"]
    return settled(values.map(lambda v: v.reshape(c.shape)), c.kind)


# --- unary functions, and gated ones: a function of one half or tensor times the other ------------
#
# llama.cpp's CPU looks GELU up in a table of halves: its argument and its result are rounded to float16.

A, B = 0.044715, math.sqrt(2 / math.pi)  # of GELU by tanh
QUICKER = 1.702  # of GELU by a sigmoid
TABLE = 10.0  # the table of GELU serves arguments between plus and minus this


def silu(x: Number) -> Number:
    """An element times its sigmoid."""
    return x / (1.0 + (-x).exp())


def sigmoid(x: Number) -> Number:
    """1 / (1 + exp(-x)), between 0 and 1."""
    return 1.0 / (1.0 + (-x).exp())


def gelu(x: Number) -> Number:
    """GELU by its formula with tanh, perhaps from a table of halves."""
    h = x.to_half()
    inner = h * B * (1.0 + h * h * A)
    y = (h * 0.5 * (1.0 + inner.tanh())).to_half()
    # The table ends: beyond it a kernel gives 0 or x, which the formula nearly is.
    rest = np.abs(y.value - np.where(x.value > 0, x.value, 0.0))
    return Number(y.value, y.error + np.where(np.abs(x.value) >= TABLE, rest, 0.0))


def gelu_quick(x: Number) -> Number:
    """GELU by a sigmoid, perhaps from a table of halves."""
    h = x.to_half()
    y = (h / (1.0 + (h * -QUICKER).exp())).to_half()
    return Number(y.value, np.where(np.isfinite(x.value), y.error, 0.0))


def gelu_erf(x: Number) -> Number:
    """GELU by the error function."""
    return x * 0.5 * (1.0 + (x * math.sqrt(0.5)).erf())


def relu(x: Number) -> Number:
    """Elements above zero, 0 for others."""
    return Number(np.maximum(x.value, 0.0), x.error)


def softplus(x: Number) -> Number:
    """log(1 + exp(x)), and x itself where it is large."""
    return choose(x.value > 20, x, (1.0 + x.exp()).log())


def expm1(x: Number) -> Number:
    """The exponential less one, perhaps as exp(x) - 1, which cancels near zero."""
    exact, short = x.expm1(), x.exp() - 1.0
    return Number(exact.value, np.maximum(exact.error, short.error))


def _sixth(x: Number) -> Number:
    return ((x + 3.0) / 6.0).clip(0.0, 1.0)


def _exact(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Number], Number]:
    """A function that a kernel computes without an error; one of its argument may take it to either side."""

    def apply(x: Number) -> Number:
        value = function(x.value)
        if not np.any(x.error):
            return Number(value)
        ends = (np.abs(function(x.value + side * x.error) - value) for side in (-1.0, 1.0))
        return Number(value, np.maximum(*ends))

    return apply


UNARY: dict[str, Callable[[Number], Number]] = {
    "ABS": _exact(np.abs), "SGN": _exact(np.sign), "NEG": _exact(np.negative),
    "STEP": _exact(lambda x: (x > 0).astype(np.float64)), "RELU": relu, "TANH": Number.tanh,
    "ELU": lambda x: choose(x.value > 0, x, x.expm1()), "SIGMOID": sigmoid, "GELU": gelu,
    "GELU_QUICK": gelu_quick, "SILU": silu, "HARDSWISH": lambda x: x * _sixth(x), "HARDSIGMOID": _sixth,
    "EXP": Number.exp, "EXPM1": expm1, "SOFTPLUS": softplus, "GELU_ERF": gelu_erf,
    "FLOOR": _exact(np.floor), "CEIL": _exact(np.ceil), "TRUNC": _exact(np.trunc),
    "ROUND": _exact(lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x)),  # halves away from zero
}  # fmt: skip


@oracle(*UNARY, sources=1)
def unary(c: Call) -> Result:
    """A function of each element."""
    return settled(UNARY[c.op](c.number(0)), c.kind)


@oracle("XIELU", sources=1, words="-:i alpha_n:f alpha_p:f beta:f eps:f")
def xielu(c: Call) -> Result:
    """A square above zero, an exponential below, and a slope everywhere."""
    x, p = c.number(0), c.params
    above = x * x * p["alpha_p"]
    below = (smaller(x, p["eps"]).expm1() - x) * p["alpha_n"]
    return settled(choose(x.value > 0, above, below) + x * p["beta"], c.kind)


GATES: dict[str, Callable[[Number], Number]] = {
    "REGLU": relu, "GEGLU": gelu, "SWIGLU": silu, "GEGLU_ERF": gelu_erf, "GEGLU_QUICK": gelu_quick,
}  # fmt: skip


def halves(c: Call) -> tuple[Number, Number]:
    """The gate, and what it multiplies: two tensors, or the halves of each row of one."""
    if c.has(1):
        return c.number(0), c.number(1)
    both = c.number(0)
    n = both.shape[-1] // 2
    first, second = both[..., :n], both[..., n:]
    return (second, first) if c.params.get("swapped") else (first, second)


@oracle(*GATES, words="-:i swapped:i")
def gated(c: Call) -> Result:
    """A function of the gate times the other tensor, or half."""
    gate, up = halves(c)
    return settled(GATES[c.op](gate) * up, c.kind)


@oracle("SWIGLU_OAI", words="-:i swapped:i alpha:f limit:f")
@oracle("SWIGLU_CLAMP", words="-:i swapped:i -:f limit:f")
def swiglu_limited(c: Call) -> Result:
    """SWIGLU with both halves limited; that of gpt-oss has a slope, and adds 1 to the other half."""
    gate, up = halves(c)
    limit = c.params["limit"]
    gate, up = gate.clip(-np.inf, limit), up.clip(-limit, limit)
    if c.op == "SWIGLU_CLAMP":
        return settled(silu(gate) * up, c.kind)
    return settled(gate / (1.0 + (gate * -c.params["alpha"]).exp()) * (up + 1.0), c.kind)
