"""The path of every product from checked operands to its result: choose a kernel, launch it, finish its sums.

An operation checks its operands (operands.py), states its problem and the result that its caller wants, and
calls :func:`run`. That chooses a rung, lets it write into ``out`` where possible, launches it (warm.py
records the launches that can be repeated), and does the steps that the rung did not: bias, codes, dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..arrays.array import QuantArray
from ..arrays.companion import multiply, of_uses
from ..arrays.scaled import ScaledArray
from ..base.devices import cuda_device, cuda_module, is_host, is_over_torch, namespace, on_device_of, place_of
from ..codes import Code
from ..codes.tiling import Tile
from ..dispatch import ladder
from ..dispatch.checks import FLOAT32, check_bias, check_out, float_dtype, takes_sums
from ..dispatch.epilogue import PLAIN, Epilogue, is_written
from ..dispatch.ladder import Problem, Rung
from . import tuning, warm
from .epilogue import lies_as_results
from .quantize_scaled import coded, static_scales

# --- products on a GPU of which no row depends on the rows beside it ----------------------------
# Kernels there choose tiles, and how they share sums along K, by the number of rows. In pieces of
# ``ROWS`` rows that choice is always the same. Experts are multiplied one row at a time, since all rows
# of all experts share one plan. On the CPU kernels themselves have this property (``Rung.invariant``).

ROWS = 64


@cache
def kernel_of(problem: Problem, kernel: str, arithmetic: str | None) -> str:
    """The kernel of all pieces, the same while the process lives: what is timed later changes no bits."""
    return ladder.choose(problem.with_rows(ROWS), kernel, arithmetic).name


def by_pieces(x: Any, n: int, dtype: Any, product: Callable[[Any], Any]) -> Any:
    """``product(x)`` [..., N] of x [..., K], floats or codes with scales, ``ROWS`` rows at a time."""
    m = math.prod(x.shape[:-1])
    floats = not hasattr(x, "codes")
    rows = x.reshape(m, x.shape[-1]) if floats else x.as_rows()
    xp = namespace(x if floats else x.codes)
    y = xp.empty((m, n), dtype)
    for start in range(0, m, ROWS):
        count = min(ROWS, m - start)
        part = rows[start : start + ROWS] if count == ROWS and floats else _filled(xp, rows, start, m)
        y[start : start + count] = product(part)[:count]
    return y.reshape(*x.shape[:-1], n)


def _filled(xp: Any, rows: Any, start: int, m: int) -> Any:
    """A piece of rows, the last of them repeated where there are no more; codes bring their scales."""
    return rows[xp.minimum(xp.arange(start, start + ROWS), m - 1)]


def by_uses(x: Any, ids: Any, n: int, dtype: Any, product: Callable[[Any, Any], Any]) -> Any:
    """``product(x, ids)`` [T, U, N] with experts, for rows [T or T·U, K], one use at a time."""
    t, u = ids.shape
    y = namespace(ids).empty((t, u, n), dtype)
    per = t * u // max(len(x), 1)
    for use in np.ndindex(t, u):
        row = (use[0] * u + use[1]) // per
        at = tuple(slice(i, i + 1) for i in use)
        y[at] = product(x[row : row + 1], ids[at])
    return y


# --- the path of a product ----------------------------------------------------------------------


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
    residual: Any = None  # on a GPU; of the result's shape, or one that NumPy broadcasts to it
    gate: str | None = None  # the function of the residual that multiplies the result, as in an Epilogue


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
    key: warm.Key | None = None, remake: Callable[..., Any] | None = None, invariant: bool = False,
) -> Any:  # fmt: skip
    """The result of a product, by the named rung or the fastest; ``operands`` are as rungs take them.

    ``key``: the key of the call's recording, if it is an ordinary call; ``remake(*key.arrays)`` makes the
    first operand again; None: it is the array.
    """
    weights, (request, shape, wanted, out, bias, coding, *_) = operands[1], result
    memory, xp = weights.memory, namespace(weights.memory)
    with on_device_of(problem, memory, weights), np.errstate(over="ignore", invalid="ignore"):
        if kernel == "auto" and not is_host(memory) and does_without_cublas(memory):
            problem = replace(problem, captured=True)
        operands = _as_rows(operands[0]), *operands[1:]
        rung = tuning.chosen(problem, operands, kernel, arithmetic, invariant)
        sums = (len(operands[0]), len(weights)) if len(operands) == 2 else shape
        some = math.prod(sums) and weights.shape[-1]
        scale = weights.scale if isinstance(weights, QuantArray) else None
        addends = _addends(result, sums)
        takes = rung.ends and some and scale is None
        epilogue = _epilogue(rung, weights, sums, result, *addends) if takes else PLAIN
        added = epilogue.bias, epilogue.residual
        rest = [one for one, other in zip(addends, added, strict=True) if one is not None and other is None]
        narrow = FLOAT32 if scale is not None else wanted if out is None else out.dtype
        dtype = _written(rung, narrow, sums, rest, coding, epilogue)
        direct = out is not None and _takes(out, (*operands, *rest), bias, dtype)
        y = out.reshape(sums) if direct else xp.empty(sums, dtype)
        if not some:
            y[...] = 0
        elif epilogue is PLAIN or rung.repeats:
            key = key if scale is None or is_host(memory) else None  # warm calls on a GPU know no scale
            warm.launch(
                rung, operands, y, key, lambda *arrays: _as_rows(remake(*arrays) if remake else arrays[0]),
                epilogue,
            )  # fmt: skip
        else:
            rung.launch(*operands, y, end=epilogue)
        if scale is not None:
            multiply(y, scale if len(operands) == 2 else of_uses(scale, operands[2]))
        for addend in rest:  # what no kernel adds
            assert addend.dtype.char != "H", "bits of bfloat16 are no numbers to add"
            rows = y.reshape(shape)
            if result.gate is None:
                rows += addend
            else:
                cuda_module("epilogue.gates").gated(result.gate, addend, rows, rows)
        if out is not None:
            if not direct and not _narrowed(y, out):
                out[...] = y.reshape(shape)
            return out
        if coding is None:
            return as_wanted(y, wanted).reshape(shape)
        if epilogue.code is not None:
            return ScaledArray.assembled(y.reshape(shape), epilogue.scales, coding.code, coding.tile)
        scales = static_scales(request, coding.scales, memory, sums, coding.code, coding.tile)
        return coded(request, y.reshape(shape), coding.code, coding.tile, scales=scales)


def does_without_cublas(memory: Any) -> bool:
    """True where CuPy's cuBLAS cannot be called: a CUDA graph is recorded, or memory is torch's."""
    return is_over_torch(type(memory)) or bool(cuda_device().capturing(memory.device.id))


def _addends(result: Result, sums: tuple[int, ...]) -> tuple[Any, Any]:
    """Bias and residual, or a gate; a residual that is the same for all rows is a bias if there is none."""
    bias, residual = result.bias, result.residual
    if result.gate is not None:
        return None, residual
    if bias is None and residual is not None and residual.shape[-1:] == (residual.size,) == sums[-1:]:
        return residual.reshape(-1), None
    return bias, residual


def _epilogue(
    rung: Rung, weights: Any, sums: tuple[int, ...], result: Result, bias: Any, residual: Any
) -> Epilogue:  # fmt: skip
    """The steps after the sums that the rung takes: bias, residual, gate, codes; no bias in float64."""
    coding, memory = result.coding, weights.memory
    adds = rung.adds if result.gate is None else sums[0] <= rung.gates
    if bias is not None:
        if bias.dtype.itemsize > 4:
            return PLAIN
        dtype = bias.dtype if isinstance(weights, QuantArray) and bias.dtype.char in "feH" else np.float32
        bias = namespace(memory).ascontiguousarray(bias, dtype)
    if coding is not None and is_written(coding.code):
        request = f"{result.request} with requantize"
        scales = static_scales(request, coding.scales, memory, sums, coding.code, coding.tile)
        return Epilogue(bias, coding.code, scales)
    if residual is not None and adds and lies_as_results(residual, sums):
        return Epilogue(bias, residual=residual.reshape(sums), gate=result.gate)
    return PLAIN if bias is None else Epilogue(bias)


def as_wanted(y: Any, wanted: np.dtype[Any]) -> Any:
    """Results in the dtype that the caller wants."""
    if wanted == np.float16 and y.dtype == np.float32 and is_host(y):
        halves = np.empty(y.shape, np.float16)
        if _narrowed(y, halves):
            return halves
    return y.astype(wanted, copy=False)


def _narrowed(y: Any, out: Any) -> bool:
    """Write float32 results into a float16 ``out`` on the host; False, and nothing done, where it cannot."""
    if not is_host(out) or out.dtype != np.float16 or y.dtype != np.float32:
        return False
    if not (out.flags.c_contiguous and y.flags.c_contiguous and y.size):
        return False
    narrowed: bool = import_module("ggmlq.cpu.encode.halves").narrow_into(y, out)
    return narrowed


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
    if is_host(out) and not out.flags.aligned:  # a kernel may store whole lines
        return False
    if dtype.itemsize == 2 and not is_host(out) and out.data.ptr % 4:  # kernels store two of them at a time
        return False
    return takes_sums(place_of(out).share, out, *arrays, dtype=dtype)


def _written(
    rung: Rung, wanted: np.dtype[Any], sums: tuple[int, ...], rest: Any, coding: Coding | None,
    epilogue: Epilogue,
) -> np.dtype[Any]:  # fmt: skip
    """The dtype that a kernel writes: that of codes, of 16 bits where it may round its sums, or float32."""
    if epilogue.code is not None:
        return epilogue.code.dtype
    narrow = rung.narrow and not rest and coding is None and wanted.itemsize == 2 and not sums[-1] % 2
    return wanted if narrow else FLOAT32
