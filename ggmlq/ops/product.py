"""The path of every product from checked operands to its result: choose a kernel, launch it, finish its sums.

An operation checks its operands (operands.py), states its problem and the result that its caller wants, and
calls :func:`run`. That chooses a rung, lets it write into ``out`` where possible, launches it, keeps the plan
for calls that repeat this one (plan.py), and does the steps that the rung did not: bias, residual, gate,
codes and dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.companion import multiply, of_uses
from ..arrays.scaled import ScaledArray
from ..arrays.weights import Divided
from ..base.devices import (
    cuda_device,
    cuda_module,
    device_of,
    is_over_torch,
    namespace,
    on_device_of,
)
from ..dispatch import ladder
from ..dispatch.checks import FLOAT32
from ..dispatch.epilogue import PLAIN, Epilogue, is_written
from ..dispatch.ladder import Problem, Rung
from ..errors import UnsupportedError
from . import tuning
from .door import Operation, enter
from .epilogue import (
    Result,
    Wishes,
    delivered,
    lies_as_results,
    memory_of,
    place_for_sums,
    result_of,
    rows_of,
    takes_sums,
)
from .plan import Key, Plan, as_rows, kept, launch_on_host, launched, narrow_into, narrowed
from .quantize_scaled import coded, static_scales

# --- products on a GPU of which no row depends on the rows beside it ----------------------------
# Kernels there choose tiles, and how they share sums along K, by the number of rows. In pieces of
# ``ROWS`` rows that choice is always the same. Experts are multiplied one row at a time, since all rows
# of all experts share one plan. On the CPU kernels themselves have this property (``Rung.invariant``), and
# on Hopper for up to ``ALONE`` rows.

ROWS, ALONE = 64, 128


@cache
def takes_alone(problem: Problem, kernel: str, arithmetic: str | None) -> bool:
    """True where a kernel itself keeps the bits of rows, which need no others beside them."""
    try:
        return bool(ladder.choose(problem, kernel, arithmetic, True).invariant)
    except UnsupportedError:
        return False


@cache
def kernel_of(problem: Problem, kernel: str, arithmetic: str | None) -> str:
    """The kernel of all pieces, the same while the process lives: what is timed later changes no bits."""
    return ladder.choose(problem.with_rows(ROWS), kernel, arithmetic).name


def by_pieces(x: Any, n: int, dtype: Any, product: Callable[[Any], Any], alone: bool = False) -> Any:
    """``product(x)`` [..., N] of x [..., K], floats or codes with scales, ``ROWS`` rows at a time.

    ``alone``: of floats, up to ``ALONE`` rows at a time, and the last piece may have fewer.
    """
    m, size = math.prod(x.shape[:-1]), ALONE if alone else ROWS
    floats = not hasattr(x, "codes")
    rows = x.reshape(m, x.shape[-1]) if floats else x.as_rows()
    xp = namespace(x if floats else x.codes)
    y = xp.empty((m, n), dtype)
    for start in range(0, m, size):
        count = min(size, m - start)
        whole = floats and (alone or count == size)
        part = rows[start : start + size] if whole else _filled(xp, rows, start, m)
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


def run(
    problem: Problem, operands: tuple[Any, ...], result: Result, wishes: Wishes, key: Key | None = None,
    operand: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """The result of a product of ``operands`` as rungs take them, by the rung that its caller names or the
    fastest.

    ``key``: of the plan to keep, if it is an ordinary call; ``operand(*key.arrays)`` makes the first operand
    again.
    """
    weights = operands[1]
    memory, on_host = weights.memory, problem.device == "cpu"
    place = nullcontext() if on_host else on_device_of(problem, memory, weights)
    with place, np.errstate(over="ignore", invalid="ignore"):
        if wishes.kernel == "auto" and not on_host and does_without_cublas(memory):
            problem = replace(problem, captured=True)
        operands = as_rows(operands[0]), *operands[1:]
        plan = kept(weights, key.key) if on_host and key is not None and len(operands) == 2 else None
        if plan is not None:
            rung = plan.rung
        else:
            rung = tuning.chosen(problem, operands, wishes.kernel, wishes.arithmetic, wishes.invariant)
        sums = (len(operands[0]), len(weights)) if len(operands) == 2 else result.shape
        scale = weights.scale if isinstance(weights, QuantArray) else None
        steps = _steps(rung, weights, sums, result, scale)
        end = {} if steps.end is PLAIN else {"end": steps.end}
        y, direct = _target(rung, operands, sums, result, steps, scale)
        if not (math.prod(sums) and weights.shape[-1]):
            y[...] = 0
        elif plan is not None and key is not None and not end and y.dtype == FLOAT32:
            launch_on_host(plan, weights, key.arrays, y)
        elif on_host:
            rung.launch(*operands, y, **end)
            if key is not None and plan is None:
                weights.keep_recording(key.key, Plan(rung, operand=operand))
        elif (
            (end and not rung.repeats)
            or key is None
            or scale is not None  # warm calls on a GPU know no scale
            or not launched(rung, problem, operands, y, key.key, steps.end)
        ):
            rung.launch(*operands, y, **end)
        if scale is not None:
            multiply(y, scale if len(operands) == 2 else of_uses(scale, operands[2]))
        return _finished(result, y.reshape(result.shape), steps, direct, weights)


class Steps(NamedTuple):
    """The steps after the sums: of the kernel, and those that are left."""

    end: Epilogue
    bias: Any = None
    residual: Any = None


def _steps(rung: Rung, weights: Any, sums: tuple[int, ...], result: Result, scale: Any) -> Steps:
    """The steps that a rung takes itself, and those that it leaves; no kernel takes a bias in float64.

    A residual that is the same for all rows is a bias if there is none.
    """
    bias, residual, memory, coding = result.bias, result.residual, weights.memory, result.coding
    if not rung.ends or scale is not None or 0 in sums or not weights.shape[-1]:
        return Steps(PLAIN, bias, residual)
    alike = residual is not None and residual.shape[-1:] == (residual.size,) == sums[-1:]
    if alike and bias is None and result.gate is None:
        bias, residual = residual.reshape(-1), None
    left = residual
    adds = rung.adds if result.gate is None else sums[0] <= rung.gates
    if bias is not None and bias.dtype.itemsize > 4:
        return Steps(PLAIN, bias, residual)
    added = None
    if bias is not None:
        dtype = bias.dtype if isinstance(weights, QuantArray) and bias.dtype.char in "feH" else np.float32
        added = result.place.xp.ascontiguousarray(bias, dtype)
    if coding is not None and is_written(coding.code):
        request = f"{result.request} with requantize"
        scales = static_scales(request, coding.scales, memory, sums, coding.code, coding.tile)
        return Steps(Epilogue(added, coding.code, scales), None, left)
    if residual is not None and adds and lies_as_results(residual, sums):
        return Steps(Epilogue(added, residual=residual.reshape(sums), gate=result.gate))
    return Steps(PLAIN if added is None else Epilogue(added), None, left)


def _target(
    rung: Rung, operands: tuple[Any, ...], sums: tuple[int, ...], result: Result, steps: Steps, scale: Any
) -> tuple[Any, bool]:  # fmt: skip
    """The array that a kernel writes, [M, N] or [T, U, N]; and True if it is ``out``.

    It has the dtype of codes, 16 bits where the rung may round its sums, or float32.
    """
    out, end = result.out, steps.end
    left = [part for part in (steps.bias, steps.residual) if part is not None]
    narrow = rung.narrow and scale is None and not left and result.coding is None and not sums[-1] % 2
    dtype = FLOAT32
    if end.code is not None:
        dtype = end.code.dtype
    elif narrow and result.dtype.itemsize == 2:
        dtype = result.dtype
    if out is not None and _takes(result, (*operands, *left, result.bias), dtype):
        return out.reshape(sums), True
    return result.place.xp.empty(sums, dtype), False


def _finished(result: Result, y: Any, steps: Steps, direct: bool, weights: Any) -> Any:
    """The result of sums y with the steps that are left: what no kernel adds, codes, and the dtype."""
    out, coding, memory = result.out, result.coding, weights.memory
    if steps.bias is not None or steps.residual is not None:
        if result.gate is not None:
            cuda_module("kernels.epilogue.gates").gated(result.gate, steps.residual, y, y)
        elif coding is None:
            return delivered(result, y, steps.bias, steps.residual)
        else:
            y += steps.bias
    if direct:
        return out
    if out is not None:
        if not (result.place.on_host and narrow_into(y, out)):
            out[...] = y
        return out
    if coding is None:
        on_host = result.place.on_host
        return narrowed(y, result.dtype) if on_host else y.astype(result.dtype, copy=False)
    if steps.end.code is not None:
        return ScaledArray.assembled(y, steps.end.scales, coding.code, coding.tile)
    rows = (math.prod(result.shape[:-1]), result.shape[-1])
    scales = static_scales(result.request, coding.scales, memory, rows, coding.code, coding.tile)
    return coded(result.request, y, coding.code, coding.tile, scales=scales)


def does_without_cublas(memory: Any) -> bool:
    """True where CuPy's cuBLAS cannot be called: a CUDA graph is recorded, or memory is torch's."""
    return is_over_torch(type(memory)) or bool(cuda_device().capturing(memory.device.id))


def _takes(result: Result, operands: tuple[Any, ...], dtype: np.dtype[Any]) -> bool:
    """True if a kernel may write into ``out``; dropped bytes of blocks are not restored for this check."""
    arrays: list[Any] = []
    for operand in operands:
        if isinstance(operand, ScaledArray):
            arrays += operand.parts()
        else:
            arrays.append(getattr(operand, "memory", operand))
    out, place = result.out, result.place
    if place.on_host and not out.flags.aligned:  # a kernel may store whole lines
        return False
    if not place.on_host and dtype.itemsize == 2 and out.data.ptr % 4:  # kernels store two at a time
        return False
    return takes_sums(place.share, out, *arrays, dtype=dtype)


def divided(
    request: str, operation: str, x: Any, q: Divided, wishes: Wishes, options: dict[str, Any]
) -> Any:  # fmt: skip
    """The product with weights on several devices; what they do not add is added here."""
    out, bias, residual, dtype, kernel, _, invariant, _ = wishes
    options = {"kernel": kernel, **options} | ({"invariant": True} if invariant else {})
    work: Callable[..., Any] = partial(q.run, operation, **options)
    if residual is None:
        return work(x, out=out, bias=bias, dtype=dtype)
    return enter(Operation(request, _with_residual), q, x, wishes, work=work, request=request)


def _with_residual(q: Any, x: Any, wishes: Wishes, work: Callable[..., Any], request: str) -> Any:
    """The product of arrays with divided weights, plus bias and residual."""
    if wishes.residual is None:  # which torch adds
        return work(x, out=wishes.out, bias=wishes.bias, dtype=wishes.dtype)
    shape, bias = (*rows_of(x), q.shape[0]), wishes.bias
    memory = memory_of(q, x)
    result = result_of(request, wishes, shape, device_of(memory))
    with on_device_of(request, memory):
        sums = work(x, out=place_for_sums(result), bias=bias, dtype=np.float32)
        return delivered(result, sums, None, result.residual)
