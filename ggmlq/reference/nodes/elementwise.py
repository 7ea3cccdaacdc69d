"""Operations element by element, of one tensor or two; the second is repeated where it is shorter."""

from __future__ import annotations

from typing import Any

import numpy as np

from .number import Number, choose
from .registry import Call, oracle, repeated
from .result import Result, settled


def _two(c: Call) -> tuple[Number, Number]:
    a = c.number(0)
    return a, c.number(1).map(lambda b: repeated(b, a.shape))


@oracle("ADD")
def add(c: Call) -> Result:
    """The sum of two tensors."""
    a, b = _two(c)
    return settled(a + b, c.kind)


@oracle("ADD1")
def add1(c: Call) -> Result:
    """A number added to each element."""
    return settled(c.number(0) + float(c.array(1).reshape(-1)[0]), c.kind)


@oracle("SUB")
def sub(c: Call) -> Result:
    """The difference of two tensors."""
    a, b = _two(c)
    return settled(a - b, c.kind)


@oracle("MUL")
def mul(c: Call) -> Result:
    """The product of two tensors, element by element."""
    a, b = _two(c)
    return settled(a * b, c.kind)


@oracle("DIV")
def div(c: Call) -> Result:
    """The quotient of two tensors, element by element."""
    a, b = _two(c)
    return settled(a / b, c.kind)


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


@oracle("SQR")
def sqr(c: Call) -> Result:
    """The square of each element."""
    a = c.number(0)
    return settled(a * a, c.kind)


@oracle("SQRT")
def sqrt(c: Call) -> Result:
    """The square root of each element."""
    return settled(c.number(0).sqrt(), c.kind)


@oracle("LOG")
def log(c: Call) -> Result:
    """The logarithm of each element."""
    return settled(c.number(0).log(), c.kind)


@oracle("SIN")
def sin(c: Call) -> Result:
    """The sine of each element."""
    return settled(c.number(0).sin(), c.kind)


@oracle("COS")
def cos(c: Call) -> Result:
    """The cosine of each element."""
    return settled(c.number(0).cos(), c.kind)


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
