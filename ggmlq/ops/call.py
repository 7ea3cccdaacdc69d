"""The path of every product from checked operands to its result: choose a kernel, launch it, finish its sums.

An operation checks its operands (operands.py), states its problem and the result that its caller wants, and
calls :func:`run`. That chooses a rung, lets it write into ``out`` where possible, launches it (warm.py
records the launches that can be repeated), and does the steps that the rung did not: bias, codes, dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..arrays.scaled import ScaledArray
from ..base.devices import namespace, on_device_of, place_of
from ..codes import Code
from ..codes.tiling import Tile
from ..dispatch import ladder
from ..dispatch.checks import FLOAT32, check_bias, check_out, float_dtype, takes_sums
from ..dispatch.epilogue import PLAIN, Epilogue, is_written
from ..dispatch.ladder import Problem
from . import warm
from .quantize_scaled import coded, static_scales


class Coding(NamedTuple):
    """The code, tile and scales of a result that is requantized."""

    code: Code
    tile: Tile
    scales: Any


class Result(NamedTuple):
    """The result that a caller wants, checked."""

    request: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    out: Any
    bias: Any
    coding: Coding | None = None


def result_of(
    request: str, weights: Any, shape: tuple[int, ...], dtype: DTypeLike | None, out: Any, bias: Any = None,
    name: str = "q",
) -> Result:  # fmt: skip
    """The checked wishes for a result of this shape; ``name``: of the weights, for error messages."""
    if out is not None:
        check_out(request, out, shape, weights.device)
    if bias is not None:
        bias = check_bias(request, bias, weights, name)
    return Result(request, shape, float_dtype(request, dtype), out, bias)


def run(
    problem: Problem, operands: tuple[Any, ...], result: Result, kernel: str, arithmetic: str | None = None,
    key: warm.Key | None = None, remake: Callable[[], Any] | None = None,
) -> Any:  # fmt: skip
    """The result of a product, by the named rung or the fastest; ``operands`` are as rungs take them.

    ``key``: the key of the call's recording, if it is an ordinary call; ``remake()`` quantizes the first
    operand again, where the call quantized it.
    """
    weights, (request, shape, wanted, out, bias, coding) = operands[1], result
    memory, xp = weights.memory, namespace(weights.memory)
    with on_device_of(problem, memory, weights), np.errstate(over="ignore", invalid="ignore"):
        rung = ladder.choose(problem, kernel, arithmetic)
        operands = _as_rows(operands[0]), *operands[1:]
        sums = (len(operands[0]), len(weights)) if len(operands) == 2 else shape
        some = math.prod(sums) and weights.shape[-1]
        epilogue = _epilogue(rung, memory, sums, result) if rung.ends and some else PLAIN
        rest = bias if epilogue.bias is None else None  # what no kernel adds
        dtype = _written(rung, wanted if out is None else out.dtype, rest, coding, epilogue)
        direct = out is not None and _takes(out, operands, bias, dtype)
        y = out.reshape(sums) if direct else xp.empty(sums, dtype)
        if not some:
            y[...] = 0
        elif epilogue is PLAIN:
            warm.launch(rung, operands, y, key, lambda: _as_rows(remake()) if remake else operands[0])
        else:
            rung.launch(*operands, y, end=epilogue)
        if rest is not None:
            y += rest
        if out is not None:
            if not direct:
                out[...] = y.reshape(shape)
            return out
        if coding is None:
            return y.astype(wanted, copy=False).reshape(shape)
        if epilogue.code is not None:
            return ScaledArray.assembled(y.reshape(shape), epilogue.scales, coding.code, coding.tile)
        scales = static_scales(request, coding.scales, memory, sums, coding.code, coding.tile)
        return coded(request, y.reshape(shape), coding.code, coding.tile, scales=scales)


def _epilogue(rung: ladder.Rung, memory: Any, sums: tuple[int, ...], result: Result) -> Epilogue:
    """The steps after the sums that the rung takes itself: bias and codes, but never a bias in float64."""
    bias, coding = result.bias, result.coding
    if bias is not None:
        if bias.dtype.itemsize > 4:
            return PLAIN
        bias = namespace(memory).ascontiguousarray(bias, np.float32)
    if coding is not None and is_written(coding.code):
        request = f"{result.request} with requantize"
        scales = static_scales(request, coding.scales, memory, sums, coding.code, coding.tile)
        return Epilogue(bias, coding.code, scales)
    return PLAIN if bias is None else Epilogue(bias)


def _as_rows(x: Any) -> Any:
    if x.ndim == 2:
        return x
    return x.as_rows() if isinstance(x, ScaledArray) else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _takes(out: Any, operands: tuple[Any, ...], bias: Any, dtype: np.dtype[Any]) -> bool:
    """True if a kernel may write into ``out``; dropped bytes of blocks are not restored for this check."""
    arrays = [bias]
    for operand in operands:
        if isinstance(operand, ScaledArray):
            arrays += operand.parts()
        else:
            arrays.append(getattr(operand, "memory", operand))
    return takes_sums(place_of(out).share, out, *arrays, dtype=dtype)


def _written(
    rung: ladder.Rung, wanted: np.dtype[Any], rest: Any, coding: Coding | None, epilogue: Epilogue
) -> np.dtype[Any]:  # fmt: skip
    """The dtype that a kernel writes: that of codes, of 16 bits where it may round its sums, or float32."""
    if epilogue.code is not None:
        return epilogue.code.dtype
    narrow = rung.narrow and rest is None and coding is None and wanted.itemsize == 2
    return wanted if narrow else FLOAT32
